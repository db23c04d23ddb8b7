"""Has the samples of the coming steps prepared, and lets go of those that were read.

A group (step, rank) is prepared by one source: a node service, this host's own processes, or, where nothing is to be made of
its samples, by reading them ahead. Which groups is decided by how far the ranks are (`vfs/samples/progress.py`).

Tasks: one for each group that is under way, `GROUPS_MAX` at most; they end with their group, or when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from vfs.agent.samples.answers import Samples, ready_node, slot_path
from vfs.agent.samples.jobs import JobRun, SampleJobs
from vfs.backoff import doubled_s
from vfs.clock import Clock
from vfs.errors import ForemountError, InvalidFeed, Unavailable
from vfs.policy.written import Allowance
from vfs.samples import jobs, tree, wire
from vfs.samples.model import Form, Reason, Sample
from vfs.samples.spool import GroupKey, Ready, Spool

log = logging.getLogger(__name__)
GROUPS_MAX = 16
"""Under way at a time: eight ranks of a host with two steps each, so that a link is busy while a node makes the next."""
OUTCOMES_MIN, OUTCOMES_MAX, PROBE_STEPS = 5, 16, 8
_RETRY_LEAST_S, _RETRY_MOST_S = 0.2, 10.0
_LINGER_S = 2.0
"""How long the files of a group that is over are there yet: the worker opens what it was told of within milliseconds."""


class Source(Protocol):
    """Where groups come from."""

    def prepare(self, run: JobRun, step: int, rank: int, samples: Sequence[Sample]) -> AsyncGenerator[list[Ready], None]:
        """Yield the samples of a group as they get into the spool, in any order; some may never come.

        Raises:
            Unavailable: the source is lost; the group may be asked for again.
            ForemountError: nothing more can come.
        """
        ...

    def tell(self, run: JobRun) -> None:
        """A job went on; may be called often."""
        ...

    async def forget(self, run: JobRun) -> None:
        """A job has ended."""
        ...


class Preparing:
    """Starts and ends the work on groups.

    Args:
        source_of: what prepares a job's samples that have an operator; None: nothing does.
        allowance: what the policy lets a job's samples take.
        tell: the worker of `.jobs`.

    Attributes:
        _hour, _hour_bytes: what was prepared within the last hour, with the time, and how much that is.
        _outcomes: of each job, whether its last groups were read.

    Invariants: a group in `_tasks` is wanted; one in `_arrivals` is in `_tasks` and under way: its source is not lost; one in
    `_fruitless` is not tried until its job goes on.
    """

    def __init__(
        self,
        known: SampleJobs,
        samples: Samples,
        spool: Spool,
        writer: ThreadPoolExecutor,
        *,
        source_of: Callable[[JobRun], Source | None],
        tell: Callable[[wire.Placed | wire.Dropped], bool],
        allowance: Callable[[JobRun], Allowance],
        clock: Clock,
    ) -> None:
        self._allowance = allowance
        self._hour: deque[tuple[float, int]] = deque()
        self._hour_bytes = 0
        self._outcomes: dict[str, deque[bool]] = {}
        self._jobs = known
        self._samples = samples
        self._spool = spool
        self._writer = writer
        self._source_of = source_of
        self._tell = tell
        self._clock = clock
        self._raw = RawSource(samples, spool, writer)
        self._tasks: dict[GroupKey, asyncio.Task[None]] = {}
        self._arrivals: dict[GroupKey, asyncio.Event] = {}
        self._fruitless: set[GroupKey] = set()
        self._others: set[asyncio.Task[None]] = set()
        samples.on_entered = self.went_on
        samples.is_coming = self.is_coming
        samples.arrival = self.arrival

    async def __aenter__(self) -> Preparing:
        return self

    async def __aexit__(self, *raised: object) -> None:
        going = [*self._tasks.values(), *self._others]
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    def is_coming(self, run: JobRun, step: int, rank: int) -> bool:
        """Return whether more of a group is on its way."""
        return (run.name, step, rank) in self._arrivals

    async def arrival(self, run: JobRun, step: int, rank: int) -> None:
        """Return when the next samples of a group have come, or no more will."""
        event = self._arrivals.get((run.name, step, rank))
        if event is not None:
            await event.wait()

    def went_on(self, run: JobRun) -> None:
        """A rank of a job came to another step."""
        self._fruitless = {group for group in self._fruitless if group[0] != run.name}
        self.wake(run)

    def wake(self, run: JobRun) -> None:
        """Let go of what is over and begin what is wanted, as far as there is room."""
        self._let_go(run)
        source = self._source_of(run)
        if source is not None:
            source.tell(run)
        allowance = self._allowance(run)
        if not allowance.on:
            for group in [group for group in self._tasks if group[0] == run.name]:
                self._tasks[group].cancel()
            return
        most, probes_only = max(1, int(GROUPS_MAX * allowance.share)), self._missed(run, allowance)
        for step, rank in run.progress.wanted():
            if probes_only and step % PROBE_STEPS:
                continue
            group = run.name, step, rank
            here = self._spool.group(group)
            if group in self._tasks or group in self._fruitless or (here is not None and here.complete):
                continue
            if not self._spool.has_room() or self._is_spent(allowance):
                break
            if len(self._tasks) >= most and step > run.progress.ranks[rank]:
                continue  # what a rank reads now does not wait for what other jobs read later
            task = asyncio.ensure_future(self._prepare(run, step, rank))
            self._tasks[group] = task
            self._arrivals[group] = asyncio.Event()  # now: who had it begun by looking a sample up may wait for that one
            task.add_done_callback(functools.partial(self._ended, run, group))

    def _is_spent(self, allowance: Allowance) -> bool:
        """Return whether so much lies here, or was prepared within the hour, that nothing may be added."""
        now_s = self._clock.monotonic_s()
        while self._hour and self._hour[0][0] <= now_s - 3600.0:
            self._hour_bytes -= self._hour.popleft()[1]
        return self._spool.used >= allowance.size or self._hour_bytes >= allowance.hourly

    def _missed(self, run: JobRun, allowance: Allowance) -> bool:
        """Return whether so few groups were read that only one now and then is prepared, to see whether that has changed."""
        outcomes = self._outcomes.get(run.name, ())
        return len(outcomes) >= OUTCOMES_MIN and sum(outcomes) / len(outcomes) < allowance.stop

    def greet(self) -> None:
        """A worker has connected: tell it what is here."""
        self._spawn(self._place_all())

    async def stop(self, run: JobRun) -> None:
        """Let go of a job and all that is here of it."""
        for group in [group for group in self._tasks if group[0] == run.name]:
            self._tasks[group].cancel()
        source = self._source_of(run)
        if source is not None:
            await source.forget(run)
        self._outcomes.pop(run.name, None)
        directories = [_directory(key) for key, _ in self._spool.groups(run.name)]
        self._tell(wire.Dropped(directories))
        await asyncio.get_running_loop().run_in_executor(self._writer, self._spool.drop_job, run.name)

    async def _prepare(self, run: JobRun, step: int, rank: int) -> None:
        """Have one group prepared, again after its source was lost, until it is complete."""
        samples = await run.group(step, rank)
        group = run.name, step, rank
        with_operator = any(sample.operator for sample in samples)
        source = self._source_of(run) if with_operator else self._raw
        if not samples or source is None:  # a later step may not be written yet
            self._fruitless.add(group)
            return
        fact = run.fact(step, rank)
        fact.samples, fact.asked_s = len(samples), self._clock.monotonic_s()
        try:
            await self._prepare_samples(run, group, samples, source, with_operator=with_operator)
        except asyncio.CancelledError:
            # What was being written when the group went is entered all the same, in the writer's turn: it goes after it.
            await asyncio.get_running_loop().run_in_executor(self._writer, lambda: None)
            if run.progress.is_over(step, rank) and not run.job.keep and self._spool.take(group) is not None:
                self._spawn(self._remove([group]))
            raise
        self._spool.complete(group)
        fact.prepared_s = self._clock.monotonic_s()
        run.totals.prepared_groups += 1

    async def _prepare_samples(
        self, run: JobRun, group: GroupKey, samples: Sequence[Sample], source: Source, *, with_operator: bool
    ) -> None:
        for attempt in itertools.count(1):
            try:
                async for arrived in self._arriving(source, run, group, samples):
                    self._place(run, group, samples, arrived)
                break
            except Unavailable as exc:
                if with_operator:
                    run.trouble = Reason.NODE_LOST
                log.info("job %s step %s rank %s: %s", *group, exc)
            await asyncio.sleep(doubled_s(_RETRY_LEAST_S, _RETRY_MOST_S, attempt))
        run.trouble = Reason.LATE

    async def _arriving(
        self, source: Source, run: JobRun, group: GroupKey, samples: Sequence[Sample]
    ) -> AsyncIterator[list[Ready]]:
        """Yield what comes of a group; meanwhile it counts as coming."""
        self._arrivals.setdefault(group, asyncio.Event())
        try:
            async with contextlib.aclosing(source.prepare(run, group[1], group[2], samples)) as arriving:
                async for arrived in arriving:
                    yield arrived
                    event, self._arrivals[group] = self._arrivals[group], asyncio.Event()
                    event.set()
        finally:
            self._nothing_comes(group)

    def _nothing_comes(self, group: GroupKey) -> None:
        """Let go of those who wait for a group."""
        if (event := self._arrivals.pop(group, None)) is not None:
            event.set()

    def _place(self, run: JobRun, group: GroupKey, samples: Sequence[Sample], arrived: Sequence[Ready]) -> None:
        """Tell the worker of samples that are here."""
        size = sum(ready.size for ready in arrived)
        run.totals.prepared_bytes += size
        self._hour.append((self._clock.monotonic_s(), size))
        self._hour_bytes += size
        fact = run.fact(group[1], group[2])
        fact.size += size
        if fact.entered_s:  # its reader is there and will not ask for what is placed
            for ready in arrived:
                if ready.form is Form.TRANSFORMED and fact.give(ready.slot, None):
                    run.totals.ready += 1
        self._tell_placed(run, group, samples, arrived)

    def _tell_placed(self, run: JobRun, group: GroupKey, samples: Sequence[Sample], arrived: Sequence[Ready]) -> None:
        """Tell which samples have a form that is not going to change: with "local", raw bytes are not their last word."""
        by_slot = {sample.slot: sample for sample in samples}
        nodes = [
            ready_node(run, slot_path(run, by_slot[ready.slot], raw=False), by_slot[ready.slot], ready)
            for ready in arrived
            if ready.slot in by_slot
            and (ready.form is Form.TRANSFORMED or run.job.fallback != "local" or ready.reason is Reason.NO_OPERATOR)
        ]
        if nodes:
            self._tell(wire.Placed(_directory(group), nodes))

    async def _place_all(self) -> None:
        """Tell of all that is here, also of jobs that an agent before this one has prepared; what no job is left of goes."""
        for name in self._spool.jobs():
            try:
                run = await self._jobs.find(name)
                if run is None:
                    await asyncio.get_running_loop().run_in_executor(self._writer, self._spool.drop_job, name)
                    continue
                for key, group in list(self._spool.groups(name)):
                    if not group.over:
                        samples = await run.group(key[1], key[2])
                        self._tell_placed(run, key, samples, list(group.ready.values()))
            except ForemountError as exc:
                log.warning("job %s: what was prepared for it is not told: %s", name, exc)

    def _let_go(self, run: JobRun) -> None:
        """End the work on groups that are over, and drop them; also those that an agent before this one has left."""
        for (job, step, rank), task in self._tasks.items():
            if job == run.name and run.progress.is_over(step, rank):
                task.cancel()
        gone = []
        for key, group in list(self._spool.groups(run.name)):
            if group.over or not run.progress.is_over(key[1], key[2]):
                continue
            was_read = bool(run.fact(key[1], key[2]).entered_s)
            self._outcomes.setdefault(run.name, deque(maxlen=OUTCOMES_MAX)).append(was_read)
            if was_read:
                run.totals.used_bytes += group.size
            else:
                run.totals.unused_bytes += group.size
            if run.job.keep and was_read:
                group.over = True
                continue
            self._spool.take(key)
            gone.append(key)
        if gone:
            self._tell(wire.Dropped([_directory(key) for key in gone]))
            self._spawn(self._remove(gone))

    async def _remove(self, groups: Sequence[GroupKey]) -> None:
        """Remove files, once those who were just told of them have opened them."""
        await asyncio.sleep(_LINGER_S)
        for group in groups:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._spool.remove, group)

    def _ended(self, run: JobRun, group: GroupKey, done: asyncio.Task[None]) -> None:
        self._tasks.pop(group, None)
        self._nothing_comes(group)
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, ForemountError):
            if not isinstance(error, InvalidFeed):  # that one is noted by the job
                log.warning("job %s step %s rank %s is not prepared: %s", *group, error)
            self._spool.complete(group)
        elif error is not None:
            log.error("bug while preparing %s step %s rank %s", *group, exc_info=error)
            self._spool.complete(group)
        self.wake(run)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


class RawSource:
    """Reads samples ahead of which nothing is to be made."""

    def __init__(self, samples: Samples, spool: Spool, writer: ThreadPoolExecutor) -> None:
        self._samples = samples
        self._spool = spool
        self._writer = writer

    async def prepare(
        self, run: JobRun, step: int, rank: int, samples: Sequence[Sample]
    ) -> AsyncGenerator[list[Ready], None]:
        """Yield the samples as they are read."""
        for sample in samples:
            version = await self._samples.source(sample)
            key = await self._samples.raw_key(sample, version)
            body = await self._samples.raw_bytes(sample, version)
            extension = jobs.raw_extension(run.job, sample)
            ready = Ready(sample.slot, Form.RAW, extension, key, len(body), "", Reason.NO_OPERATOR)
            loop = asyncio.get_running_loop()
            yield [await loop.run_in_executor(self._writer, self._spool.keep, (run.name, step, rank), ready, body)]

    def tell(self, run: JobRun) -> None:
        """Nobody has to know."""

    async def forget(self, run: JobRun) -> None:
        """Nothing is kept."""


def _directory(group: GroupKey) -> str:
    job, step, rank = group
    return tree.path_of(tree.RankPlace(job, step, rank))
