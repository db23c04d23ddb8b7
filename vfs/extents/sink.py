"""Turns a body that arrives in pieces into blocks on the disk, writing in a thread while the next pieces come in.

Owns no task: a write is one call in the pool, and its end starts the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vfs.extents.layout import BLOCK


class Sink:
    """Blocks from `first` on, in order.

    Args:
        length: bytes that will come, to the end of a block or of the object.
        batch: bytes that are collected for a write as long as nobody waits for them, and at most while one is going on.
        submit: starts writing (first block, bytes) in a thread.
        written: called on the loop with the first block that is not written yet, when some more are.
        awaited: whether somebody waits for a block before this one that is not written yet.

    Invariants: at most one write is going on; `_next` is the first block that was not handed to it; what was fed and not
    handed over is less than `batch` plus one piece.
    """

    __slots__ = ("_awaited", "_batch", "_buffer", "_failure", "_left", "_next", "_submit", "_writing", "_written")

    def __init__(
        self,
        first: int,
        length: int,
        *,
        batch: int,
        submit: Callable[[int, memoryview], asyncio.Future[None]],
        written: Callable[[int], None],
        awaited: Callable[[int], bool],
    ) -> None:
        self._next = first
        self._left = length
        self._batch = batch
        self._submit = submit
        self._written = written
        self._awaited = awaited
        self._buffer = bytearray()
        self._writing: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    @property
    def left(self) -> int:
        """Return how many bytes have not come yet."""
        return self._left

    async def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; waits while too many are not written yet.

        Raises:
            ForemountError: a write before has failed.
        """
        assert len(piece) <= self._left
        self._left -= len(piece)
        self._buffer += piece
        self.hurry()
        while len(self._buffer) >= self._batch and self._writing is not None:
            await asyncio.wait([self._writing])
        self._check()

    def hurry(self) -> None:
        """Begin to write what has come if it is worth a write, or somebody waits for it."""
        whole = len(self._buffer) // BLOCK
        if not self._left or len(self._buffer) >= self._batch or (whole and self._awaited(self._next + whole)):
            self._start()

    async def settle(self) -> None:
        """Wait until every whole block that came is written. Nothing is fed afterwards.

        Raises:
            ForemountError: a write has failed.

        Cancellation: goes on in a thread; what it writes is right.
        """
        self._start()
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _start(self) -> None:
        """Hand over all whole blocks, unless a write is going on."""
        whole = len(self._buffer) // BLOCK * BLOCK if self._left else len(self._buffer)
        if not whole or self._writing is not None or self._failure is not None:
            return
        body, self._buffer = self._buffer, self._buffer[whole:]
        first, self._next = self._next, self._next + -(-whole // BLOCK)
        self._writing = self._submit(first, memoryview(body)[:whole])
        self._writing.add_done_callback(self._ended)

    def _ended(self, write: asyncio.Future[None]) -> None:
        self._writing = None
        if write.cancelled():
            self._failure = asyncio.CancelledError()
        elif (error := write.exception()) is not None:
            self._failure = error
        else:
            self._written(self._next)
            self.hurry()
