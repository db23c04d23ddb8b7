"""Carries out what the queue decides: loads schedules, reads raw bytes, runs operators, and gives groups to who asks.

Tasks: one that looks at the host ten times a second and aborts, one for each job that loads the groups to come, and one for
each transform. A group's stream belongs to the request that asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from vfs.clock import Clock
from vfs.errors import ForemountError, InvalidFeed, NotFound, Stale, Unavailable
from vfs.model import Kind, LakePath, split
from vfs.samples import jobs
from vfs.samples.admission import Bounds, Load, seats, stop
from vfs.samples.cost import CostModel, Seen, codec_of
from vfs.samples.feeds.open import open_feed
from vfs.samples.feeds.protocol import Feed, Lake
from vfs.samples.model import Envelope, Reason, Sample
from vfs.samples.node.load import HostLoad
from vfs.samples.node.queue import Group, Item, Place, Queue, State
from vfs.samples.nodewire import Told
from vfs.samples.prepared import Failed, Prepared
from vfs.samples.preparing import Preparer, raw_envelope, read_raw

log = logging.getLogger(__name__)
_LOOK_S = 0.1
_EGRESS_LOOKS = 10
_ITEMS_MAX = 200_000
_READING_AHEAD = 2
"""Samples whose raw bytes are read while all processes are at work."""


@dataclass(slots=True)
class OpenJob:
    """A job and its schedule; `filling` loads its groups, `told` wakes it."""

    told_as: Told
    job: jobs.Job
    feed: Feed
    told: asyncio.Event = field(default_factory=asyncio.Event)
    filling: asyncio.Task[None] | None = None


class Conductor:
    """Everything that a node does, but for HTTP."""

    def __init__(self, lake: Lake, preparer: Preparer, bounds: Bounds, clock: Clock) -> None:
        self.queue = Queue(bounds)
        self.costs = CostModel()
        self.load = Load(1)
        self.faults: Counter[Reason] = Counter()
        self._lake = lake
        self._preparer = preparer
        self._clock = clock
        self._host = HostLoad(preparer.engine.cpu_s)
        self._open: dict[str, OpenJob] = {}
        self._running: dict[asyncio.Task[None], Item] = {}
        self._waiters: dict[Place, asyncio.Event] = {}
        self._charged: defaultdict[str, float] = defaultdict(float)
        self._room = asyncio.Condition()
        self._transforming = 0
        self._woken = asyncio.Event()
        self._sent = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work until the block ends."""
        looking = self._spawn(self._work())
        try:
            yield
        finally:
            looking.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # What is told and asked

    async def tell(self, name: str, told: Told) -> None:
        """Take in a job and how far it is.

        Raises:
            InvalidFeed: its document or its schedule can't be used.
        """
        known = self._open.get(name)
        where = told.declaration, told.text, told.directory
        if known is None or (known.told_as.declaration, known.told_as.text, known.told_as.directory) != where:
            opened = await self._opened(name, told)
            known = self._open.get(name, opened)
            if known is not opened:
                await self.forget(name)
            known = self._open[name] = opened
            known.filling = self._spawn(self._fill(name, known))
        job = known.job
        aborted = self.queue.tell(
            name,
            ahead=job.ahead,
            wait_s=float(job.deadline) if job.fallback == "wait" else 0.0,
            ranks=told.ranks,
            step=told.step,
            now_s=self._clock.monotonic_s(),
        )
        self._abort(aborted)
        known.told.set()
        self._woken.set()

    async def forget(self, name: str) -> None:
        """Let go of a job and all that was prepared for it. Nothing happens where it is not known."""
        known = self._open.pop(name, None)
        if known is not None and known.filling is not None:
            known.filling.cancel()
        self._abort(self.queue.forget(name))
        self._wake()

    async def group(self, place: Place) -> AsyncGenerator[tuple[Envelope, bytes], None]:
        """Yield each sample of a group once, as it gets ready or late; the last who asks for a group gets it.

        Raises:
            NotFound: the job was not told, or its schedule has no such group.
            Stale: somebody else asks for it now, or the job was forgotten.
            ForemountError: the raw bytes can't be read.
        """
        group = await self._known_group(place)
        self.queue.ask(place, stop(self.load, self.queue.bounds))
        if place in self._waiters:
            self._waiters[place].set()  # whoever asked before finds that it is not theirs any more
        woken = self._waiters[place] = asyncio.Event()
        self._woken.set()
        left = len(group.items)
        try:
            while left:
                if not group.outbox:
                    await woken.wait()
                    woken.clear()
                self._check_ours(place, group, woken)
                while group.outbox:
                    item = group.outbox.popleft()
                    envelope, body = await self._content(item)
                    yield envelope, body
                    self._check_ours(place, group, woken)
                    self._sent += envelope.size
                    self.queue.given(item)
                    left -= 1
        finally:
            if self._waiters.get(place) is woken:
                del self._waiters[place]
                self.queue.unask(place)
            self._woken.set()

    @property
    def running(self) -> int:
        """Return how many transforms are under way."""
        return len(self._running)

    # Loading

    async def _opened(self, name: str, told: Told) -> OpenJob:
        text, file, directory = told.text, name, told.directory
        if told.declaration:
            file, directory = told.declaration, LakePath(split(told.declaration)[0])
            entry = await self._lake.stat(told.declaration)
            if entry is None or entry.kind is not Kind.FILE or entry.version.size > jobs.DOCUMENT_BYTES_MAX:
                raise InvalidFeed(file, "is no document of a job")
            raw = await self._lake.read(told.declaration, entry.version, 0, entry.version.size)
            text = raw.decode("utf-8", "replace")
        job = jobs.parse(text, file, name)
        if job.name != name:
            raise InvalidFeed(file, f"names the job {job.name!r}, not {name!r}")
        return OpenJob(told, job, await open_feed(self._lake, job, directory))

    async def _fill(self, name: str, known: OpenJob) -> None:
        """Have the groups of the steps to come in the queue, whenever progress is told."""
        while True:
            await known.told.wait()
            known.told.clear()
            try:
                for step in self.queue.wanted_steps(name):
                    told_ranks = self.queue.jobs[name].ranks
                    for rank in await known.feed.ranks(step):
                        if not told_ranks or rank in told_ranks:
                            await self._add(known, Place(name, step, rank))
            except ForemountError as exc:
                log.warning("job %s: %s", name, exc)

    async def _known_group(self, place: Place) -> Group:
        known = self._open.get(place.job)
        if known is None:
            raise NotFound(place.job, "this node was not told of the job", "PUT it first")
        await self._add(known, place, asked=True)
        if place not in self.queue.groups:
            raise NotFound(f"{place.job}, step {place.step}, rank {place.rank}", "the schedule has no such group")
        return self.queue.groups[place]

    async def _add(self, known: OpenJob, place: Place, *, asked: bool = False) -> None:
        if place in self.queue.groups:
            return
        if not asked and sum(len(group.items) for group in self.queue.groups.values()) > _ITEMS_MAX:
            return
        samples = await known.feed.group(place.step, place.rank)
        if samples and place.job in self.queue.jobs:
            self.queue.add(place, [self._item(place, sample) for sample in samples])
            self._woken.set()

    def _item(self, place: Place, sample: Sample) -> Item:
        operator = self._preparer.operator_of(sample)
        if isinstance(operator, Failed):
            return Item(place, sample, 0.0, state=State.READY, outcome=operator)
        cost_s = self.costs.predict(_kind(sample), (sample.source, sample.offset), sample.raw_size)
        return Item(place, sample, cost_s, int(operator.declaration.output.bytes))

    # Working

    async def _work(self) -> None:
        """Look at the host, abort what must not run any more, start what may."""
        looked_s, sent = -_LOOK_S, 0
        egress = 0.0
        while True:
            now_s = self._clock.monotonic_s()
            if now_s - looked_s >= _LOOK_S:
                elapsed, looked_s = now_s - looked_s, now_s
                egress += ((self._sent - sent) / elapsed - egress) / _EGRESS_LOOKS
                sent = self._sent
                self.load = self._host.look(now_s, egress=egress)
                for name in self.queue.jobs:
                    self.queue.charge(name, self._charged.pop(name, 0.0), elapsed)
                if (reason := stop(self.load, self.queue.bounds)) is not None:
                    self._abort(self.queue.stop(reason))
                async with self._room:
                    self._room.notify_all()
            self._abort(self.queue.late(now_s))
            self._wake()
            self._start()
            wait_s = looked_s + _LOOK_S - now_s
            if (due_s := self.queue.next_due_s(now_s)) is not None:
                wait_s = min(wait_s, due_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._woken.wait()
            self._woken.clear()

    def _start(self) -> None:
        allowed = self._allowed()
        if not allowed:
            return
        counts = Counter(item.place.job for item in self._running.values())
        while len(self._running) < allowed + _READING_AHEAD:
            item = self.queue.next(self.load, running=counts)
            if item is None:
                return
            counts[item.place.job] += 1
            task = self._spawn(self._transform(item))
            self._running[task] = item
            task.add_done_callback(self._ended)

    async def _transform(self, item: Item) -> None:
        sample = item.sample
        try:
            raw = await read_raw(self._lake, sample)
            async with self._seat():
                outcome = await self._prepared(sample, raw)
        except ForemountError as exc:
            outcome = Failed(Reason.FAILED, str(exc))
        if isinstance(outcome, Prepared):
            seen = Seen(sample.raw_size, outcome.pixels, outcome.seconds, outcome.cpu_s)
            self.costs.learn(_kind(sample), (sample.source, sample.offset), seen)
        else:
            self.faults[outcome.reason] += 1
            log.info("%s: %s: %s", sample.sample_id, outcome.reason, outcome.text)
        self._charged[item.place.job] += outcome.cpu_s
        self.queue.done(item, outcome, self._clock.monotonic_s())
        self._wake()

    async def _prepared(self, sample: Sample, raw: bytes) -> Prepared | Failed:
        try:
            return await self._preparer.prepare(sample, raw)
        except Unavailable as exc:  # the engine lost a worker: the raw bytes are here
            return Failed(Reason.NODE_LOST, str(exc))

    @contextlib.asynccontextmanager
    async def _seat(self) -> AsyncIterator[None]:
        """Hold one of the seats that the host allows at the moment."""
        async with self._room:
            await self._room.wait_for(lambda: self._transforming < self._allowed())
            self._transforming += 1
        try:
            yield
        finally:
            self._transforming -= 1
            async with self._room:
                self._room.notify_all()

    def _allowed(self) -> int:
        return seats(self.load, self.queue.bounds, self._preparer.engine.seats)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._woken.set()

    def _abort(self, items: list[Item]) -> None:
        if not items:
            return
        aborted = set(map(id, items))
        for task, item in list(self._running.items()):
            if id(item) in aborted:
                task.cancel()

    async def _content(self, item: Item) -> tuple[Envelope, bytes]:
        if isinstance(item.outcome, Prepared):
            return item.outcome.envelope, item.outcome.body
        assert isinstance(item.outcome, Failed)
        raw = await read_raw(self._lake, item.sample)
        return raw_envelope(item.sample, raw, item.outcome.reason), raw

    def _check_ours(self, place: Place, group: Group, woken: asyncio.Event) -> None:
        if self.queue.groups.get(place) is not group or self._waiters.get(place) is not woken:
            raise Stale(f"{place.job}, step {place.step}, rank {place.rank}", "is not for this request any more")

    def _wake(self) -> None:
        """Wake the streams that have something to send, or whose group is gone."""
        for place, woken in self._waiters.items():
            group = self.queue.groups.get(place)
            if group is None or group.outbox:
                woken.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug in a task of the node", exc_info=error)


def _kind(sample: Sample) -> tuple[str, str, str]:
    return sample.operator, sample.params, codec_of(sample.source)
