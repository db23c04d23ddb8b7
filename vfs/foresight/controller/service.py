"""One controller of several: it waits until it leads, and then does the work of all.

Flow of the leader: everything is read once; a watch says what changes from then on. An event that was accepted is taken in; a
hint gets its replicas; a replica that something has happened to is brought further until nothing can be done, the most urgent
first, at most `WORKERS` at a time and urgent ones beyond that. A replica whose hint goes while it is being copied is stopped.

Tasks: the watch, the intake, the clockwork that looks again at what waits, and one for each replica that is at work.
Memory: the hints and four facts of each replica, not their files: some 350 bytes for a replica. Python's collector goes
through none of it (structs without `gc`, tuples of text): over a million that takes 2 s, in which nothing else runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec

from vfs.backoff import doubled_s
from vfs.clock import Clock
from vfs.errors import ForemountError
from vfs.foresight import keys
from vfs.foresight.controller.deletions import Sweep, deletion_of
from vfs.foresight.controller.intake import Intake
from vfs.foresight.controller.leading import Fenced, LostLead, leading
from vfs.foresight.controller.reconcile import QUOTA, Reconciler
from vfs.foresight.controller.spending import Spending
from vfs.foresight.execution import Executor
from vfs.foresight.jobs import JobState
from vfs.foresight.model import FileCopy, Hint, HintId, Mechanism, Phase, ReplicaId, ReplicaRecord
from vfs.foresight.oversight import Free, Oversight
from vfs.foresight.placing import Place
from vfs.foresight.plan import Origin, Step
from vfs.foresight.priority import priority
from vfs.foresight.stores.protocol import Change, Compacted, Delete, Store, every, pages
from vfs.model import SiteName

log = logging.getLogger(__name__)
WORKERS = 256
"""Replicas at work; the measured number of transfers at a time on one link is 208 (PROBLEM.md A1)."""
LOOK_S = 1.0
IN_A_TURN = 500
"""Records that are gone through before others have their turn: some ms, of the 3.5 s after which the lead is given up."""
RETRY_S = 1.0
RETRY_S_MAX = 300.0
ADMITTED_AT_ONCE = 64
AGAIN_S = 30.0
"""After which a copy that may not be dropped is looked at again: the origin may answer by then."""
_URGENT = 1.0
_SETTLED = (Phase.PUBLISHED, Phase.REFUSED)


class _Known(msgspec.Struct, kw_only=True, gc=False):
    """What is remembered of a replica: of its record, these fields alone are decoded."""

    id: ReplicaId
    hint: HintId
    site: SiteName
    mechanism: Mechanism
    phase: Phase
    bytes: int = 0


class Controller:
    """Runs until it is cancelled; see `run`.

    Args:
        oversight: the policy.
        secrets: the first one signs records of deletion.

    Attributes:
        leads: now.
        ready: it leads and has read all that there is.
        steps: that were carried out, by name; for figures.
        used: bytes of copies, by site and mechanism.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        clock: Clock,
        *,
        name: str,
        places: Callable[[Hint], Awaitable[Sequence[Place]]],
        origin: Callable[[ReplicaRecord, Sequence[FileCopy]], Awaitable[Origin]],
        oversight: Oversight | None = None,
        secrets: Mapping[str, bytes] | None = None,
    ) -> None:
        self.store = store
        self.secrets = secrets or {}
        self._oversight = oversight or Free()
        self.name = name
        self._executor = executor
        self._clock = clock
        self._places = places
        self._origin = origin
        self.leads = self.ready = False
        self.steps: dict[str, int] = {}
        self.used: Counter[tuple[SiteName, Mechanism]] = Counter()

    async def run(self) -> None:
        """Lead whenever nobody else does."""
        attempts = 0
        while True:
            try:
                async with leading(self.store, self.name, self._clock) as (fenced, keeping):
                    self.leads, attempts = True, 0
                    await self._lead(fenced, keeping)
            except ForemountError as exc:
                attempts += 1
                log.warning("%s does not lead: %s", self.name, exc)
                await asyncio.sleep(doubled_s(RETRY_S, RETRY_S_MAX, attempts))
            except Exception:
                attempts += 1
                log.exception("bug: %s gives up the lead and begins anew", self.name)
                await asyncio.sleep(doubled_s(RETRY_S, RETRY_S_MAX, attempts))
            finally:
                self.leads = self.ready = False

    async def _lead(self, fenced: Fenced, keeping: asyncio.Task[None]) -> None:
        work = asyncio.ensure_future(_Lead(self, fenced).run())
        try:
            done, _ = await asyncio.wait([work, keeping], return_when=asyncio.FIRST_COMPLETED)
            if work in done:
                await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


class _Lead:
    """One term of a leader.

    Attributes:
        _hints: all that are open.
        _replicas: all there are.
        _of: replicas of each hint.
        _checkpoints: hints for each checkpoint, by its name in keys.
        _ready: replicas to be looked at: (-priority, number, id); `_listed` are those in it.
        _running: replicas at work, with their tasks; `_again` are those to be looked at once more when they are done.
        _later: (when, id) of those that wait for a time.
        _new_hints: that get their replicas: (whether they had some already, number, hint), those without first.
    """

    def __init__(self, controller: Controller, store: Fenced) -> None:
        self._controller = controller
        self._store = store
        self._clock = controller._clock
        self._oversight = controller._oversight
        self._rules = self._oversight.version
        self._intake = Intake(store, self._clock, self._oversight.stop_below, controller.name)
        self._spending = Spending(store, self._clock)
        self._reconciler = Reconciler(
            store,
            controller._executor,
            self._clock,
            origin=controller._origin,
            oversight=self._oversight,
            room=self._room,
            copied=lambda replica, size: self._spending.note(replica.mechanism, size),
            proof=functools.partial(deletion_of, by=controller.name, secrets=controller.secrets),
        )
        self._sweep = Sweep(store, self._clock, controller._origin)
        self._hints: dict[HintId, Hint] = {}
        self._replicas: dict[ReplicaId, _Known] = {}
        self._of: dict[HintId, tuple[ReplicaId, ...]] = {}
        self._checkpoints: dict[str, tuple[HintId, ...]] = {}
        self._ready: list[tuple[float, int, ReplicaId]] = []
        self._listed: set[ReplicaId] = set()
        self._running: dict[ReplicaId, asyncio.Task[None]] = {}
        self._again: set[ReplicaId] = set()
        self._later: list[tuple[float, ReplicaId]] = []
        self._failed: dict[ReplicaId, int] = {}
        self._numbers = itertools.count()
        self._events = asyncio.Event()
        self._work = asyncio.Event()
        self._dispatching = asyncio.Event()
        self._new_hints: list[tuple[bool, int, Hint]] = []

    async def run(self) -> None:
        """Work until the lead is lost or the store fails."""
        try:
            async with asyncio.TaskGroup() as group:
                revision = await self._read_all()
                group.create_task(self._follow(revision))
                group.create_task(self._take_events())
                group.create_task(self._admit())
                group.create_task(self._dispatch(group))
                group.create_task(self._look_again())
        except* Compacted:
            log.info("%s fell behind the changes and reads everything again", self._controller.name)
        except* ForemountError as failed:
            raise failed.exceptions[0] from failed

    async def _read_all(self) -> int:
        begun_s = self._clock.monotonic_s()
        self._controller.used.clear()
        revision = None
        async for page in pages(self._store, keys.HINTS):  # in pieces, so that the lease is renewed meanwhile
            revision = page.revision if revision is None else revision
            for item in page.items:
                self._hint_changed(keys.decode(item.value, Hint))
        async for page in pages(self._store, keys.REPLICAS):
            for item in page.items:
                self._replica_changed(keys.decode(item.value, _Known))
        assert revision is not None
        self._new_hints = [(hint.id in self._of, number, hint) for _, number, hint in self._new_hints]
        heapq.heapify(self._new_hints)
        await self._spending.read()
        await self._end_hints()
        self._events.set()
        self._controller.ready = True
        took_s = self._clock.monotonic_s() - begun_s
        log.info(
            "%s knows %s hints and %s replicas after %.2f s",
            self._controller.name,
            len(self._hints),
            len(self._replicas),
            took_s,
        )
        return revision

    async def _end_hints(self) -> None:
        """Note the hints whose time ran out while nobody led."""
        for item in (await every(self._store, keys.JOBS))[0]:
            job: JobState = keys.decode(item.value, JobState)
            for hint in job.hints:
                if hint.id not in self._hints:
                    await self._intake.hint_ended(job.job, hint.id)

    # --- what changes ---------------------------------------------------------------------------------------------

    async def _follow(self, revision: int) -> None:
        async for changes in self._store.watch("", revision):
            for index, change in enumerate(changes, 1):
                await self._changed(change)
                if index % IN_A_TURN == 0:
                    await asyncio.sleep(0)

    async def _changed(self, change: Change) -> None:
        room, _, rest = change.key.partition("/")
        match room:
            case "inbox" if change.value is not None:
                self._events.set()
            case "hints" if change.value is not None:
                self._hint_changed(keys.decode(change.value, Hint))
            case "hints":
                await self._hint_gone(HintId(rest))
            case "replicas" if change.value is not None:
                self._replica_changed(keys.decode(change.value, _Known))
            case "replicas":
                self._forget(ReplicaId(rest))
            case "checkpoints" | "files":
                self._checkpoint_changed(rest.partition("/")[0])
                if room == "checkpoints":
                    self._place_anew(rest)
            case "open" | "lives" if change.value is None:
                self._look(ReplicaId(rest.partition("/")[0]))
            case "spent":
                self._spending.changed(change)
            case "switches":
                for index, (replica, known) in enumerate(list(self._replicas.items()), 1):
                    if known.mechanism == rest:
                        self._stop(replica)
                    if index % IN_A_TURN == 0:
                        await asyncio.sleep(0)

    def _hint_changed(self, hint: Hint) -> None:
        self._hints[hint.id] = hint
        checkpoint = _checkpoint(hint)
        self._checkpoints[checkpoint] = _with(self._checkpoints.get(checkpoint, ()), hint.id)
        self._to_be_placed(hint)
        for replica in self._of.get(hint.id, ()):
            self._look(replica)

    async def _hint_gone(self, name: HintId) -> None:
        hint = self._hints.pop(name, None)
        if hint is None:
            return
        checkpoint = _checkpoint(hint)
        self._checkpoints[checkpoint] = tuple(each for each in self._checkpoints[checkpoint] if each != name)
        if not self._checkpoints[checkpoint]:
            del self._checkpoints[checkpoint]
        for replica in self._of.get(name, ()):
            self._stop(replica)
        await self._intake.hint_ended(hint.job, name)

    def _replica_changed(self, now: _Known) -> None:
        before = self._replicas.get(now.id)
        hint = self._hints.get(now.hint)
        if hint is not None:
            now.hint = hint.id  # one string for all copies of a hint, and of a site
        now.site = SiteName(sys.intern(now.site))
        self._replicas[now.id] = now
        self._count(before, -1)
        self._count(now, 1)
        if before is None:
            self._of[now.hint] = (*self._of.get(now.hint, ()), now.id)
            if hint is None or now.phase not in _SETTLED:
                self._look(now.id)

    def _forget(self, replica: ReplicaId) -> None:
        known = self._replicas.pop(replica, None)
        self._count(known, -1)
        self._failed.pop(replica, None)
        if known is not None:
            self._of[known.hint] = tuple(each for each in self._of[known.hint] if each != replica)
            if not self._of[known.hint]:
                del self._of[known.hint]
            if known.hint in self._hints:
                self._to_be_placed(self._hints[known.hint])

    def _count(self, known: _Known | None, times: int) -> None:
        if known is not None and known.bytes:
            self._controller.used[known.site, known.mechanism] += times * known.bytes

    def _checkpoint_changed(self, name: str) -> None:
        for hint in self._checkpoints.get(name, ()):
            for replica in self._of.get(hint, ()):
                self._look(replica)

    def _place_anew(self, name: str) -> None:
        """Place the hints of a checkpoint that wait for it to be known: what is hot lies in its files."""
        for hint in self._checkpoints.get(name, ()):
            if self._hints[hint].world_size and hint not in self._of:
                self._to_be_placed(self._hints[hint])

    def _stop(self, replica: ReplicaId) -> None:
        """Break off what is being done for a replica, and look at it anew: what is still wanted goes on where it was."""
        if replica in self._running:
            self._running[replica].cancel()
        self._look(replica)

    async def _reconsider(self) -> None:
        """The rules are others: what they refused is asked again, what they forbid now is stopped and goes."""
        log.info("%s asks everything again: rules %s are in force", self._controller.name, self._rules)
        async for page in pages(self._store, keys.REPLICAS):
            for item in page.items:
                record: ReplicaRecord = keys.decode(item.value, ReplicaRecord)
                if record.phase is Phase.REFUSED:
                    await self._store.write([Delete(item.key)], expect={item.key: item.revision})
                elif self._oversight.forbids(record):
                    self._stop(record.id)
                else:
                    self._look(record.id)

    def _room(self, replica: ReplicaRecord) -> tuple[int, str]:
        return self._oversight.room(replica, self._controller.used, self._spending.within_hour(replica.mechanism))

    # --- the work -------------------------------------------------------------------------------------------------

    async def _take_events(self) -> None:
        while True:
            await self._events.wait()
            self._events.clear()
            while await self._intake.take_in():
                pass

    async def _admit(self) -> None:
        """Give each new hint its replicas; after a restart, when all are new, those first that have none."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._new_hints:
                count = min(ADMITTED_AT_ONCE, len(self._new_hints))
                await asyncio.gather(*(self._place(heapq.heappop(self._new_hints)[2]) for _ in range(count)))
                await asyncio.sleep(0)

    def _to_be_placed(self, hint: Hint) -> None:
        heapq.heappush(self._new_hints, (hint.id in self._of, next(self._numbers), hint))
        self._work.set()

    async def _place(self, hint: Hint) -> None:
        if self._hints.get(hint.id) is hint and not hint.shadow:
            await self._reconciler.admit(hint, await self._controller._places(hint), known=self._replicas)

    def _look(self, replica: ReplicaId) -> None:
        """Have a replica looked at: now, or once more when who is at it is done."""
        if replica in self._running:
            self._again.add(replica)
            self._reconciler.more(replica)
        elif replica in self._replicas and replica not in self._listed:
            self._listed.add(replica)
            hint = self._hints.get(self._replicas[replica].hint)
            urgency = priority(hint.urgency) * hint.confidence if hint is not None else 0.0
            heapq.heappush(self._ready, (-urgency, next(self._numbers), replica))
            self._dispatching.set()

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        """Put the most urgent replicas to work: so many at a time, and those that are urgent beyond that."""
        while True:
            await self._dispatching.wait()
            self._dispatching.clear()
            while self._ready and (len(self._running) < WORKERS or -self._ready[0][0] >= _URGENT * 0.5):
                _, _, replica = heapq.heappop(self._ready)
                self._listed.discard(replica)
                if replica in self._replicas:
                    task = group.create_task(self._bring_further(replica))
                    self._running[replica] = task
                    task.add_done_callback(functools.partial(self._done, replica))

    def _done(self, replica: ReplicaId, _: asyncio.Task[None]) -> None:
        self._running.pop(replica, None)
        if replica in self._again:
            self._again.discard(replica)
            self._look(replica)
        self._dispatching.set()

    async def _bring_further(self, replica: ReplicaId) -> None:
        """Carry out steps until there is nothing to do now. Cancelled where its hint is gone: the next look takes it away."""
        try:
            while True:
                taken = await self._reconciler.step(replica)
                self._controller.steps[taken.step] = self._controller.steps.get(taken.step, 0) + 1
                self._failed.pop(replica, None)
                if taken.step is Step.WAIT:
                    if taken.why.startswith(QUOTA):
                        heapq.heappush(self._later, (self._clock.monotonic_s() + AGAIN_S, replica))
                    break
        except LostLead:
            raise
        except ForemountError as exc:
            attempts = self._failed[replica] = self._failed.get(replica, 0) + 1
            wait_s = doubled_s(RETRY_S, RETRY_S_MAX, attempts)
            log.warning("replica %s: %s; tried again in %.0f s", replica, exc, wait_s)
            heapq.heappush(self._later, (self._clock.monotonic_s() + wait_s, replica))
            return
        rests_s = self._reconciler.waits_s(replica, AGAIN_S)
        if rests_s is not None:
            heapq.heappush(self._later, (self._clock.monotonic_s() + rests_s, replica))

    async def _look_again(self) -> None:
        """Look at what waits for a time, and at events that wait for one before them."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = self._clock.monotonic_s()
            while self._later and self._later[0][0] <= now_s:
                self._look(heapq.heappop(self._later)[1])
            if self._intake.waiting:
                self._events.set()
            await self._spending.flush()
            await self._sweep.look(self._replicas)
            if self._rules != self._oversight.version:
                self._rules = self._oversight.version
                await self._reconsider()


def _checkpoint(hint: Hint) -> str:
    """Return the name that keys have for the checkpoint of a hint."""
    return keys.checkpoint_key(hint.path).partition("/")[2]


def _with(names: tuple[HintId, ...], name: HintId) -> tuple[HintId, ...]:
    return names if name in names else (*names, name)


@contextlib.asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[Controller]:
    """Run a controller until the block ends."""
    task = asyncio.ensure_future(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
