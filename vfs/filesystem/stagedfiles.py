"""A staged file's bytes, and a directory that shows staged names over the origin's."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping

import xxhash

from vfs.filesystem.scratch import read_at
from vfs.filesystem.staging import StagingArea
from vfs.filesystem.tree import Buffer, Child, Directory, Node, Push
from vfs.oserrors import Translated
from vfs.usage import Source as From

_OVER = 1 << 62
"""Positions of staged names have this bit, those of origins do not (generation and place, `remote.py`)."""


class StagedSource:
    """An open staging file. The descriptor for passthrough only reads: the kernel opens the file anew for each handle.

    Args:
        sync: makes the node of this number as durable as the policy says.
    """

    served_from = From.LOCAL
    verified = None

    def __init__(self, area: StagingArea, node_id: int, subject: str, sync: Callable[[int], Awaitable[None]]) -> None:
        self._area = area
        self._node_id = node_id
        self._subject = subject
        self._sync = sync
        self._fd = area.open(node_id, os.O_RDONLY, subject)
        self._write_fd = -1
        area.opened(node_id)

    @property
    def backing_fd(self) -> int | None:
        return self._fd

    async def read(self, offset: int, length: int, push: Push | None = None) -> Buffer:
        return read_at(self._fd, offset, length, self._subject)

    async def write(self, offset: int, content: Buffer) -> int:
        if self._write_fd < 0:
            self._write_fd = self._area.open(self._node_id, os.O_WRONLY, self._subject)
        with Translated(self._subject):
            return os.pwrite(self._write_fd, content, offset)

    async def sync(self) -> None:
        await self._sync(self._node_id)

    def joined(self) -> None:
        return

    def announce(self) -> None:
        return

    def shed(self) -> bool:
        self.close()
        return False

    def rest(self) -> bool:
        return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._area.closed(self._node_id)
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1


class StagedDirectory:
    """A directory stream: staged names, by 61 bits of their hash, then the origin's but for those that `hidden` names.

    A name's position is the same for every worker, also where names before it are gone by then.
    """

    def __init__(self, shown: Mapping[bytes, Node], hidden: set[bytes], base: Directory | None) -> None:
        children = [Child(name, node, _OVER | xxhash.xxh3_64_intdigest(name) >> 3) for name, node in shown.items()]
        self._over = sorted(children, key=lambda child: child.position)
        self._hidden = hidden
        self._base = base

    async def read(self, position: int) -> list[Child]:
        if not position or position & _OVER:
            left = [child for child in self._over if child.position > position]
            if left:
                return left
            position = 0
        while self._base is not None and (page := await self._base.read(position)):
            if found := [child for child in page if child.name not in self._hidden]:
                return found
            position = page[-1].position
        return []

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
