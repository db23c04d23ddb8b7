"""What is being fetched of one object, and who waits for it.

Runs on the agent's loop; starts no task and does no I/O. All of it is atomic but `Job.reached`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vfs.errors import ForemountError
from vfs.extents.blocks import Blocks
from vfs.extents.budget import Ticket
from vfs.extents.fair import Priority
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.placement import Copy, Serving
from vfs.foresight.transfers import place_in_ranges
from vfs.model import ObjectKey
from vfs.usage import Cause


@dataclass(slots=True, eq=False)
class Job:
    """One fetch of the blocks `[first, stop)`. It belongs to the service: callers come and go.

    Attributes:
        done: the first block that is not written yet; only grows.
        priority: of the most urgent caller so far.
        kept: it is fetched though nobody waits: a prefetch.
        waiting: callers in `reached`, or about to be.
        ticket: what it waits for at this moment.
        tried: requests sent to each replica.
        error: why it ended before `stop`.
        sent: its blocks are being asked for, or were.
        ended: nothing more will come of it.
        phases: when it began to wait for what.
        hurry: called when somebody begins to wait for blocks.
        task: that runs it, for cancelling.
    """

    first: int
    stop: int
    priority: Priority
    kept: bool = False
    done: int = -1
    waiting: int = 0
    ticket: Ticket | None = None
    tried: Counter[Identity] = field(default_factory=Counter)
    error: ForemountError | None = None
    sent: bool = False
    ended: bool = False
    task: asyncio.Task[None] | None = None
    phases: list[tuple[float, Cause]] = field(default_factory=list)
    hurry: Callable[[], None] = lambda: None
    _wakeups: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.done = self.first

    @property
    def wanted(self) -> bool:
        return self.kept or self.waiting > 0

    def enter(self, cause: Cause, now_s: float) -> None:
        """Note what it waits for from now on."""
        if not self.phases or self.phases[-1][1] is not cause:
            self.phases.append((now_s, cause))

    def join(self, priority: Priority) -> None:
        """Let a caller of this priority have a part of it."""
        if priority < self.priority:
            self.priority = priority
            if self.ticket is not None:
                self.ticket.raise_to(priority)

    async def reached(self, stop: int) -> None:
        """Wait until the blocks before `stop` are written.

        Raises:
            ForemountError: they won't be.

        Cancellation: the job goes on.
        """
        while self.done < stop and not self.ended:
            wakeup = asyncio.get_running_loop().create_future()
            self._wakeups.append((stop, wakeup))
            self.hurry()
            await wakeup
        if self.done < stop and self.error is not None:
            raise self.error

    def awaited(self, stop: int) -> bool:
        """Return whether somebody waits for blocks that all lie before `stop`."""
        return any(each <= stop for each, _ in self._wakeups)

    def advance(self, done: int) -> None:
        """Note that the blocks before `done` are written."""
        self.done = max(self.done, done)
        self._wake(self.done)

    def end(self, error: ForemountError | None) -> None:
        """Note that no more blocks will come."""
        self.error = error
        self.ended = True
        self._wake(self.stop)

    def _wake(self, done: int) -> None:
        still = []
        for stop, wakeup in self._wakeups:
            if stop > done:
                still.append((stop, wakeup))
            elif not wakeup.done():
                wakeup.set_result(None)
        self._wakeups = still


@dataclass(slots=True, eq=False)
class FetchedObject:
    """One version of an object that somebody has open, or that is being fetched.

    Attributes:
        identity: as the origin states it; `key` follows from it.
        sources: where its bytes can be had; those that have lost it are struck out.
        copies: of the sources, those that were made for readers to come.
        serving: which of them is asked, by the policy of whoever opened it last.
        home: the store that its blocks go to, and which readers are told.
        holding: whether `home` keeps it from being evicted for us.
        holds: callers that need it to stay, those in `ensure` included.
        jobs: going on; their `[done, stop)` don't overlap.
    """

    identity: Identity
    key: ObjectKey
    sources: list[Identity]
    home: Blocks
    copies: dict[Identity, Copy] = field(default_factory=dict)
    serving: Serving = field(default_factory=Serving)
    holding: bool = False
    holds: int = 0
    jobs: list[Job] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.identity.version.size

    def add_sources(self, replicas: Iterable[Identity]) -> None:
        """Add replicas that are not known yet."""
        self.sources += [each for each in replicas if each not in self.sources]

    def add_copies(self, copies: Iterable[Copy]) -> None:
        """Add copies, or what is known of them now."""
        for copy in copies:
            self.copies[copy.identity] = copy
            self.add_sources([copy.identity])

    def place(self, source: Identity, offset: int, length: int) -> int | None:
        """Return where bytes of the object lie at a source; None: it does not hold them, or not in one piece."""
        copy = self.copies.get(source)
        return offset if copy is None else place_in_ranges(copy.ranges, offset, length)

    def partial(self) -> list[range]:
        """Return the blocks that some sources hold and others do not, as disjoint ranges per copy."""
        found = (range_ for copy in self.copies.values() for range_ in copy.ranges)
        return [range(start // BLOCK, -(-(start + length) // BLOCK)) for start, length in found]

    def job_at(self, block: int) -> Job | None:
        """Return the job that is going to bring this block."""
        return next((job for job in self.jobs if job.done <= block < job.stop), None)

    def free_until(self, block: int, stop: int) -> int:
        """Return where the next job after `block` begins, `stop` at most."""
        return min((job.done for job in self.jobs if block < job.done < stop), default=stop)

    def overlaps(self, blocks: range) -> bool:
        """Return whether some of the blocks are on their way."""
        return any(job.done < blocks.stop and blocks.start < job.stop for job in self.jobs)

    def absorb(self, job: Job, source: Identity, blocks_max: int) -> None:
        """Let a job that is about to be sent take over the jobs right behind it that wait: one request in place of many.

        Their callers are woken and join this one.
        """
        while True:
            behind = next((other for other in self.jobs if other.first == job.stop and not other.sent), None)
            if behind is None or behind.priority > job.priority or behind.stop - job.done > blocks_max:
                return
            if self.place(source, job.done * BLOCK, min(behind.stop * BLOCK, self.size) - job.done * BLOCK) is None:
                return
            job.stop = behind.stop
            job.kept |= behind.kept
            self.jobs.remove(behind)
            behind.end(None)
