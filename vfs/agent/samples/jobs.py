"""The jobs whose samples this host shows: declared in the lake, or started by command. Opens their schedules.

Tasks: none of its own; a schedule that is being opened belongs to those who asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from vfs.clock import Clock
from vfs.errors import ForemountError, InvalidFeed, NotFound
from vfs.model import Kind, LakePath, Version, join, split
from vfs.oserrors import Translated
from vfs.samples import jobs, tree
from vfs.samples.feeds.open import open_feed
from vfs.samples.feeds.protocol import Feed, Lake
from vfs.samples.loading import LoadCache
from vfs.samples.model import Reason, Sample
from vfs.samples.progress import Progress

log = logging.getLogger(__name__)
_SCAN_S = 5.0
"""How long it takes until a new document is noticed, and until one that was refused is looked at again."""
_GROUPS_KEPT = 256
_TIMELINE_GROUPS = 4096


class Started(msgspec.Struct, frozen=True):
    """A job that was started by command, as it is written down for the next agent.

    Attributes:
        declaration: lake path of its document; "" where `text` is the document.
        directory: that relative paths start from.
    """

    name: str
    declaration: LakePath = LakePath("")
    text: str = ""
    directory: LakePath = LakePath("")


@dataclass(slots=True)
class GroupFacts:
    """What happened to one (step, rank): of the timeline. Times are of the monotonic clock, 0.0: not yet.

    Attributes:
        asked_s, prepared_s: preparation began and ended.
        entered_s, left_s: its rank came to the step, and to a later one.
        waited_s: that readers waited for its samples, summed over them.
        samples: of the schedule; `ready` of them were transformed when they were read, the others raw for these reasons.
        size: bytes that were prepared.
        counted: slots that were given to readers.
    """

    step: int
    rank: int
    asked_s: float = 0.0
    prepared_s: float = 0.0
    entered_s: float = 0.0
    left_s: float = 0.0
    waited_s: float = 0.0
    samples: int = 0
    ready: int = 0
    size: int = 0
    raw: dict[Reason, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)

    def give(self, slot: int, reason: Reason | None) -> bool:
        """A reader gets a sample; return whether it is the first time."""
        if slot in self.counted:
            return False
        self.counted.add(slot)
        if reason is None:
            self.ready += 1
        else:
            self.raw[reason] = self.raw.get(reason, 0) + 1
        return True


@dataclass(slots=True)
class Totals:
    """What a job has had since this agent was started. Steps that are over are in it, `GroupFacts` are not kept for ever."""

    ready: int = 0
    raw: dict[Reason, int] = field(default_factory=dict)
    waited_s: float = 0.0
    prepared_bytes: int = 0
    used_bytes: int = 0
    unused_bytes: int = 0
    prepared_groups: int = 0
    lead_s: float = 0.0
    lead_groups: int = 0
    cpu_s: float = 0.0


class JobRun:
    """A job with its schedule and how far it is.

    Attributes:
        declaration: lake path of its document; "" where `text` was given to the command, with `directory` for its paths.
        facts: of groups, by (step, rank); the latest `_TIMELINE_GROUPS`.
        trouble: why nothing is prepared for it, as far as that is known.
        node: that prepares for it, "" where none does.
    """

    def __init__(self, job: jobs.Job, started: Started, version: Version | None, feed: Feed, clock: Clock) -> None:
        self.job = job
        self.declaration = started.declaration
        self.text = "" if started.declaration else started.text
        self.directory = LakePath("") if started.declaration else started.directory
        self.version = version
        self.feed = feed
        self.progress = Progress(ahead=job.ahead, behind=job.behind)
        self.totals = Totals()
        self.facts: OrderedDict[tuple[int, int], GroupFacts] = OrderedDict()
        self.trouble = Reason.LATE
        self.node = ""
        self.refused: deque[str] = deque(maxlen=20)
        self._clock = clock
        self._groups: LoadCache[tuple[int, int], Sequence[Sample]] = LoadCache(self._load, kept=_GROUPS_KEPT)

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.job.name

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        """Return what a rank reads in a step, by slot; read once for all who ask.

        Raises:
            InvalidFeed: the schedule can't be used; it is noted.
        """
        return await self._groups.get((step, rank))

    def fact(self, step: int, rank: int) -> GroupFacts:
        """Return what is known of a group, made where nothing is."""
        found = self.facts.get((step, rank))
        if found is None:
            found = self.facts[step, rank] = GroupFacts(step, rank)
            if len(self.facts) > _TIMELINE_GROUPS:
                self.facts.popitem(last=False)
        return found

    def give(self, sample: Sample, reason: Reason | None) -> None:
        """A reader gets a sample, transformed or for this reason raw."""
        if self.fact(sample.step, sample.rank).give(sample.slot, reason):
            if reason is None:
                self.totals.ready += 1
            else:
                self.totals.raw[reason] = self.totals.raw.get(reason, 0) + 1

    def enter(self, step: int, rank: int) -> bool:
        """A reader has come to a rank's directory of a step; return whether the rank went on."""
        now_s = self._clock.monotonic_s()
        before = self.progress.ranks.get(rank)
        news = self.progress.reach(step, rank)
        fact = self.fact(step, rank)
        if not fact.entered_s:
            fact.entered_s = now_s
            if fact.prepared_s:
                self.totals.lead_s += now_s - fact.prepared_s
                self.totals.lead_groups += 1
        if news and before is not None and (left := self.facts.get((before, rank))) is not None:
            left.left_s = now_s
        return news

    async def _load(self, place: tuple[int, int]) -> Sequence[Sample]:
        try:
            return await self.feed.group(*place)
        except InvalidFeed as exc:
            if str(exc) not in self.refused:
                self.refused.append(str(exc))
                log.warning("job %s: %s", self.name, exc)
            raise


class SampleJobs:
    """All jobs by name.

    Args:
        declared: lake directories whose `*.toml` are jobs.
        file: that says which were started by command.
    """

    def __init__(self, lake: Lake, declared: Sequence[LakePath], file: str, clock: Clock) -> None:
        self._lake = lake
        self._declared = declared
        self._file = file
        self._clock = clock
        self._started: dict[str, Started] = {each.name: each for each in _read(file)}
        self._runs: dict[str, JobRun] = {}
        self._refused: dict[str, tuple[float, ForemountError]] = {}
        self._documents: dict[str, LakePath] = {}
        self._scanned_s = -_SCAN_S
        self._scanning = asyncio.Lock()
        self._opening: dict[str, asyncio.Future[JobRun]] = {}

    @property
    def runs(self) -> list[JobRun]:
        """Return the jobs that have been opened, by name."""
        return [self._runs[name] for name in sorted(self._runs)]

    @property
    def refused(self) -> dict[str, str]:
        """Return the jobs that can't be opened, with the reason."""
        return {name: str(error) for name, (_, error) in sorted(self._refused.items())}

    async def names(self) -> list[str]:
        """Return the names of all jobs, also of those that can't be opened."""
        await self._scan()
        return sorted({*self._documents, *self._started})

    async def find(self, name: str) -> JobRun | None:
        """Return a job, opened; None: there is none of this name.

        Raises:
            InvalidFeed: its document or its schedule can't be used.
            ForemountError: they can't be read at the moment.
        """
        if name not in self._runs:
            await self._scan()
            if name not in self._documents and name not in self._started:
                return None
            return await self._open_once(name)
        return self._runs[name]

    async def start(self, started: Started) -> JobRun:
        """Open a job anew and remember it for later agents. Raises as `find`."""
        run = await self._opened(started)
        started = msgspec.structs.replace(started, name=run.name)
        self._runs[run.name] = run
        self._refused.pop(run.name, None)
        self._started[run.name] = started
        await asyncio.to_thread(_write, self._file, list(self._started.values()))
        return run

    async def stop(self, name: str) -> JobRun | None:
        """Forget a job and return it; one that a document in the lake declares comes back when it is asked for.

        Raises:
            NotFound: there is no such job.
        """
        started, run = self._started.pop(name, None), self._runs.pop(name, None)
        if started is None and run is None:
            raise NotFound(name, "no such job", "foremount job status lists them")
        await asyncio.to_thread(_write, self._file, list(self._started.values()))
        return run

    async def _open_once(self, name: str) -> JobRun:
        failed_s, error = self._refused.get(name, (0.0, None))
        if error is not None and self._clock.monotonic_s() < failed_s + _SCAN_S:
            raise error
        opening = self._opening.get(name)
        if opening is None:
            declaration = self._documents.get(name, LakePath(""))
            started = self._started.get(name) or Started(name, declaration, "", LakePath(split(declaration)[0]))
            opening = self._opening[name] = asyncio.ensure_future(self._opened(started))
            opening.add_done_callback(lambda done: self._note(name, done))
        return await asyncio.shield(opening)

    def _note(self, name: str, done: asyncio.Future[JobRun]) -> None:
        del self._opening[name]
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ForemountError):
            log.warning("job %s is refused: %s", name, error)
            self._refused[name] = self._clock.monotonic_s(), error
        elif not done.cancelled() and error is None:
            self._refused.pop(name, None)
            self._runs[name] = done.result()

    async def _opened(self, started: Started) -> JobRun:
        text, version, file = started.text, None, started.name
        if started.declaration:
            file = started.declaration
            entry = await self._lake.stat(started.declaration)
            if entry is None or entry.kind is not Kind.FILE:
                raise InvalidFeed(file, "is missing")
            if entry.version.size > jobs.DOCUMENT_BYTES_MAX:
                raise InvalidFeed(file, f"has {entry.version.size} bytes")
            version = entry.version
            text = (await self._lake.read(started.declaration, version, 0, version.size)).decode("utf-8", "replace")
        default = split(file)[1].removesuffix(".toml")
        job = jobs.parse(text, file, default)
        if started.name and job.name != started.name:
            raise InvalidFeed(file, f"names the job {job.name!r}, not {started.name!r}")
        feed = await open_feed(self._lake, job, started.directory)
        log.info("job %s: schedule of %s opened", job.name, file)
        return JobRun(job, started, version, feed, self._clock)

    async def _scan(self) -> None:
        """Look at the declared directories, unless that was a moment ago. A new or removed document ends its job's run."""
        async with self._scanning:  # who comes meanwhile needs what is being found
            if self._clock.monotonic_s() < self._scanned_s + _SCAN_S:
                return
            found, versions = {}, {}
            for directory in self._declared:
                for entry in await self._lake.list(directory):
                    name = entry.name.removesuffix(".toml")
                    if entry.kind is Kind.FILE and entry.name.endswith(".toml") and tree.is_job_name(name):
                        found[name], versions[name] = LakePath(join(directory, entry.name)), entry.version
            self._scanned_s = self._clock.monotonic_s()
            self._documents = found
            for name, run in list(self._runs.items()):
                if name not in self._started and run.version != versions.get(name):
                    del self._runs[name]


def _read(file: str) -> list[Started]:
    try:
        with open(file, "rb") as opened:
            return msgspec.json.decode(opened.read(), type=list[Started])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as exc:
        log.warning("%s can't be used, jobs have to be started again: %s", file, exc)
        return []


def _write(file: str, started: list[Started]) -> None:
    with Translated(file):
        partial = f"{file}.partial"
        with open(partial, "wb") as opened:
            opened.write(msgspec.json.encode(started))
        with contextlib.suppress(FileNotFoundError):
            os.replace(partial, file)
