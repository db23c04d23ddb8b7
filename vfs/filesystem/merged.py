"""A directory in which something is mounted: the mount table's names, then the origin's entries but for those names.

It may be the root of a flat dataset of millions of files, so the origin's stream is passed through, not collected.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from vfs.filesystem.tree import Child, Directory, Node


class MergedDirectory:
    """A directory stream over `base` (None: the origin has no such directory) with `over` before it.

    The positions of `over` are 62 bits of a hash, the same for every worker, so that they are none of the origin's: those
    are hashes too, or small numbers.
    """

    def __init__(self, over: Mapping[bytes, Node], base: Directory | None) -> None:
        self._over = [Child(name, node, _position_of(name)) for name, node in sorted(over.items())]
        self._base = base

    async def read(self, position: int) -> list[Child]:
        first = next((at for at, child in enumerate(self._over, 1) if child.position == position), 0)
        if self._over[first:] and (first or not position):
            return self._over[first:]
        return await self._read_base(0 if first else position)

    async def _read_base(self, position: int) -> list[Child]:
        hidden = {child.name for child in self._over}
        while self._base is not None and (page := await self._base.read(position)):
            if shown := [child for child in page if child.name not in hidden]:
                return shown
            position = page[-1].position
        return []

    def close(self) -> None:
        if self._base is not None:
            self._base.close()


def _position_of(name: bytes) -> int:
    """Return 62 bits of the name's hash, never 0, which is the start."""
    return (xxhash.xxh3_64_intdigest(name) >> 2) | 1
