"""Where the members of an open file lie, read through the cache: from its own bytes, or from a file beside it.

The shards of a DCP or ByteCheckpoint directory are described by its `.metadata`, which is read once for all of them. A tar
may have an index beside it, which is one read in place of a walk from header to header.

Threads: parsing takes up to seconds of one and is never done on the loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vfs.agent.reading.holding import Holding
from vfs.checkpoints import dcp, tar
from vfs.checkpoints.layout import Layout, Needs, NoLayout, advance
from vfs.checkpoints.recognise import described_by, index_of, recognise
from vfs.errors import NotFound
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.extents.reader import read_copied
from vfs.model import Entry, Kind, LakePath, ObjectKey, split

T = TypeVar("T")

SIZE_MIN = 256 << 10
"""Smaller files come with their first request or two whatever they hold."""
INDEX_BYTES_MAX = 64 << 20
"""Of a tar: eight million samples."""
_DIRECTORIES_KEPT = 4
"""Whose `.metadata` is kept in memory: a job loads one checkpoint at a time, two when it compares."""


def promises_layout(path: LakePath, size: int) -> bool:
    """Return whether the name of a file of that size says that it may have a layout."""
    return size >= SIZE_MIN and (described_by(path) is not None or recognise(path, size) is not None)


class CachedLayouts:
    """Reads layouts; what the reader comes for as well is there then.

    Args:
        stat: the entry of a lake path, None where nothing is.
    """

    def __init__(self, holding: Holding, fetcher: Fetcher, *, stat: Callable[[LakePath], Awaitable[Entry | None]]) -> None:
        self._holding = holding
        self._fetcher = fetcher
        self._stat = stat
        self._directories: OrderedDict[ObjectKey, asyncio.Task[dict[str, Layout]]] = OrderedDict()

    async def find(self, identity: Identity, path: LakePath) -> Layout:
        """Return the layout of an object that is held.

        Raises:
            NoLayout: it has none that can be used.
            ForemountError: it can't be read at the moment.
        """
        description = described_by(path)
        if description is not None:
            return await self._described(LakePath(description), path, identity.version.size)
        index = index_of(path)
        if index is not None and (found := await self._indexed(LakePath(index), identity.version.size)) is not None:
            return found
        parser = recognise(path, identity.version.size)
        if parser is None:
            raise NoLayout("its name promises none")
        return await self._read(identity, parser)

    async def _described(self, description: LakePath, path: LakePath, size: int) -> Layout:
        """Return a shard's layout as the file that describes its directory has it."""
        entry = await self._file(description)
        if entry is None:
            raise NoLayout("nothing describes it")
        identity = self._holding.identity(description, entry.version)
        key = identity.key
        reading = self._directories.get(key)
        if reading is None:
            reading = self._directories[key] = asyncio.create_task(self._beside(description, entry, dcp.layouts))
            if len(self._directories) > _DIRECTORIES_KEPT:
                self._directories.popitem(last=False)
        self._directories.move_to_end(key)
        try:
            found = (await asyncio.shield(reading)).get(split(path)[1])
        except BaseException:
            if reading.done() and self._directories.get(key) is reading:
                del self._directories[key]  # what failed is tried again by the next shard
            raise
        if found is None:
            raise NoLayout("what describes its directory does not name it")
        if found.size > size:
            raise NoLayout(f"its tensors end at {found.size}, the file at {size}")
        return dataclasses.replace(found, size=size)

    async def _indexed(self, index: LakePath, size: int) -> Layout | None:
        """Return the layout that an index beside an archive gives; None where there is none that can be used."""
        entry = await self._file(index)
        if entry is None or not 0 < entry.version.size <= INDEX_BYTES_MAX:
            return None
        try:
            return await self._beside(index, entry, lambda length: _indexed(size, length))
        except NoLayout:
            return None

    async def _file(self, path: LakePath) -> Entry | None:
        try:
            entry = await self._stat(path)
        except NotFound:
            return None
        return entry if entry is not None and entry.kind is Kind.FILE else None

    async def _beside(self, path: LakePath, entry: Entry, parser: Callable[[int], Needs[T]]) -> T:
        """Return what a parser makes of another file of the lake."""
        identity, key, _ = await self._holding.hold(path, entry.version)
        try:
            return await self._read(identity, parser(entry.version.size))
        finally:
            self._holding.release(key)

    async def _read(self, identity: Identity, parser: Needs[T]) -> T:
        """Return what a parser finds in an object that is held."""
        key = identity.key
        need, found = await asyncio.to_thread(advance, parser, None)
        while need is not None:
            root = await self._fetcher.ensure(identity, *need, Priority.FOREGROUND)
            need, found = await asyncio.to_thread(_advance_cached, parser, root, key, need)
        assert found is not None
        return found


def _advance_cached(
    parser: Needs[T], root: str, key: ObjectKey, need: tuple[int, int]
) -> tuple[tuple[int, int] | None, T | None]:
    """Give a parser what it asked for, verified; as `advance`. In a thread."""
    return advance(parser, _read_cached(root, key, *need))


def _read_cached(root: str, key: ObjectKey, offset: int, length: int) -> bytes:
    """Return verified bytes of an object that has just been fetched."""
    found = read_copied(root, key, offset, length)
    if found is None:
        raise NoLayout("evicted while it was read")
    return found


def _indexed(size: int, length: int) -> Needs[Layout]:
    return tar.indexed(size, (yield 0, length))
