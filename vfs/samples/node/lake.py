"""The lake as a node reads it: straight from the sites, without a cache. Implements `vfs.samples.feeds.protocol.Lake`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vfs.errors import NotADirectory, NotFound, Stale
from vfs.model import Entry, LakePath, SiteName, Version
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.sites.protocol import Site


class SiteLake:
    """Each path at the origin of its mount."""

    def __init__(self, mounts: MountTable, sites: Mapping[SiteName, Site]) -> None:
        self._mounts = mounts
        self._sites = sites

    async def stat(self, path: LakePath) -> Entry | None:
        """Return the entry of a path, None where nothing is."""
        point = self._mounts.find(path)
        if point is None:
            return None
        try:
            return await self._sites[point.site].stat(point.site_path(path))
        except (NotFound, NotADirectory):
            return None

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
        parts = [bytes(piece) async for piece in site.read(point.site_path(path), version, offset, length)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _point(self, path: LakePath) -> MountPoint:
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path)
        return point
