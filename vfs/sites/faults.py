"""A wrapper around any site that injects scripted faults and counts calls and bytes.

Nothing is random and nothing sleeps: a fault strikes the n-th call of a verb, a stall lasts until the test lets go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from vfs.errors import ForemountError, Stale, Unavailable
from vfs.model import Entry, Kind, SiteName, SitePath, Version
from vfs.sites.protocol import Piece, Site

Verb = Literal["stat", "list", "read"]


@dataclass(frozen=True, slots=True)
class Fail:
    """The call raises before anything else happens."""

    error: ForemountError


@dataclass(frozen=True, slots=True)
class Stall:
    """The call waits until the gate is set, then goes on.

    Attributes:
        after: bytes of a read that are yielded before it stalls; other verbs stall at once.
        reached: set when a call has begun to wait.
    """

    gate: asyncio.Event
    after: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self) -> None:
        """Wait at the gate."""
        self.reached.set()
        await self.gate.wait()


@dataclass(frozen=True, slots=True)
class Cut:
    """A read yields `after` bytes, then the connection is gone."""

    after: int
    error: ForemountError = field(default_factory=lambda: Unavailable("faults", "the connection was cut"))


@dataclass(frozen=True, slots=True)
class WrongLength:
    """A read yields `delta` bytes more than asked (fewer where negative) and no error: a site that breaks its contract."""

    delta: int


@dataclass(frozen=True, slots=True)
class ChangedEtag:
    """The object seems to have moved on: `stat` and `list` show this etag, a read raises Stale."""

    etag: str


@dataclass(frozen=True, slots=True)
class Delay:
    """The call waits for `wait` first: a sleep of a benchmark, an event of a test."""

    wait: Callable[[], Awaitable[object]]


Fault = Fail | Stall | Cut | WrongLength | ChangedEtag | Delay


@dataclass(slots=True)
class _Rule:
    """Which calls a fault strikes: the `first`-th to the `last`-th (from 1) of this verb and path.

    Attributes:
        path: None for every path.
        seen: matching calls so far.
    """

    verb: Verb
    fault: Fault
    first: int
    last: int
    path: SitePath | None
    seen: int = 0

    def strikes(self, verb: Verb, path: SitePath) -> bool:
        """Count a call; return whether the fault strikes it."""
        if verb != self.verb or self.path not in (None, path):
            return False
        self.seen += 1
        return self.first <= self.seen <= self.last


class FaultySite:
    """Passes calls on to another site, unless a rule says otherwise.

    Attributes:
        calls: by verb.
        bytes: yielded by reads.
        reads: (path, offset, length) of every read, in order.
    """

    def __init__(self, inner: Site) -> None:
        self._inner = inner
        self._rules: list[_Rule] = []
        self.calls: Counter[str] = Counter()
        self.bytes = 0
        self.reads: list[tuple[SitePath, int, int]] = []

    @property
    def name(self) -> SiteName:
        return self._inner.name

    def __repr__(self) -> str:
        return f"FaultySite({self._inner!r})"

    def inject(self, verb: Verb, fault: Fault, *, at: int = 1, times: int = 1, path: SitePath | None = None) -> None:
        """Let the fault strike `times` calls of the verb, beginning with the `at`-th from now (1: the next).

        Args:
            path: counts and strikes only calls for this path.
        """
        self._rules.append(_Rule(verb, fault, at, at + times - 1, path))

    def heal(self) -> None:
        """Remove all faults; calls that stall already go on waiting for their gate."""
        self._rules.clear()

    async def stat(self, path: SitePath) -> Entry:
        fault = await self._begin("stat", path)
        return _shown(await self._inner.stat(path), fault)

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        fault = await self._begin("list", path)
        async for page in self._inner.list(path):
            yield [_shown(entry, fault) for entry in page]

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        self.reads.append((path, offset, length))
        fault = await self._begin("read", path)
        if isinstance(fault, ChangedEtag):
            raise Stale(f"{self.name}:{path}")
        async for piece in _disturbed(self._inner.read(path, version, offset, length), fault, length):
            self.bytes += len(piece)
            yield piece

    async def close(self) -> None:
        await self._inner.close()

    async def _begin(self, verb: Verb, path: SitePath) -> Fault | None:
        """Count a call and let its fault strike as far as that is done before the call; return the fault."""
        self.calls[verb] += 1
        striking = [rule.fault for rule in self._rules if rule.strikes(verb, path)]
        fault = striking[0] if striking else None
        match fault:
            case Fail(error):
                raise error
            case Delay(wait):
                await wait()
            case Stall(after=0):
                await fault.hold()
        return fault


async def _disturbed(pieces: AsyncIterator[Piece], fault: Fault | None, length: int) -> AsyncIterator[Piece]:
    """Yield the pieces up to where the fault strikes, and what it lets through after that."""
    match fault:
        case Stall(after=after) if after:
            position = after
        case Cut(after=after):
            position = after
        case WrongLength(delta) if delta < 0:
            position = length + delta
        case _:
            position = length
    passed = 0
    async for piece in pieces:
        before = memoryview(piece)[: max(0, position - passed)]
        rest = memoryview(piece)[len(before) :]
        passed += len(piece)
        if before:
            yield before
        if passed < position or not (rest or passed == position):
            continue
        match fault:
            case Cut():
                raise fault.error
            case WrongLength(delta) if delta < 0:
                return
            case Stall() if not fault.gate.is_set():
                await fault.hold()
        if rest:
            yield rest
    if isinstance(fault, WrongLength) and fault.delta > 0:
        yield b"?" * fault.delta


def _shown(entry: Entry, fault: Fault | None) -> Entry:
    """Return the entry with another etag if the fault wants one."""
    if not isinstance(fault, ChangedEtag) or entry.kind is not Kind.FILE:
        return entry
    return msgspec.structs.replace(entry, version=msgspec.structs.replace(entry.version, etag=fault.etag))
