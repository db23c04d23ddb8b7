"""What is below `.jobs`: names, the form of each sample, and files with their bytes. Decides, and brings what it decided.

The form of a sample is decided when its name is looked up or listed and holds for that inode: transformed if it is here, else
as the job's policy says. Raw bytes are read through the same cache, replicas and policy as the lake itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import xxhash

from vfs.agent.samples.jobs import JobRun, SampleJobs
from vfs.clock import Clock
from vfs.errors import Corrupt, ForemountError, InvalidFeed, NotFound, Stale
from vfs.model import Kind, LakePath, Version
from vfs.samples import jobs, tree, wire
from vfs.samples.deciding import Way, decide
from vfs.samples.feeds.protocol import Lake
from vfs.samples.model import Form, Reason, Sample
from vfs.samples.spool import Ready, Spool

log = logging.getLogger(__name__)
_LISTED_STEPS_MAX = 10_000
"""Names of a job's directory: of longer schedules those around the step that is being read."""


class Samples:
    """Answers by path.

    Args:
        writer: the one thread that writes to the spool.

    Attributes:
        is_coming: whether a group is being prepared.
        make: runs a sample's operator on this host; None: it can't.
        on_entered: called when a rank goes on to another step.
    """

    def __init__(self, lake: Lake, known: SampleJobs, spool: Spool, writer: ThreadPoolExecutor, clock: Clock) -> None:
        self._lake = lake
        self._jobs = known
        self._spool = spool
        self._writer = writer
        self._clock = clock
        self._bringing: dict[str, asyncio.Future[str]] = {}
        self.is_coming: Callable[[JobRun, int, int], bool] = lambda run, step, rank: False
        self.arrival: Callable[[JobRun, int, int], Awaitable[None]] | None = None
        self.make: Callable[[JobRun, Sample], Awaitable[Ready]] | None = None
        self.on_entered: Callable[[JobRun], None] = lambda run: None

    # Calls of the worker

    async def look(self, path: str) -> wire.Node | None:
        """Return what a path is, deciding its form; None where nothing is.

        Raises:
            InvalidFeed: the schedule can't be used.
            Stale, NotFound, Denied, Unavailable: the raw bytes can't be had.
        """
        place = tree.parse(path)
        if place is None:
            return None
        if isinstance(place, tree.Root):
            return _directory(path, 0)
        run = await self._jobs.find(place.job)
        if run is None:
            return None
        match place:
            case tree.JobPlace() | tree.ByIdPlace():
                return _directory(path, run.feed.mtime_ns)
            case tree.StepPlace(step=step):
                return _directory(path, run.feed.mtime_ns) if await run.feed.ranks(step) else None
            case tree.RankPlace(step=step, rank=rank):
                if rank not in await run.feed.ranks(step):
                    return None
                return _directory(path, run.feed.mtime_ns)
            case tree.SlotPlace() | tree.IdPlace():
                sample = await self._sample(run, place)
                return None if sample is None else await self._node_if_called(run, path, sample, place.raw)

    async def children(self, path: str) -> list[wire.Node] | None:
        """Return what is in a directory, deciding the form of its samples without transforming any; None: there is none.

        Raises: as `look`.
        """
        place = tree.parse(path)
        if isinstance(place, tree.Root):
            return [_directory(name, 0) for name in await self._jobs.names()]
        if place is None or isinstance(place, tree.SlotPlace | tree.IdPlace):
            return None
        run = await self._jobs.find(place.job)
        if run is None:
            return None
        when = run.feed.mtime_ns
        match place:
            case tree.JobPlace(job=job, raw=raw):
                steps: list[tree.Place] = [tree.StepPlace(job, step, raw) for step in await self._steps(run)]
                twin: list[tree.Place] = [] if raw else [tree.JobPlace(job, raw=True)]
                return [_directory(tree.path_of(each), when) for each in [*steps, tree.ByIdPlace(job, raw), *twin]]
            case tree.StepPlace(job=job, step=step, raw=raw):
                ranks = await run.feed.ranks(step)
                found = [_directory(tree.path_of(tree.RankPlace(job, step, rank, raw)), when) for rank in ranks]
                return found or None
            case tree.RankPlace(step=step, rank=rank, raw=raw):
                if rank not in await run.feed.ranks(step):
                    return None
                return await self._listed(run, await run.group(step, rank), place.raw, slot_path)
            case tree.ByIdPlace(raw=raw):
                return await self._listed(run, (await self._under_way(run)).values(), raw, _id_path)

    async def content(self, path: str, key: str) -> str:
        """Return a local file with the content that a node of this path and key stood for.

        Raises:
            Stale: neither form of the sample is this content any more.
            NotFound: there is no such sample.
            Denied, Unavailable, NoSpace: the raw bytes can't be had.
        """
        run, sample = await self._sample_at(path)
        ready = self._spool.find((sample.job, sample.step, sample.rank), sample.slot)
        if ready is not None and ready.key == key:
            return ready.file
        if key == await self.raw_key(sample):
            began_s = self._clock.monotonic_s()
            file = await self.raw_file(sample, key)
            self._waited(run, sample, began_s)
            return file
        if self.make is not None:  # its step is over, and somebody reads it yet: the same identity is the same bytes
            made = await self.make(run, sample)
            if made.key == key:
                return made.file
        raise Stale(path, "its step is over, and this form of it is not here any more")

    def entered(self, path: str) -> None:
        """A reader has come to a directory of which the worker knew without asking."""
        place = tree.parse(path)
        if isinstance(place, tree.RankPlace):
            for run in self._jobs.runs:
                if run.name == place.job:
                    self.enter(run, place.step, place.rank)

    def enter(self, run: JobRun, step: int, rank: int) -> None:
        """A rank reads in a step: what is ready of it counts as given, and preparation goes on."""
        news = run.enter(step, rank)
        group = self._spool.group((run.name, step, rank))
        fact = run.fact(step, rank)
        if group is not None and not fact.counted:
            for ready in group.ready.values():
                if ready.form is Form.TRANSFORMED and fact.give(ready.slot, None):
                    run.totals.ready += 1
        if news:
            self.on_entered(run)

    # Nodes

    async def _node_if_called(self, run: JobRun, path: str, sample: Sample, raw: bool) -> wire.Node | None:
        if not path.endswith(f".{_extension(run, sample, raw)}"):
            return None
        self.enter(run, sample.step, sample.rank)  # a directory may be listed by anybody; who looks up a sample reads it
        return await self.raw_node(run, path, sample, None) if raw else await self._node(run, path, sample, may_wait=True)

    async def _node(self, run: JobRun, path: str, sample: Sample, *, may_wait: bool) -> wire.Node:
        """Decide the form of a sample."""
        group = sample.job, sample.step, sample.rank
        ready = self._spool.find(group, sample.slot)
        decision = decide(
            sample,
            ready.form if ready is not None else None,
            ready.reason if ready is not None and ready.reason is not None else run.trouble,
            run.job.fallback,
            may_wait=may_wait,
            is_coming=self.is_coming(run, sample.step, sample.rank),
            has_engine=self.make is not None,
        )
        if decision.way in (Way.WAIT, Way.LOCAL):
            began_s = self._clock.monotonic_s()
            ready = await self._waited_for(run, sample, decision.way)
            self._waited(run, sample, began_s)
        if ready is not None and ready.form is Form.TRANSFORMED and sample.operator:
            if may_wait:
                run.give(sample, None)
            return ready_node(run, path, sample, ready)
        reason = ready.reason if ready is not None and ready.reason is not None else decision.reason
        if may_wait and reason is not None:
            run.give(sample, reason)
        return await self.raw_node(run, path, sample, reason)

    async def _waited_for(self, run: JobRun, sample: Sample, way: Way) -> Ready | None:
        """Return the sample once it is made, None where that takes longer than the job's deadline, or fails."""
        group = sample.job, sample.step, sample.rank
        try:
            async with asyncio.timeout(run.job.deadline):
                if way is Way.LOCAL:
                    assert self.make is not None
                    return await self.make(run, sample)
                while self.is_coming(run, sample.step, sample.rank):
                    if (ready := self._spool.find(group, sample.slot)) is not None:
                        return ready
                    assert self.arrival is not None
                    await self.arrival(run, sample.step, sample.rank)
        except TimeoutError:
            log.debug("%s step %s rank %s slot %s: not within its deadline", *group, sample.slot)
        except ForemountError as exc:
            log.debug("%s step %s rank %s slot %s: %s", *group, sample.slot, exc)
        return self._spool.find(group, sample.slot)

    async def _listed(
        self, run: JobRun, samples: Any, raw: bool, path_of: Callable[[JobRun, Sample, bool], str]
    ) -> list[wire.Node]:
        """Return the nodes of samples without waiting for anything that is made of them."""
        found = []
        for sample in samples:
            path = path_of(run, sample, raw)
            if raw:
                found.append(await self.raw_node(run, path, sample, None))
            else:
                found.append(await self._node(run, path, sample, may_wait=False))
        return found

    async def raw_node(self, run: JobRun, path: str, sample: Sample, reason: Reason | None) -> wire.Node:
        """Return a sample in its raw form.

        Raises:
            InvalidFeed: its source is not there, or ends before it.
        """
        key = await self.raw_key(sample)
        ready = self._spool.find((sample.job, sample.step, sample.rank), sample.slot)
        file = ready.file if ready is not None and ready.key == key else self._spool.raw_file(key)
        return wire.Node(
            path, Kind.FILE, key, sample.raw_size, run.feed.mtime_ns, Form.RAW, raw_provenance(sample, reason), file
        )

    # Bytes

    async def raw_key(self, sample: Sample, version: Version | None = None) -> str:
        """Return what names a sample's raw bytes. Raises as `raw_node`.

        Args:
            version: of its source, as `source` said; None: as it is now.
        """
        if version is None:
            version = await self.source(sample)
        said = (sample.source, msgspec.json.encode(version).decode(), repr(sample.ranges))
        return xxhash.xxh3_128_hexdigest("\0".join(said).encode())

    async def raw_bytes(self, sample: Sample, version: Version | None = None) -> bytes:
        """Return a sample's raw bytes, through the cache.

        Args:
            version: as of `raw_key`: who asks for both has key and bytes of one version.
        Raises:
            InvalidFeed: as `raw_node`.
            Stale, NotFound, Denied, Unavailable: as the lake.
        """
        if version is None:
            version = await self.source(sample)
        pieces = [await self._lake.read(sample.source, version, offset, length) for offset, length in sample.ranges]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def raw_file(self, sample: Sample, key: str) -> str:
        """Return a file with a sample's raw bytes; brought once for all who ask."""
        file = self._spool.raw_file(key)
        if file:
            return file
        bringing = self._bringing.get(key)
        if bringing is None:
            bringing = self._bringing[key] = asyncio.ensure_future(self._bring(sample, key))
            bringing.add_done_callback(lambda _: self._bringing.pop(key))
        return await asyncio.shield(bringing)

    async def _bring(self, sample: Sample, key: str) -> str:
        body = await self.raw_bytes(sample)
        if await self.raw_key(sample) != key:
            raise Stale(sample.source, "was replaced while it was read")
        if len(body) != sample.raw_size:
            raise Corrupt(sample.source, f"gave {len(body)} bytes, not {sample.raw_size}")
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._spool.keep_raw, key, body)

    async def source(self, sample: Sample) -> Version:
        """Return the version of the file that a sample's raw bytes lie in. Raises as `raw_node`."""
        entry = await self._lake.stat(LakePath(sample.source))
        where = f"step {sample.step}, rank {sample.rank}, slot {sample.slot}"
        if entry is None or entry.kind is not Kind.FILE:
            raise InvalidFeed(sample.source, f"is missing, and {where} lies in it")
        if max(offset + length for offset, length in sample.ranges) > entry.version.size:
            raise InvalidFeed(sample.source, f"has {entry.version.size} bytes, and {where} reaches beyond")
        return entry.version

    # Samples

    async def _sample_at(self, path: str) -> tuple[JobRun, Sample]:
        place = tree.parse(path)
        if isinstance(place, tree.SlotPlace | tree.IdPlace):
            run = await self._jobs.find(place.job)
            if run is not None and (sample := await self._sample(run, place)) is not None:
                return run, sample
        raise NotFound(path)

    async def _sample(self, run: JobRun, place: tree.SlotPlace | tree.IdPlace) -> Sample | None:
        """Return the sample of a place, whatever its name ends in."""
        if isinstance(place, tree.IdPlace):
            return (await self._under_way(run)).get(place.sample_id)
        group = await run.group(place.step, place.rank)
        return next((sample for sample in group if sample.slot == place.slot), None)

    async def _under_way(self, run: JobRun) -> dict[str, Sample]:
        """Return the samples of the steps that are read now or soon, by name; of several the one that is read first."""
        found: dict[str, Sample] = {}
        for step, rank in run.progress.wanted():
            for sample in await run.group(step, rank):
                found.setdefault(sample.sample_id, sample)
        return found

    async def _steps(self, run: JobRun) -> Sequence[int]:
        """Return the steps to list: all, of a long schedule those around the one that is being read."""
        steps = await run.feed.steps()
        if len(steps) <= _LISTED_STEPS_MAX:
            return steps
        first = max(0, min(run.progress.step - _LISTED_STEPS_MAX // 2, len(steps) - _LISTED_STEPS_MAX))
        return steps[first : first + _LISTED_STEPS_MAX]

    def _waited(self, run: JobRun, sample: Sample, began_s: float) -> None:
        waited_s = self._clock.monotonic_s() - began_s
        run.fact(sample.step, sample.rank).waited_s += waited_s
        run.totals.waited_s += waited_s


def ready_node(run: JobRun, path: str, sample: Sample, ready: Ready) -> wire.Node:
    """Return a sample that was prepared, as it was prepared."""
    said = raw_provenance(sample, ready.reason) if ready.form is Form.RAW else ready.provenance
    return wire.Node(path, Kind.FILE, ready.key, ready.size, run.feed.mtime_ns, ready.form, said, ready.file)


def raw_provenance(sample: Sample, reason: Reason | None) -> str:
    """Return what is told of raw bytes: where they lie, and why nothing was made of them."""
    said = {
        "dataset_version": sample.dataset_version,
        "operator": sample.operator,
        "ranges": sample.ranges,
        "source": sample.source,
        "why_raw": reason,
    }
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


def _directory(path: str, mtime_ns: int) -> wire.Node:
    return wire.Node(path, Kind.DIRECTORY, mtime_ns=mtime_ns)


def slot_path(run: JobRun, sample: Sample, raw: bool) -> str:
    """Return the path of a sample by its place in the schedule."""
    place = tree.SlotPlace(run.name, sample.step, sample.rank, sample.slot, _extension(run, sample, raw), raw)
    return tree.path_of(place)


def _id_path(run: JobRun, sample: Sample, raw: bool) -> str:
    return tree.path_of(tree.IdPlace(run.name, sample.sample_id, _extension(run, sample, raw), raw))


def _extension(run: JobRun, sample: Sample, raw: bool) -> str:
    return jobs.raw_extension(run.job, sample) if raw else jobs.extension(run.job, sample)
