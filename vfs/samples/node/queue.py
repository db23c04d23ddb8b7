"""The consumer queue: what to transform next, what is ready, what has to go out raw. Events in, decisions out.

Pure: no I/O, no clock. Time is an argument. Bounded in bytes: what is ready and what is being made never exceed the bound
together, except for the error of a size that is predicted.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from vfs.samples.admission import Bounds, JobUse, Load, job_queue, refuse
from vfs.samples.cost import start_by
from vfs.samples.model import Reason, Sample, hit_ratio
from vfs.samples.prepared import Failed, Prepared

_STEPS_AVERAGED = 8
_MADE_GUESS = 4
"""Times the raw bytes."""
_CPU_WINDOW_S = 10.0


class State(enum.Enum):
    """Of one sample."""

    WAITING = "waiting"
    RUNNING = "running"
    READY = "ready"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Place:
    """One group."""

    job: str
    step: int
    rank: int


@dataclass(slots=True, eq=False)
class Item:
    """One sample.

    Attributes:
        cost_s: predicted; `made_bytes` too, when it begins.
        made_bytes_max: that its operator may make.
        outcome: of READY: transformed, or why it is raw.
        held: why it could not begin when it was last asked; None: it could, or it was never its turn.
    """

    place: Place
    sample: Sample
    cost_s: float
    made_bytes_max: int = 0
    made_bytes: int = 0
    state: State = State.WAITING
    outcome: Prepared | Failed | None = None
    held: Reason | None = None

    @property
    def queued(self) -> int:
        """Return the bytes that it takes in the queue."""
        if self.state is State.RUNNING:
            return self.made_bytes
        return len(self.outcome.body) if isinstance(self.outcome, Prepared) and self.state is State.READY else 0


@dataclass(slots=True, eq=False)
class Group:
    """What one rank reads in one step.

    Attributes:
        heaviest: the items, by falling cost; those before `first` don't wait.
        asked: somebody waits for it; `outbox` is what they are to get next.
        ready_s: when the latest of its transforms ended, 0.0: none has.
    """

    items: dict[int, Item]
    heaviest: list[Item]
    first: int = 0
    asked: bool = False
    outbox: deque[Item] = field(default_factory=deque)
    ready_s: float = 0.0

    def waiting(self) -> Iterator[Item]:
        """Yield those that wait, the heaviest first."""
        while self.first < len(self.heaviest) and self.heaviest[self.first].state is not State.WAITING:
            self.first += 1
        for item in self.heaviest[self.first :]:
            if item.state is State.WAITING:
                yield item


@dataclass(slots=True)
class Totals:
    """What a job has had. `unused` was made and never fetched.

    Attributes:
        lead_s: from the last transform of a group to the beginning of its step, summed over `lead_groups`.
    """

    transformed: int = 0
    raw: Counter[Reason] = field(default_factory=Counter)
    aborted: Counter[Reason] = field(default_factory=Counter)
    made_bytes: int = 0
    sent_bytes: int = 0
    cpu_s: float = 0.0
    unused_bytes: int = 0
    unused_cpu_s: float = 0.0
    lead_s: float = 0.0
    lead_groups: int = 0

    @property
    def hit_ratio(self) -> float:
        """Return which share of the samples of which something was to be made went out transformed."""
        return hit_ratio(self.transformed, self.raw)


@dataclass(slots=True)
class JobState:
    """A job as it was told.

    Attributes:
        consumed: step being consumed, -1: none yet; `since_s`: since when.
        wait_s: after the beginning of a step, for samples that are not ready.
        step_s: how long steps last lately, 0.0: not known.
        cpus: that its transforms take on average; `queued`: bytes in the queue.
    """

    ahead: int
    wait_s: float
    ranks: frozenset[int]
    consumed: int = -1
    since_s: float = 0.0
    step_s: float = 0.0
    cpus: float = 0.0
    queued: int = 0
    totals: Totals = field(default_factory=Totals)


class Queue:
    """All jobs of a node.

    Invariants: an item is in one group; RUNNING ones are exactly those that `next` gave out and that were neither `done`
    nor returned by `stop`, `late` or `advance`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.jobs: dict[str, JobState] = {}
        self.groups: dict[Place, Group] = {}
        self.queued = 0
        self._made: dict[tuple[str, str], int] = {}

    # What is told

    def tell(
        self, job: str, *, ahead: int, wait_s: float, ranks: Sequence[int], step: int, now_s: float
    ) -> list[Item]:  # fmt: skip
        """Take in a job or its progress; return what is to be aborted."""
        state = self.jobs.get(job)
        if state is None:
            state = self.jobs[job] = JobState(ahead, wait_s, frozenset(ranks), since_s=now_s)
        elif not ranks or not state.ranks:
            state.ranks = frozenset()
        else:
            state.ranks |= frozenset(ranks)
        if step <= state.consumed:
            return []
        if state.consumed >= 0:
            lasted = (now_s - state.since_s) / (step - state.consumed)
            state.step_s += (lasted - state.step_s) / (_STEPS_AVERAGED if state.step_s else 1)
        self._note_lead(job, range(state.consumed + 1, step + 1), now_s)
        state.consumed, state.since_s = step, now_s
        aborted = []
        for place in [place for place in self.groups if place.job == job and place.step < step]:
            if not self.groups[place].asked:
                aborted += self.drop(place)
        return aborted

    def forget(self, job: str) -> list[Item]:
        """Drop a job; return what is to be aborted."""
        aborted = []
        for place in [place for place in self.groups if place.job == job]:
            aborted += self.drop(place)
        self.jobs.pop(job, None)
        return aborted

    def wanted_steps(self, job: str) -> range:
        """Return the steps whose groups should be in the queue."""
        state = self.jobs[job]
        return range(state.consumed + 1, state.consumed + 1 + state.ahead)

    def add(self, place: Place, items: Sequence[Item]) -> None:
        """Take in a group of the schedule; one that is known stays as it is."""
        if place not in self.groups:
            heaviest = sorted(items, key=lambda item: -item.cost_s)
            self.groups[place] = Group({item.sample.slot: item for item in items}, heaviest)

    def drop(self, place: Place) -> list[Item]:
        """Let go of a group; return what is to be aborted."""
        running = []
        totals = self.jobs[place.job].totals
        for item in self.groups.pop(place).items.values():
            if item.state is State.RUNNING:
                running.append(item)
                totals.aborted[Reason.LATE] += 1
            elif item.state is State.READY and isinstance(item.outcome, Prepared):
                totals.unused_bytes += len(item.outcome.body)
                totals.unused_cpu_s += item.outcome.cpu_s
            self._set(item, State.GIVEN)
        return running

    # What is asked for

    def ask(self, place: Place, refused: Reason | None) -> Group:
        """Somebody fetches a group from its beginning.

        Args:
            refused: why nothing can be transformed now: what is not ready goes out raw at once.
        """
        group = self.groups[place]
        group.asked = True
        group.outbox.clear()
        for item in group.items.values():
            if item.state is State.GIVEN:
                self._set(item, State.WAITING)
            if item.state is State.READY:
                group.outbox.append(item)
            elif item.state is State.WAITING and refused is not None:
                self._give_raw(group, item, refused)
        return group

    def unask(self, place: Place) -> None:
        """Whoever fetched it has gone; what was not given stays for the next one."""
        group = self.groups.get(place)
        if group is not None:
            group.asked = False
            group.outbox.clear()

    def given(self, item: Item) -> None:
        """A sample was sent."""
        totals = self.jobs[item.place.job].totals
        if isinstance(item.outcome, Prepared):
            totals.transformed += 1
            totals.sent_bytes += len(item.outcome.body)
        else:
            assert isinstance(item.outcome, Failed)
            totals.raw[item.outcome.reason] += 1
            totals.sent_bytes += item.sample.raw_size
        self._set(item, State.GIVEN)

    # What is done

    def next(self, load: Load, *, running: Counter[str]) -> Item | None:
        """Return what to transform now, None: nothing, or nothing may. It is RUNNING then.

        Args:
            running: transforms of each job: of equal urgency the job with fewer comes first.
        """
        best = [item for group in self.groups.values() if (item := next(group.waiting(), None)) is not None]
        heap = [(self._urgency(item, running), index) for index, item in enumerate(best)]
        heapq.heapify(heap)
        while heap:
            group = self.groups[best[heapq.heappop(heap)[1]].place]
            for item in group.waiting():
                item.held = self._refused(item, load)
                if item.held is None:
                    self._set(item, State.RUNNING)
                    return item
                if item.held not in (Reason.QUEUE, Reason.QUOTA, Reason.EGRESS):
                    return None  # no other one may either
        return None

    def done(self, item: Item, outcome: Prepared | Failed, now_s: float) -> None:
        """A transform has ended."""
        if item.state is not State.RUNNING:
            return
        self._set(item, State.READY, outcome)
        totals = self.jobs[item.place.job].totals
        totals.cpu_s += outcome.cpu_s
        if isinstance(outcome, Prepared):
            totals.made_bytes += len(outcome.body)
            operation = item.sample.operator, item.sample.params
            self._made[operation] = max(len(outcome.body), self._made.get(operation, 0))
        group = self.groups[item.place]
        group.ready_s = now_s
        if group.asked:
            group.outbox.append(item)

    def stop(self, reason: Reason) -> list[Item]:
        """Nothing may run any more: return what is to be aborted. What somebody waits for goes out raw, now."""
        aborted = []
        for group in self.groups.values():
            for item in group.items.values():
                if item.state is State.RUNNING:
                    aborted.append(self._back(item, reason))
                if group.asked and item.state is State.WAITING:
                    self._give_raw(group, item, reason)
        return aborted

    def late(self, now_s: float) -> list[Item]:
        """Give raw what its step, being consumed, waits for no longer; return what is to be aborted."""
        aborted = []
        for place, group in self.groups.items():
            state = self.jobs[place.job]
            if not group.asked or not self._is_due(place, state, now_s):
                continue
            for item in group.items.values():
                if item.state is State.RUNNING:
                    aborted.append(self._back(item, Reason.LATE))
                    self._give_raw(group, item, Reason.LATE)
                elif item.state is State.WAITING:
                    self._give_raw(group, item, item.held or Reason.LATE)
        return aborted

    def next_due_s(self, now_s: float) -> float | None:
        """Return in how many seconds `late` has to be asked again, None: not before something happens."""
        waits = [
            state.since_s + state.wait_s - now_s
            for place, group in self.groups.items()
            if group.asked and place.step <= (state := self.jobs[place.job]).consumed
            if any(item.state in (State.WAITING, State.RUNNING) for item in group.items.values())
        ]
        return max(0.0, min(waits)) if waits else None

    def held(self) -> Counter[Reason]:
        """Return how many samples wait because they may not begin, by what holds them up."""
        items = (item for group in self.groups.values() for item in group.items.values())
        return Counter(item.held for item in items if item.state is State.WAITING and item.held is not None)

    def charge(self, job: str, cpu_s: float, elapsed_s: float) -> None:
        """Count CPU time of a job's transforms towards its quota."""
        state = self.jobs.get(job)
        if state is not None and elapsed_s > 0:
            share = min(1.0, elapsed_s / _CPU_WINDOW_S)
            state.cpus += (cpu_s / elapsed_s - state.cpus) * share

    def _urgency(self, item: Item, running: Counter[str]) -> tuple[float, int, int, float]:
        state, step = self.jobs[item.place.job], item.place.step
        by = start_by(step, item.cost_s, consumed=state.consumed, step_s=state.step_s) if state.step_s else float(step)
        return by, running[item.place.job], step, -item.cost_s

    def _refused(self, item: Item, load: Load) -> Reason | None:
        state = self.jobs[item.place.job]
        use = JobUse(state.cpus, state.queued, len(self.jobs))
        load = replace(load, queued=self.queued)
        item.made_bytes = self._expected(item)
        return refuse(load, self.bounds, use, raw_bytes=item.sample.raw_size, made_bytes=item.made_bytes)

    def _expected(self, item: Item) -> int:
        """Return how large the output will probably be: as the largest of its kind, at first an eighth of its job's room."""
        seen = self._made.get((item.sample.operator, item.sample.params))
        guess = max(_MADE_GUESS * item.sample.raw_size, job_queue(self.bounds, len(self.jobs)) // 8)
        return min(guess if seen is None else seen, item.made_bytes_max)

    def _is_due(self, place: Place, state: JobState, now_s: float) -> bool:
        if place.step < state.consumed:
            return True
        return place.step == state.consumed and now_s >= state.since_s + state.wait_s

    def _note_lead(self, job: str, begun: range, now_s: float) -> None:
        """Count how long the groups of steps that begin now have been ready."""
        totals = self.jobs[job].totals
        for place, group in self.groups.items():
            if place.job == job and place.step in begun and group.ready_s:
                totals.lead_s += now_s - group.ready_s
                totals.lead_groups += 1

    def _back(self, item: Item, reason: Reason) -> Item:
        """Take a running item back; return it, to be aborted."""
        self._set(item, State.WAITING)
        self.jobs[item.place.job].totals.aborted[reason] += 1
        return item

    def _give_raw(self, group: Group, item: Item, reason: Reason) -> None:
        self._set(item, State.READY, Failed(reason, ""))
        group.outbox.append(item)

    def _set(self, item: Item, state: State, outcome: Prepared | Failed | None = None) -> None:
        """Change the state of an item, and the bytes in the queue with it."""
        job, before = self.jobs[item.place.job], item.queued
        item.state, item.outcome = state, outcome
        job.queued += item.queued - before
        self.queued += item.queued - before
        if state is State.WAITING and (group := self.groups.get(item.place)) is not None:
            group.first = 0
