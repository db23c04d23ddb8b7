"""Plays a trace under another configuration or policy: the same reads, the real decisions, a line as it was measured.

Real: prediction, coalescing, budgets of memory and of rules, the line's window, single flight, eviction by cache class, the
policy. Simulated (`simulated.py`): time, the line, the store's disk. Taken from the trace: which thread read what, how long
it thought between two reads, what a read costs whose bytes are here, and what names and opens cost. The cache is empty at the
start. What is pinned is read in one version (`versions.py`). Replicas are not played: the origin serves its objects alone.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vfs.agent.reading.lessons import Lessons
from vfs.agent.reading.prefetch import Prefetcher
from vfs.agent.rules import PathRules
from vfs.checkpoints.layout import Layout, NoLayout
from vfs.errors import ForemountError
from vfs.extents.budget import Budget
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.extents.spans import Spans
from vfs.model import LakePath, ObjectKey, SiteName, Version, object_key
from vfs.namespace.mounts import MountTable
from vfs.policy.facts import Access
from vfs.traces.outcome import Outcome
from vfs.traces.parquet import Trace
from vfs.traces.recording import PackedLayout, unpack
from vfs.traces.records import How
from vfs.traces.scenario import Scenario, recorded_mounts
from vfs.traces.simulated import AccountingStore, LineSite, VirtualClock, VirtualLoop, sites_of
from vfs.traces.versions import read_as

_SPILL_BYTES = 64 << 20
_READS = (How.HIT, How.FETCHED)
_OPENS = (How.OPENED, How.PASSTHROUGH)


def replay(trace: Trace, scenario: Scenario) -> Outcome:
    """Return what the trace comes to in this scenario. Deterministic.

    Cost: some 100 us for each event, whatever time the recorded run took.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_play(trace, scenario))


async def _play(trace: Trace, scenario: Scenario) -> Outcome:
    clock = VirtualClock(asyncio.get_running_loop())
    sites, rules = sites_of(scenario.lines), scenario.rules(trace)
    store, spill = AccountingStore(scenario.cache_size, rules.keep_of), AccountingStore(_SPILL_BYTES)
    async with Fetcher(
        store,
        spill,
        sites,
        memory=Budget(scenario.limits.memory),
        clock=clock,
        limits=FetchLimits(),
        chance=random.Random(0),  # noqa: S311  the same in every replay
        rate_of=rules.rate_of,
    ) as fetcher:
        return await _Player(trace, scenario, rules, fetcher, store, sites).play()


class _Shelf:
    """Lessons in memory, in place of the catalog."""

    def __init__(self) -> None:
        self._lessons: dict[str, bytes] = {}

    def learned(self, name: str) -> bytes | None:
        return self._lessons.get(name)

    def learn(self, name: str, lesson: bytes) -> None:
        self._lessons[name] = lesson


class _RecordedLayouts:
    """Layouts from the trace: the header is fetched as the agent would, its content is known."""

    def __init__(self, fetcher: Fetcher, layouts: Mapping[ObjectKey, Layout]) -> None:
        self._fetcher = fetcher
        self._layouts = layouts
        self.absent: set[ObjectKey] = set()

    async def find(self, identity: Identity, path: LakePath) -> Layout:
        key = identity.key
        layout = self._layouts.get(key)
        if layout is None:
            self.absent.add(key)
            raise NoLayout("the trace does not hold it")
        await self._fetcher.ensure(identity, *layout.header, Priority.FOREGROUND)
        return layout


@dataclass(slots=True)
class _File:
    """One version of a file of the trace.

    Attributes:
        identity: None where it lies on this host: nothing of it is fetched.
        deadline_s: of a read.
        is_open: it is held in the fetcher.
        wanted: what was read of it.
    """

    path: LakePath
    identity: Identity | None
    key: ObjectKey
    deadline_s: float
    is_open: bool = False
    wanted: Spans = field(default_factory=Spans)


class _Player:
    """Carries the events out, each as long after what came before it as when it was recorded.

    Invariant: `_left` counts the events that have not ended.
    """

    def __init__(
        self,
        trace: Trace,
        scenario: Scenario,
        rules: PathRules,
        fetcher: Fetcher,
        store: AccountingStore,
        sites: Mapping[SiteName, LineSite],
    ) -> None:
        self._trace = trace
        self._fetcher = fetcher
        self._store = store
        self._sites = sites
        self._loop = asyncio.get_running_loop()
        self._rules = rules
        files = [_file(path, version, scenario.mounts, rules) for path, version in trace.files]
        known = _layouts(trace, files)
        self._files = [files[index] for index in read_as(trace, rules)]
        self._layouts = _RecordedLayouts(fetcher, {key: unpack(packed) for key, packed in known.items()})
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefetcher = Prefetcher(
            fetcher,
            self._layouts,
            _lessons(self._files, known),
            rule=rules.prefetch_rule,
            read_ahead=scenario.limits.read_ahead,
            spawn=self._spawn,
        )
        self._hit_s = _usual_hit_s(trace)
        self._followers = _followers(trace)
        self._left = len(trace)
        self._done = asyncio.Event()
        self._waits_s = np.zeros(len(trace))
        self._fetched = np.zeros(len(trace), bool)
        self._failed = 0
        self._name = scenario.name

    async def play(self) -> Outcome:
        """Play to the end."""
        self._release(-1)
        if self._left:
            await self._done.wait()
        ended_s = self._loop.time()
        for file in self._files:
            self._close(file)  # once, where it stands for several
        await self._fetcher.settled()
        for task in self._tasks:
            task.cancel()
        return self._outcome(ended_s)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release(self, moment: int) -> None:
        """Let the events follow that came after this moment: 2 * index for an event's begin, one more for its end."""
        for index, after_s in self._followers.get(moment, ()):
            self._loop.call_later(after_s, self._begin, index)

    def _begin(self, index: int) -> None:
        self._release(2 * index)
        self._spawn(self._carry_out(index))

    async def _carry_out(self, index: int) -> None:
        began_s = self._loop.time()
        how, file = How(self._trace.how[index]), self._files[self._trace.file[index]]
        try:
            if how in _READS:
                await self._read(index, file)
            elif how is How.CLOSED:
                self._close(file)
            elif how is How.OPENED:
                await self._open(file)
                await asyncio.sleep(self._trace.wait_ns[index] / 1e9)
        except (ForemountError, TimeoutError):
            self._failed += 1
        self._waits_s[index] = self._loop.time() - began_s
        self._left -= 1
        self._release(2 * index + 1)
        if not self._left:
            self._done.set()

    async def _open(self, file: _File) -> None:
        if file.identity is None or file.is_open:
            return
        file.is_open = True
        await self._fetcher.hold(file.identity, serving=self._rules.serving(file.path, file.identity.version.size))
        self._prefetcher.opened(file.identity, file.path)

    def _close(self, file: _File) -> None:
        if file.is_open:
            file.is_open = False
            self._prefetcher.closed(file.key)
            self._fetcher.release(file.key)

    async def _read(self, index: int, file: _File) -> None:
        """Read as the worker does: tell what is read, ask for what is absent, take it."""
        offset, length = int(self._trace.offset[index]), int(self._trace.length[index])
        if file.identity is not None:  # where it stands for another version, that one may have been longer
            length = max(0, min(length, file.identity.version.size - offset))
        if length and file.identity is not None:
            await self._open(file)
            file.wanted.add(offset, offset + length)
            self._prefetcher.reads(file.key, [(offset, length)])
            gaps = self._store.missing(file.key, offset, length)
            if gaps:
                self._fetched[index] = True
                first, stop = gaps[0].start * BLOCK, gaps[-1].stop * BLOCK
                async with asyncio.timeout(file.deadline_s):
                    await self._fetcher.ensure(file.identity, first, stop - first)
        was_here = self._trace.how[index] == How.HIT
        await asyncio.sleep(self._trace.wait_ns[index] / 1e9 if was_here else self._hit_s)

    def _outcome(self, ended_s: float) -> Outcome:
        trace = self._trace
        reads = np.isin(trace.how, _READS)
        counters = self._fetcher.counters
        return Outcome.of(
            self._name,
            waits_s=self._waits_s[reads],
            fetched=self._fetched[reads],
            lengths=trace.length[reads],
            duration_s=ended_s,
            wanted_bytes=sum(file.wanted.total for file in {id(file): file for file in self._files}.values()),
            fetched_bytes=sum(site.sent_bytes for site in self._sites.values()),
            prefetched_bytes=counters.prefetched_bytes,
            requests=sum(site.requests for site in self._sites.values()),
            failed=self._failed,
        )


def _file(path: LakePath, version: Version, mounts: MountTable, rules: PathRules) -> _File:
    point = mounts.find(path)
    if point is None or point.local_root is not None:
        return _File(path, None, ObjectKey(""), 0.0)
    identity = Identity(point.site, point.site_path(path), version)
    deadline_s = rules.decision(path, Access.READ, version.size).values.deadline
    return _File(path, identity, identity.key, deadline_s)


def _layouts(trace: Trace, files: list[_File]) -> dict[ObjectKey, PackedLayout]:
    """Return the recorded layouts by the keys that their files have in this scenario."""
    packed = {layout.key: layout for layout in trace.layouts}
    found: dict[ObjectKey, PackedLayout] = {}
    mounts = recorded_mounts(trace)
    for file, (path, version) in zip(files, trace.files, strict=True):
        point = mounts.find(path)
        if point is None or not file.key:
            continue
        recorded = object_key(point.site, point.site_path(path), version)
        if recorded in packed:
            found[file.key] = packed[recorded]
    return found


def _lessons(files: list[_File], layouts: Mapping[ObjectKey, PackedLayout]) -> Lessons:
    """Return what was known before the recorded run; of files that share a lesson the one opened first tells it."""
    lessons = Lessons(_Shelf())
    for file in files:
        learned = layouts[file.key].learned if file.key in layouts else None
        if learned is not None and file.identity is not None and lessons.find(file.identity) is None:
            lessons.keep(file.identity, learned)
    return lessons


def _usual_hit_s(trace: Trace) -> float:
    """Return what a read costs whose bytes are here: the median of those that were recorded."""
    hits = trace.wait_ns[trace.how == How.HIT]
    return float(np.median(hits)) / 1e9 if len(hits) else 1e-4


def _followers(trace: Trace) -> dict[int, list[tuple[int, float]]]:
    """Return for each moment the events that wait for it, and how long after it they begin.

    An event follows the last thing that had happened to its thread: the begin or the end of an earlier event. The first one
    of a thread follows the last end before it of any thread, else the start (moment -1): somebody has started the thread. A
    close, which no thread sends, follows the last end at its file.
    """
    found: dict[int, list[tuple[int, float]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}  # thread → heap of (end, index) that lie ahead
    last: dict[int, tuple[int, int]] = {}  # thread → (time, moment) that happened last
    all_ends: list[tuple[int, int]] = []
    latest = (0, -1)
    file_ends: dict[int, tuple[int, int]] = {}
    at: npt.NDArray[np.int64] = trace.at_ns
    for index in range(len(trace)):
        now = int(at[index])
        file = int(trace.file[index])
        thread = int(trace.thread[index]) or -1 - file  # where threads could not be told, each file has its own
        while all_ends and all_ends[0][0] <= now:
            ended_ns, ended = heapq.heappop(all_ends)
            latest = ended_ns, 2 * ended + 1
        end = now + int(trace.wait_ns[index])
        if trace.how[index] == How.CLOSED:
            happened = file_ends.get(file, latest)
            found.setdefault(happened[1], []).append((index, max(now - happened[0], 0) / 1e9))
            continue
        file_ends[file] = max(file_ends.get(file, (0, -1)), (end, 2 * index + 1))
        happened = last.get(thread, latest)
        heap = ends.setdefault(thread, [])
        while heap and heap[0][0] <= now:
            ended_ns, ended = heapq.heappop(heap)
            happened = max(happened, (ended_ns, 2 * ended + 1))
        found.setdefault(happened[1], []).append((index, (now - happened[0]) / 1e9))
        last[thread] = now, 2 * index
        heapq.heappush(heap, (end, index))
        heapq.heappush(all_ends, (end, index))
    return found
