"""The lake as the agent's own rooms read it: local sites directly, others through the cache, replicas and policy.

Threads: verified bytes are read in the default pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from vfs.agent.reading.holding import Holding
from vfs.agent.reading.metadata import Metadata
from vfs.errors import NotADirectory, NotFound, Stale, Unavailable
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.reader import read_copied
from vfs.model import Entry, LakePath, ObjectKey, SiteName, Version
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.sites.protocol import Site

_PAGE_ENTRIES = 1000
_TRIES_MAX = 3
"""What is evicted between fetching and reading is fetched again so often; more means that the cache is far too small."""


class AgentLake:
    """Implements `vfs.samples.feeds.protocol.Lake`."""

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        metadata: Metadata,
        holding: Holding,
        fetcher: Fetcher,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._metadata = metadata
        self._holding = holding
        self._fetcher = fetcher

    async def stat(self, path: LakePath) -> Entry | None:
        """Return the entry of a path, None where nothing is."""
        point = self._mounts.find(path)
        if point is None:
            return None
        try:
            if point.local_root is not None and not self._metadata.is_pinned(path):
                return await self._sites[point.site].stat(point.site_path(path))
            return await self._metadata.stat(path)
        except (NotFound, NotADirectory):
            return None

    async def list(self, path: LakePath) -> Sequence[Entry]:
        """Return the entries of a directory; none where nothing is."""
        point = self._mounts.find(path)
        if point is None:
            return ()
        try:
            if point.local_root is not None and not self._metadata.is_pinned(path):
                return [entry async for page in self._sites[point.site].list(point.site_path(path)) for entry in page]
            return await self._listed(path)
        except (NotFound, NotADirectory):
            return ()

    async def read(
        self, path: LakePath, version: Version, offset: int, length: int, priority: Priority = Priority.FOREGROUND
    ) -> bytes:
        """Return exactly the bytes `[offset, offset + length)` of this version.

        Raises:
            NotFound, Stale, Denied, Unavailable, NoSpace: as `Fetcher.ensure`.
        """
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path, "nothing is mounted there")
        if offset + length > version.size:
            raise Stale(path, f"has {version.size} bytes, [{offset}, +{length}) is asked for")
        if not length:
            return b""
        if point.local_root is not None:
            return await self._read_site(point, path, version, offset, length)
        identity, key, _ = await self._holding.hold(path, version)
        try:
            for _ in range(_TRIES_MAX):
                root = await self._fetcher.ensure(identity, offset, length, priority)
                found = await asyncio.to_thread(_read_cached, root, key, offset, length)
                if found is not None:
                    return found
        finally:
            self._holding.release(key)
        raise Unavailable(path, "is evicted faster than it is read", "the cache is too small")

    async def _read_site(self, point: MountPoint, path: LakePath, version: Version, offset: int, length: int) -> bytes:
        pieces = self._sites[point.site].read(point.site_path(path), version, offset, length)
        return b"".join([bytes(piece) async for piece in pieces])

    async def _listed(self, path: LakePath) -> Sequence[Entry]:
        while True:
            found = []
            listed = await self._metadata.list(path, 0, 0)
            generation, place = listed.generation, 0
            while listed.generation == generation:
                page = self._metadata.page(path, generation, place, _PAGE_ENTRIES)
                found += [entry for entry in page if entry is not None]
                place += len(page)
                if place >= listed.count:
                    if listed.complete:
                        return found
                    listed = await self._metadata.list(path, generation, place)
                elif not page:
                    break  # replaced meanwhile: begin anew


def _read_cached(root: str, key: ObjectKey, offset: int, length: int) -> bytes | None:
    """Return verified bytes, None where they were evicted meanwhile."""
    try:
        return read_copied(root, key, offset, length)
    except NotFound:
        return None
