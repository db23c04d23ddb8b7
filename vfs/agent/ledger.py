"""What callers did, added up: in all, by job, and second by second for the last two minutes.

Pure: no I/O, no clock; every event says when it happened. Everything here is bounded: what is too much is added to the job
"other".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from vfs.usage import Call, Cause, Row, Source, Usage

WINDOW_S = 120
"""How far back `moments` and `recent` reach."""
JOBS_MAX = 256
USAGES_MAX = 20_000
"""Kept one by one for `why`: 160 processes in each of 120 seconds."""
SLOW_MAX = 200


class JobKey(NamedTuple):
    """Whom operations are charged to."""

    job: str
    uid: int
    cgroup: str


OTHER = JobKey("other", -1, "")
Rows = dict[str, dict[Source, Row]]


class Moment(msgspec.Struct):
    """One report of the worker, about a second.

    Attributes:
        at_s: since the epoch.
        seconds: since the report before.
        waits: without what the worker itself took.
    """

    at_s: float
    seconds: float
    operations: dict[Source, int]
    bytes: dict[Source, int]
    waits: dict[Cause, float]


class JobTotals(msgspec.Struct):
    """Of one job since the agent was started.

    Attributes:
        seen_s: when it did something last, since the epoch.
        commands: short names of its processes, at most 8.
    """

    rows: Rows = {}
    causes: dict[Cause, float] = {}
    seen_s: float = 0.0
    commands: list[str] = []


class Recent(NamedTuple):
    """One process's part of a moment."""

    at_s: float
    key: JobKey
    usage: Usage


class Ledger:
    """The books.

    Attributes:
        waiting: operations that went on for long when the worker reported last.
        lost: reports that came faster than they could be taken in.

    Invariant: `rows` and `causes` are the sums over `jobs`.
    """

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.causes: dict[Cause, float] = {}
        self.jobs: dict[JobKey, JobTotals] = {}
        self.moments: deque[Moment] = deque(maxlen=WINDOW_S)
        self.slow: deque[Call] = deque(maxlen=SLOW_MAX)
        self.slow_count = 0
        self.waiting: list[Call] = []
        self.lost = 0
        self._recent: deque[Recent] = deque(maxlen=USAGES_MAX)

    def add(self, at_s: float, usages: list[tuple[JobKey, Usage]], slow: list[Call], waiting: list[Call]) -> Moment:
        """Take in one report; returns its sums.

        Args:
            at_s: since the epoch.
            usages: what processes did since the report before, each with whom it is charged to.
        """
        seconds = min(at_s - self.moments[-1].at_s, 10.0) if self.moments else 1.0
        moment = Moment(at_s, max(seconds, 0.001), {}, {}, {})
        for key, usage in usages:
            self._charge(at_s, key, usage)
            self._recent.append(Recent(at_s, key, usage))
            for source, row in _each(usage.rows):
                moment.operations[source] = moment.operations.get(source, 0) + row.count
                moment.bytes[source] = moment.bytes.get(source, 0) + row.bytes
            for cause, waited_s in usage.causes.items():
                if cause is not Cause.HERE:
                    moment.waits[cause] = moment.waits.get(cause, 0.0) + waited_s
        while self._recent and self._recent[0].at_s < at_s - WINDOW_S:
            self._recent.popleft()
        self.moments.append(moment)
        self.slow.extend(slow)
        self.slow_count += len(slow)
        self.waiting = waiting
        return moment

    def waiting_count(self) -> int:
        """Return how many operations went on for long when the worker reported last."""
        return len(self.waiting)

    def recent(self, since_s: float) -> Iterator[Recent]:
        """Yield what processes did after this time, since the epoch."""
        return (entry for entry in self._recent if entry.at_s > since_s)

    def _charge(self, at_s: float, key: JobKey, usage: Usage) -> None:
        totals = self.jobs.get(key)
        if totals is None:
            if len(self.jobs) >= JOBS_MAX:
                self._forget_oldest()
            totals = self.jobs[key] = JobTotals({}, {}, at_s, [])
        totals.seen_s = at_s
        if usage.command not in totals.commands and len(totals.commands) < 8:
            totals.commands.append(usage.command)
        _add_rows(totals.rows, usage.rows)
        _add_rows(self.rows, usage.rows)
        _add_causes(totals.causes, usage.causes)
        _add_causes(self.causes, usage.causes)

    def _forget_oldest(self) -> None:
        """Let the job that has been quiet for longest become a part of "other"."""
        oldest = min((key for key in self.jobs if key != OTHER), key=lambda key: self.jobs[key].seen_s)
        gone = self.jobs.pop(oldest)
        other = self.jobs.setdefault(OTHER, JobTotals({}, {}, gone.seen_s, []))
        _add_rows(other.rows, gone.rows)
        _add_causes(other.causes, gone.causes)


def _each(rows: Rows) -> Iterator[tuple[Source, Row]]:
    for by_source in rows.values():
        yield from by_source.items()


def _add_rows(into: Rows, rows: Rows) -> None:
    for operation, by_source in rows.items():
        for source, row in by_source.items():
            into.setdefault(operation, {}).setdefault(source, Row()).add(row)


def _add_causes(into: dict[Cause, float], causes: dict[Cause, float]) -> None:
    for cause, seconds in causes.items():
        into[cause] = into.get(cause, 0.0) + seconds
