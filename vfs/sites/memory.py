"""A site in memory: a fake that passes the contract of the real ones, for tests and trials.

Every call gives way to the loop before it looks, as those that wait for a socket do: what a caller must be able to stand,
cancellation and changes in between, happens here too.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

from vfs.clock import Clock, SystemClock
from vfs.errors import IsADirectory, NotADirectory, NotFound, Stale
from vfs.model import Entry, Kind, SiteName, SitePath, Version, join, split
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece

PAGE_ENTRIES = 1000
PIECE_BYTES = 64 << 10


class MemorySite:
    """Holds objects; directories are there as long as something lies below them.

    Invariant: every object's and non-empty directory's name is in `_children` of its parent, nothing else is.
    """

    def __init__(self, name: SiteName, *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, Version]] = {}
        self._children: dict[str, dict[str, None]] = {"": {}}
        self._writes = itertools.count(1)

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"MemorySite({self._name!r}, {len(self._objects)} objects)"

    def put(self, path: SitePath, content: bytes) -> Version:
        """Store an object, in place of the one before; return its version, which no other write will get.

        Raises:
            NotADirectory: an object lies where a directory of the path would have to be.
            IsADirectory: a directory lies there.
        """
        if path in self._children:
            raise IsADirectory(f"{self._name}:{path}")
        above: str = path
        while above := split(above)[0]:
            if above in self._objects:
                raise NotADirectory(f"{self._name}:{above}")
        version = Version(len(content), self._clock.wall_ns(), f"w{next(self._writes)}")
        self._objects[path] = (content, version)
        child: str = path
        while child:
            parent, last = split(child)
            self._children.setdefault(parent, {})[last] = None
            child = parent
        return version

    def delete(self, path: SitePath) -> None:
        """Remove an object, and the directories that are empty without it.

        Raises:
            NotFound: it is not there.
        """
        if self._objects.pop(path, None) is None:
            raise NotFound(f"{self._name}:{path}")
        child: str = path
        while child:
            parent, last = split(child)
            del self._children[parent][last]
            if self._children[parent] or not parent:
                return
            del self._children[parent]
            child = parent

    def paths(self) -> list[str]:
        """Return where all objects are."""
        return list(self._objects)

    async def stat(self, path: SitePath) -> Entry:
        await asyncio.sleep(0)
        return self._entry(path, split(path)[1])

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        if path in self._objects:
            raise NotADirectory(f"{self._name}:{path}")
        if path not in self._children:
            raise NotFound(f"{self._name}:{path}")
        names = NameFilter(self._name, path)
        shown = [name for name in self._children[path] if names.admits(name)]
        for start in range(0, len(shown), PAGE_ENTRIES):
            await asyncio.sleep(0)
            page = shown[start : start + PAGE_ENTRIES]
            here = [self._entry(join(path, name), name) for name in page if self._is_there(join(path, name))]
            if here:
                yield here

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        for start in range(offset, offset + length, PIECE_BYTES):
            await asyncio.sleep(0)
            content, current = self._objects.get(path, (b"", None))
            if current is None:
                raise NotFound(f"{self._name}:{path}")
            if current != version:
                raise Stale(f"{self._name}:{path}")
            yield memoryview(content)[start : min(start + PIECE_BYTES, offset + length)]

    async def close(self) -> None:
        """Keep the objects: tests look at them afterwards."""

    def _is_there(self, path: str) -> bool:
        return path in self._objects or path in self._children

    def _entry(self, path: str, name: str) -> Entry:
        if path in self._objects:
            return Entry(name, Kind.FILE, self._objects[path][1])
        if path in self._children:
            return Entry(name, Kind.DIRECTORY, Version(0))
        raise NotFound(f"{self._name}:{path}")
