"""The lake as a node reads it: straight from the sites, without a cache. Implements `vfs.samples.feeds.protocol.Lake`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from vfs.clock import Clock
from vfs.errors import NotADirectory, NotFound, Stale
from vfs.model import Entry, Kind, LakePath, SiteName, Version
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.sites.protocol import Site

_BELIEVED_S = 1.0
_FILES_KNOWN = 1000


class SiteLake:
    """Each path at the origin of its mount.

    A file's version is believed for a second: a bin is asked for with each of its samples. Reading proves it.

    Invariant: `_known` holds files only, `_FILES_KNOWN` at most.
    """

    def __init__(self, mounts: MountTable, sites: Mapping[SiteName, Site], clock: Clock) -> None:
        self._mounts = mounts
        self._sites = sites
        self._clock = clock
        self._known: OrderedDict[LakePath, tuple[float, Entry]] = OrderedDict()

    async def stat(self, path: LakePath) -> Entry | None:
        """Return the entry of a path, None where nothing is."""
        until_s, known = self._known.get(path, (0.0, None))
        if known is not None and self._clock.monotonic_s() < until_s:
            return known
        point = self._mounts.find(path)
        if point is None:
            return None
        try:
            found = await self._sites[point.site].stat(point.site_path(path))
        except (NotFound, NotADirectory):
            self._known.pop(path, None)
            return None
        if found.kind is Kind.FILE:
            self._known[path] = self._clock.monotonic_s() + _BELIEVED_S, found
            self._known.move_to_end(path)
            if len(self._known) > _FILES_KNOWN:
                self._known.popitem(last=False)
        return found

    async def list(self, path: LakePath) -> Sequence[Entry]:
        """Return the entries of a directory; none where nothing is."""
        point = self._mounts.find(path)
        found: list[Entry] = []
        if point is not None:
            try:
                async for page in self._sites[point.site].list(point.site_path(path)):
                    found += page
            except (NotFound, NotADirectory):
                return []
        return found

    async def read(self, path: LakePath, version: Version, offset: int, length: int) -> bytes:
        """Return exactly these bytes of this version.

        Raises:
            NotFound, Stale: it is gone or in another version.
        """
        point = self._point(path)
        if offset < 0 or offset + length > version.size:
            raise Stale(path, f"has {version.size} bytes, {offset} + {length} are asked for")
        if length == 0:
            return b""
        site = self._sites[point.site]
        try:
            parts = [bytes(piece) async for piece in site.read(point.site_path(path), version, offset, length)]
        except (NotFound, Stale):
            self._known.pop(path, None)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _point(self, path: LakePath) -> MountPoint:
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path)
        return point
