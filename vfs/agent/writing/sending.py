"""One staged file on its way to its origin: read, digested, sent in parts, verified.

Threads: one small pool reads and digests. Each piece is digested when it is read, whichever part or attempt reads it; a block
that differs from what an earlier attempt read means that the file is being changed, or its disk fails.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from vfs.backoff import doubled_s
from vfs.checkpoints.manifest import object_digest
from vfs.clock import Clock
from vfs.errors import Corrupt, ForemountError, NotFound, Stale, Unavailable
from vfs.extents.layout import BLOCK, block_count, digest
from vfs.model import SitePath, Version
from vfs.oserrors import Translated
from vfs.sites.writing import Body, SiteWriter, Upload

PIECE_BYTES = 1 << 20
"""Read at a time: a hop to a thread costs 50 us, digesting a MiB some 100."""
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Alive = Callable[[], None]


class SendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How uploads behave.

    Attributes:
        files: on their way at a time. Small files are bound by round trips: 16 hide 100 ms as long as each takes 6 ms.
        parts: of all files together that are being sent at a time; with 16 MiB each, what S3 parts take of memory.
        part_deadline_s: for all attempts at one part, after which the file rests until its next turn.
        stall_s, bytes_per_s: an attempt fails that takes longer than the first and its bytes at the second.
        backoff_s, backoff_s_max: before the second attempt at a part, doubled for each further one.
        rest_s, rest_s_max: before a file that failed has its next turn, doubled likewise.
    """

    files: int = 16
    parts: int = 8
    part_deadline_s: float = 300.0
    stall_s: float = 30.0
    bytes_per_s: float = 256e3
    backoff_s: float = 0.2
    backoff_s_max: float = 10.0
    rest_s: float = 1.0
    rest_s_max: float = 60.0


class Content(Protocol):
    """What a `Sender` sends: bytes that are digested as they are read."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def part(self, offset: int, length: int, before: Callable[[int], Awaitable[None]], alive: Alive) -> Body:
        """Return a range of it: `before` is awaited with the length of each piece, `alive` called when one goes."""
        ...

    def check(self) -> None:
        """Refuse to go on if the content has changed, or is not what it must be.

        Raises:
            Stale, Corrupt: so it is.
        """
        ...

    def block_digests(self) -> bytes:
        """Return the digests of all blocks, 8 bytes little-endian each; all of it must have been read."""
        ...


class StagedFile:
    """A staging file as it was when its upload began.

    Attributes:
        hash_s: spent on reading and digesting so far.
    """

    def __init__(self, path: str, size: int, mtime_ns: int, pool: Executor) -> None:
        """Raises:
        Stale: the file has another size or time by now.
        NotFound, Unavailable: it can't be opened.
        """
        self._path = path
        self._size = size
        self._mtime_ns = mtime_ns
        self._pool = pool
        self._digests = np.zeros(block_count(size), np.uint64)
        self.hash_s = 0.0
        with Translated(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.check()

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def check(self) -> None:
        """Refuse to go on if the file has been changed.

        Raises:
            Stale: it has.
        """
        found = os.fstat(self._fd)
        if (found.st_size, found.st_mtime_ns) != (self._size, self._mtime_ns):
            raise Stale(self._path, "was changed while it was uploaded")

    def block_digests(self) -> bytes:
        """Return the digests of all blocks, 8 bytes little-endian each; all of it must have been read."""
        assert self._digests.all()
        return self._digests.astype("<u8").tobytes()

    async def read(self, offset: int, length: int) -> bytes:
        """Return a piece, digested. `offset` is a multiple of the block."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        begun_s = time.monotonic()
        with Translated(self._path):
            piece = os.pread(self._fd, length, offset)
        if len(piece) != length:
            raise Stale(self._path, "was cut while it was uploaded")
        view, first = memoryview(piece), offset // BLOCK
        for index, start in enumerate(range(0, length, BLOCK), first):
            found = digest(view[start : start + BLOCK])
            if self._digests[index] not in (0, found):
                raise Corrupt(self._path, f"block {index} reads otherwise than a moment ago")
            self._digests[index] = found
        self.hash_s += time.monotonic() - begun_s
        return piece

    def part(self, offset: int, length: int, before: Callable[[int], Awaitable[None]], alive: Alive) -> Part:
        return Part(self, offset, length, before, alive)

    def close(self) -> None:
        """Close it; a thread that still reads gets an error that nobody waits for."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Part:
    """A `Body` over a range of a staged file.

    Attributes:
        before: awaited with the length of each piece before it is read.
        alive: called when one goes.
    """

    file: StagedFile
    offset: int
    length: int
    before: Callable[[int], Awaitable[None]]
    alive: Alive

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(self.offset, self.offset + self.length, PIECE_BYTES):
            length = min(PIECE_BYTES, self.offset + self.length - start)
            await self.before(length)
            self.alive()
            yield await self.file.read(start, length)


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that the origin has, verified."""

    version: Version
    digest: str


@dataclass(slots=True)
class Sender:
    """Sends files to one origin.

    Attributes:
        parts: bounds the parts under way; shared by all origins.
        before: awaited with the length of each piece before it is sent: bandwidth.
    """

    writer: SiteWriter
    limits: SendLimits
    clock: Clock
    parts: asyncio.Semaphore
    before: Callable[[int], Awaitable[None]]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: random.Random = field(default_factory=random.Random)

    async def send(
        self,
        file: Content,
        path: SitePath,
        token: str,
        resumed: Upload | None,
        begun: Callable[[Upload], None],
        arrived: Callable[[int], None],
        check: Callable[[], None],
    ) -> Sent:
        """Bring a file to `path` and return what the origin has.

        Args:
            token: names this content among all uploads of all hosts.
            resumed: what an earlier process had begun for the same token.
            begun: told once there is something to resume.
            arrived: told the bytes of each part that has arrived.
            check: called before the first byte goes and before the file gets its name; what it raises is raised, and what was
                sent is abandoned.

        Raises:
            Stale: the file was changed meanwhile; what was sent is abandoned.
            Corrupt: what arrived is not what was sent; likewise.
            Denied, NoSpace, Unsupported, Unavailable: as the origin says.
        """
        upload, known = await self._open(file, path, token, resumed)
        begun(upload)
        receipts: dict[int, str] = {}
        try:
            check()  # who renames or removes the file from here on knows from `begun` that the origin may show it
            await self._send_parts(file, upload, known, arrived, receipts)
            file.check()
            check()
            version = await self.patiently(lambda _: self.writer.finish(upload, receipts), upload.size)
        except (Stale, Corrupt, NotFound):
            await self._abandon(upload, receipts)
            raise
        return Sent(version, object_digest(file.block_digests()))

    async def _open(self, file: Content, path: SitePath, token: str, resumed: Upload | None) -> tuple[Upload, dict[int, str]]:
        """Return an upload and the receipts of what has arrived of it already."""
        if resumed is not None and (resumed.path, resumed.size, resumed.token) == (path, file.size, token):
            try:
                return resumed, dict(await self.patiently(lambda _: self.writer.received(resumed)))
            except NotFound:
                pass
        elif resumed is not None:
            await self._abandon(resumed, {})
        return await self.patiently(lambda _: self.writer.begin(path, file.size, token)), {}

    async def _send_parts(
        self,
        file: Content,
        upload: Upload,
        known: dict[int, str],
        arrived: Callable[[int], None],
        receipts: dict[int, str],
    ) -> None:
        """Send all parts and put their receipts into `receipts`."""
        indexes = iter(range(upload.count))

        async def send_some() -> None:
            for index in indexes:
                offset, length = upload.span(index)
                async with self.parts:  # for each part anew: a large file leaves the others their turn

                    def ask(alive: Alive, index: int = index, offset: int = offset, length: int = length) -> Awaitable[str]:
                        part = file.part(offset, length, self.before, alive)
                        return self.writer.send(upload, index, part, known.get(index, ""))

                    receipts[index] = await self.patiently(ask, length)
                arrived(length)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(upload.count, self.limits.parts)):
                    group.create_task(send_some())
        except ExceptionGroup as failed:
            raise gravest(failed.exceptions) from failed

    async def patiently(self, ask: Callable[[Alive], Awaitable[T]], size: int = 0) -> T:
        """Return what a call returns, made again after transient failures until the part's deadline has passed.

        An attempt fails that shows no sign of life for `stall_s`, and the time that its bytes take at `bytes_per_s`.

        Args:
            ask: makes the call; is given what it calls when it goes on.
            size: bytes that one attempt sends.
        """
        limits, loop = self.limits, asyncio.get_running_loop()
        silence_s = limits.stall_s + size / limits.bytes_per_s
        deadline_s = self.clock.monotonic_s() + limits.part_deadline_s
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(silence_s) as patience:
                    return await ask(lambda: patience.reschedule(loop.time() + silence_s))
            except (Unavailable, TimeoutError) as exc:
                attempt += 1
                delay_s = doubled_s(limits.backoff_s, limits.backoff_s_max, attempt) * self.chance.uniform(0.5, 1)
                if self.clock.monotonic_s() + delay_s >= deadline_s:
                    if isinstance(exc, TimeoutError):
                        raise Unavailable("origin", f"took nothing for {silence_s:.0f} s") from exc
                    raise
            await self.sleep(delay_s)

    async def _abandon(self, upload: Upload, receipts: dict[int, str]) -> None:
        try:
            async with asyncio.timeout(self.limits.stall_s):
                await self.writer.abandon(upload, receipts)
        except (Unavailable, TimeoutError):
            return  # what is hidden there goes when the origin's own rules sweep it


def gravest(failures: Sequence[E]) -> E:
    """Return the failure to act on: one that ends an upload or a copy before one that another try may mend."""
    return min(failures, key=lambda failure: (isinstance(failure, Unavailable), isinstance(failure, ForemountError)))
