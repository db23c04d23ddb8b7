"""Time, line and store for a replay: the real fetch service runs on them, nothing waits, nothing is stored.

`VirtualLoop` jumps to the next timer whenever nothing is left to do; work for threads runs at once. So a replay of an hour
takes as long as its decisions do, and two replays of one trace are equal to the last byte.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from vfs.errors import NoSpace, NotFound
from vfs.extents.books import Books, Keep
from vfs.extents.layout import BLOCK, Identity, block_count
from vfs.extents.shelf import SEGMENT_BLOCKS
from vfs.model import Entry, ObjectKey, SiteName, SitePath, Version
from vfs.sites.protocol import Piece
from vfs.traces.recording import Line

P = ParamSpec("P")
R = TypeVar("R")
_PIECE = 256 << 10
_ZEROS = memoryview(bytes(_PIECE))


class _Jump(selectors.SelectSelector):
    """Moves the loop's time on instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that can't happen")
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time passes only when all tasks wait for it."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s

    def run_in_executor(self, executor: Executor | None, func: Callable[..., R], *args: Any) -> asyncio.Future[R]:  # type: ignore[override]
        """Run the work at once: what it costs is no part of a replay."""
        done: asyncio.Future[R] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as exc:
            done.set_exception(exc)
        return done


class VirtualClock:
    """The loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_ns(self) -> int:
        return int(self._loop.time() * 1e9)


class LineSite:
    """A site at the end of a line: each request waits for its first byte, then all share the bandwidth.

    Pieces queue in the order in which they are asked for, so that requests under way take turns.

    Attributes:
        requests, sent_bytes: so far.
    """

    def __init__(self, name: SiteName, line: Line) -> None:
        self._name = name
        self._line = line
        self._free_s = 0.0
        self.requests = 0
        self.sent_bytes = 0

    @property
    def name(self) -> SiteName:
        return self._name

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        """Yield zeros as the line would bring bytes."""
        self.requests += 1
        await asyncio.sleep(self._line.ttfb_s)
        while length:
            piece = min(length, _PIECE)
            now_s = asyncio.get_running_loop().time()
            self._free_s = max(self._free_s, now_s) + piece / self._line.bytes_per_s
            await asyncio.sleep(self._free_s - now_s)
            self.sent_bytes += piece
            length -= piece
            yield _ZEROS[:piece]

    async def stat(self, path: SitePath) -> Entry:
        raise NotFound(path, "a replay knows no names")

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        raise NotFound(path, "a replay knows no names")
        yield []

    async def close(self) -> None:
        return


class _Object:
    """Which blocks of one object are there."""

    __slots__ = ("count", "present", "there")

    def __init__(self, size: int) -> None:
        self.count = block_count(size)
        self.there = bytearray(self.count)
        self.present = 0


class AccountingStore:
    """A store that remembers which blocks were written, and evicts as the real one does: by the same `Books`.

    Args:
        keep_of: what the policy makes of an object; for good, since a replay has one policy.
    """

    def __init__(self, cap_bytes: int, keep_of: Callable[[Identity], Keep] = lambda identity: "normal") -> None:
        self.root = "replay"
        self._books = Books(cap_bytes)
        self._keep_of = keep_of
        self._objects: dict[ObjectKey, _Object] = {}

    def prepare(self, identity: Identity) -> ObjectKey:
        key = identity.key
        if key not in self._objects:
            self._objects[key] = _Object(identity.version.size)
            self._books.add(key, 0)
            self._books.classify(key, self._keep_of(identity))
        return key

    def renew(self, identity: Identity) -> ObjectKey:
        key = self.prepare(identity)
        self._objects[key] = _Object(identity.version.size)
        self._books.resize(key, 0)
        return key

    def hold(self, key: ObjectKey) -> bool:
        return self._books.hold(key) is not None

    def release(self, key: ObjectKey) -> None:
        self._books.release(key)

    def missing(self, key: ObjectKey, offset: int, length: int) -> list[range]:
        found = self._object(key)
        first, stop = offset // BLOCK, min(-(-(offset + length) // BLOCK), found.count)
        gaps, at = [], found.there.find(0, first, stop)
        while at >= 0:
            end = found.there.find(1, at, stop)
            end = stop if end < 0 else end
            gaps.append(range(at, end))
            at = found.there.find(0, end, stop)
        return gaps

    def write_blocks(self, key: ObjectKey, first: int, body: memoryview | bytes) -> None:
        found = self._object(key)
        count = -(-len(body) // BLOCK)
        self._books.hold(key)
        try:
            while not self._books.reserve(count * BLOCK):
                self._make_room()
            self._books.unreserve(count * BLOCK)
            fresh = found.there.count(0, first, first + count)
            found.there[first : first + count] = b"\1" * count
            found.present += fresh
            self._books.resize(key, found.present * BLOCK)
            self._books.wrote(key, range(first // SEGMENT_BLOCKS, (first + count - 1) // SEGMENT_BLOCKS + 1))
        finally:
            self._books.release(key)

    def read_blocks(self, key: ObjectKey, first: int, count: int, scratch: memoryview) -> int:
        absent = self._object(key).there.find(0, first, first + count)
        return count if absent < 0 else absent - first

    def drop_if_broken(self, key: ObjectKey, index: int) -> bool:
        return False

    def is_found(self, key: ObjectKey) -> bool:
        return True

    def needs_seal(self, key: ObjectKey) -> bool:
        return False

    def seal(self, key: ObjectKey) -> bool:
        return True

    def seal_many(self, keys: Sequence[ObjectKey]) -> None:
        return

    def _object(self, key: ObjectKey) -> _Object:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(key) from None

    def _make_room(self) -> None:
        victim = self._books.victim()
        if victim is not None:
            self._books.freed(self._books.remove(victim).used)
            del self._objects[victim]
            return
        oldest = self._books.oldest_segments()
        if not oldest:
            raise NoSpace(self.root, "the cache holds nothing that could go")
        key, segment = oldest[0]
        found, blocks = self._objects[key], slice(segment * SEGMENT_BLOCKS, (segment + 1) * SEGMENT_BLOCKS)
        found.present -= found.there.count(1, blocks.start, blocks.stop)
        found.there[blocks] = bytes(len(found.there[blocks]))
        self._books.resize(key, found.present * BLOCK)
        self._books.punched(key, segment)


def sites_of(lines: Mapping[SiteName, Line]) -> dict[SiteName, LineSite]:
    """Return a site for each line."""
    return {name: LineSite(name, line) for name, line in lines.items()}
