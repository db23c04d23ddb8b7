"""What copies that were made ahead are worth to this mount: what they served, and what the origin would have cost instead.

For each range that a copy served (of a copy on this host, which the kernel reads alone: for all of a file when it is
opened), the origin's time is what its line is measured to take for as many bytes. So that this
is measured while nobody reads from the origin any more, a range is read from there as a control when a copy first serves, and
every `CONTROL_S` as long as it does; `CONTROL_BYTES` at most, in background, and the bytes are thrown away.

Tasks: one for each control read, the mount's. What was counted is told every `TELL_S`; an agent that ends loses what it has
not told.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from vfs.clock import Clock
from vfs.errors import ForemountError
from vfs.extents.fair import Flow, Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.extents.requests import Served
from vfs.foresight.model import Event, FileCopy, ReplicaId, ReplicaReads, ReplicaRecord
from vfs.model import SiteName

log = logging.getLogger(__name__)
CONTROL_S = 60.0
CONTROL_BYTES = 1 << 20
TELL_S = 5.0


@dataclass(slots=True)
class _Copy:
    """One copy, and what was not told of it yet.

    Attributes:
        used: of `bytes`, those that were not read here before.
        opened: files of it that were opened here; their bytes are used once.
        origin: the site that it was copied from, once it has served.
        unpaid_bytes, unpaid_s, unpaid_count: of the ranges that are not set against the origin's time yet.
    """

    record: ReplicaRecord
    files: tuple[Identity, ...]
    bytes: int = 0
    used: int = 0
    opened: set[Identity] = field(default_factory=set)
    fallbacks: int = 0
    saved_s: float = 0.0
    unpaid_bytes: int = 0
    unpaid_s: float = 0.0
    unpaid_count: int = 0
    control_s: float | None = None
    origin: SiteName | None = None


class Benefit:
    """Counts by copy.

    Invariant: `_of` holds the files of exactly the copies in `_copies`.
    """

    def __init__(self, fetcher: Fetcher, clock: Clock, spawn: Callable[[Awaitable[None]], None]) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._spawn = spawn
        self._copies: dict[ReplicaId, _Copy] = {}
        self._of: dict[Identity, ReplicaId] = {}
        self._gone: list[_Copy] = []
        fetcher.on_served(self.served)

    def put(self, record: ReplicaRecord, files: Iterable[FileCopy]) -> None:
        """Count for a copy that is offered from now on."""
        self.remove(record.id)
        identities = tuple(Identity(record.site, file.at, file.version) for file in files)
        self._copies[record.id] = _Copy(record, identities)
        self._of.update(dict.fromkeys(identities, record.id))

    def remove(self, replica: ReplicaId) -> None:
        """Count no more; what was counted is told still."""
        gone = self._copies.pop(replica, None)
        if gone is not None:
            self._gone.append(gone)
            for identity in gone.files:
                if self._of.get(identity) == replica:  # else another copy has the same file
                    del self._of[identity]

    def served(self, served: Served) -> None:
        """Take in a range of an object that has copies."""
        copy = self._copies.get(self._of.get(served.copy, ReplicaId("")))
        if copy is None:
            return
        if served.fell_back:
            copy.fallbacks += 1
            return
        copy.bytes += served.length
        if served.copy not in copy.opened:  # what else a host has read it keeps, so it reads no byte of a copy twice
            copy.used += served.length
        if served.opened:
            copy.opened.add(served.copy)
        copy.unpaid_bytes += served.length
        copy.unpaid_s += served.seconds
        copy.unpaid_count += 1
        copy.origin = served.origin.site
        now_s = self._clock.monotonic_s()
        if copy.control_s is None or now_s - copy.control_s >= CONTROL_S:
            copy.control_s = now_s
            self._spawn(self._control(served))

    async def _control(self, served: Served) -> None:
        """Read a range from the origin, so that its line is measured."""
        length = min(served.length, CONTROL_BYTES)
        try:
            pieces = self._fetcher.read(served.origin, served.offset, length, Priority.BACKGROUND, flow=Flow("control"))
            async for _ in pieces:
                pass
        except ForemountError as exc:
            log.info("no control read of %s: %s", served.origin.path, exc)

    def told(self, mount: str) -> list[Event]:
        """Return what was counted since the last call, as events; each of them is given out once."""
        found = []
        for copy in (*self._copies.values(), *self._gone):
            self._pay(copy)
            if not copy.bytes and not copy.fallbacks:
                continue
            reads = ReplicaReads(
                hint=copy.record.hint,
                bytes_served=copy.bytes,
                bytes_used=copy.used,
                fallbacks=copy.fallbacks,
                saved_s=copy.saved_s,
            )
            found.append(Event(id=uuid.uuid4().hex, job=copy.record.job, what=reads, source=mount))
            copy.bytes = copy.used = copy.fallbacks = 0
            copy.saved_s = 0.0
        self._gone = []
        return found

    def _pay(self, copy: _Copy) -> None:
        """Set what was served against what the origin would have taken, as soon as that was measured."""
        if not copy.unpaid_count:
            return
        assert copy.origin is not None
        expected_s = self._fetcher.expected_s(copy.origin, copy.unpaid_bytes // copy.unpaid_count)
        if expected_s is None:
            return
        copy.saved_s += expected_s * copy.unpaid_count - copy.unpaid_s
        copy.unpaid_bytes = copy.unpaid_count = 0
        copy.unpaid_s = 0.0
