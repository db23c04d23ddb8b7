"""A directory in which something is mounted: the origin's entries with the mount table's names laid over them.

Such directories are small and near the root; the whole is held in memory, in the order of a hash of the name, so that a
position means the same to the next worker.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from vfs.filesystem.tree import Child, Directory, Node


class MergedDirectory:
    """A directory stream over `base` (None: the origin has no such directory) with `over` on top."""

    def __init__(self, over: Mapping[bytes, Node], base: Directory | None) -> None:
        self._over = over
        self._base = base
        self._children: list[Child] | None = None

    async def read(self, position: int) -> list[Child]:
        if self._children is None or position == 0:
            self._children = await self._collect()
        return [child for child in self._children if child.position > position]

    async def _collect(self) -> list[Child]:
        nodes = dict(self._over)
        position = 0
        while self._base is not None and (page := await self._base.read(position)):
            position = page[-1].position
            nodes |= {child.name: child.node for child in page if child.name not in self._over}
        children = [Child(name, node, _position_of(name)) for name, node in nodes.items()]
        return sorted(children, key=lambda child: child.position)

    def close(self) -> None:
        if self._base is not None:
            self._base.close()


def _position_of(name: bytes) -> int:
    """Return 62 bits of the name's hash, never 0, which is the start."""
    return (xxhash.xxh3_64_intdigest(name) >> 2) | 1
