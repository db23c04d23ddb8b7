"""Bytes that are read from one site as they are sent to another: a `Content` for `Sender` that lies on no disk in between.

Each block is digested when it passes, whichever part or attempt brings it; one that differs from what an earlier attempt
brought means that the origin has been changed under one version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vfs.agent.writing.sending import Alive
from vfs.checkpoints.manifest import object_digest
from vfs.errors import Corrupt
from vfs.extents.layout import BLOCK, Identity, block_count, digest
from vfs.foresight.transfers import Range, pieces_of_content
from vfs.sites.protocol import Piece


class Read(Protocol):
    """Reads a range of one version at a site."""

    def __call__(self, source: Identity, offset: int, length: int) -> AsyncIterator[Piece]: ...


class Streamed:
    """The content of a copy: an object, or ranges of it one after another.

    Args:
        ranges: disjoint, ascending, whole blocks; empty: all of the object.
        expected: digest that it must have, "" where nobody knows.
    """

    def __init__(self, source: Identity, ranges: Sequence[Range], expected: str, read: Read) -> None:
        self._source = source
        self._ranges = ranges
        self._expected = expected
        self._read = read
        self._size = sum(length for _, length in ranges) if ranges else source.version.size
        self._digests = np.zeros(block_count(self._size), np.uint64)

    @property
    def size(self) -> int:
        return self._size

    def part(self, offset: int, length: int, before: Callable[[int], Awaitable[None]], alive: Alive) -> Passing:
        return Passing(self, offset, length, before, alive)

    def check(self) -> None:
        if self._expected and self.digest() != self._expected:
            raise Corrupt(f"{self._source.site}:{self._source.path}", "has another digest than the manifest states")

    def block_digests(self) -> bytes:
        assert self._digests.all()
        return self._digests.astype("<u8").tobytes()

    def digest(self) -> str:
        """Return the digest of the content; all of it must have been read."""
        return object_digest(self.block_digests())

    async def verify(self) -> None:
        """Read all of it for its digest.

        Raises:
            Corrupt: it is another one than was expected.
            ForemountError: it can't be read.
        """
        if self._size:
            async for _ in self.part(0, self._size, nobody, lambda: None).pieces():
                pass
        self.check()

    async def pass_on(self, offset: int, length: int) -> AsyncIterator[Piece]:
        """Yield bytes of the content and note the digests of their blocks."""
        block, pending = offset // BLOCK, bytearray()
        for start, size in pieces_of_content(self._ranges, offset, length):
            async for piece in self._read(self._source, start, size):
                pending += piece
                whole = len(pending) // BLOCK * BLOCK
                self._note(block, memoryview(pending)[:whole])
                block += whole // BLOCK
                pending = pending[whole:]
                yield piece
        self._note(block, memoryview(pending))

    def _note(self, first: int, view: memoryview) -> None:
        for index, start in enumerate(range(0, len(view), BLOCK), first):
            found = digest(view[start : start + BLOCK])
            if self._digests[index] not in (0, found):
                raise Corrupt(f"{self._source.site}:{self._source.path}", f"block {index} reads otherwise than a moment ago")
            self._digests[index] = found


@dataclass(frozen=True, slots=True)
class Passing:
    """A `Body` over a range of a streamed content."""

    content: Streamed
    offset: int
    length: int
    before: Callable[[int], Awaitable[None]]
    alive: Alive

    async def pieces(self) -> AsyncIterator[Piece]:
        if not self.length:
            return
        async for piece in self.content.pass_on(self.offset, self.length):
            self.alive()
            yield piece


async def nobody(length: int) -> None:
    """Wait for nobody: the line's budget is asked where the bytes are read."""
