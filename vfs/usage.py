"""Who asks for what, where it came from and what was waited for: the words of all accounting, and the request being served.

Pure: no I/O, no clock. Values of both processes: the fs worker counts (`vfs/kernel/account.py`), the agent adds up
(`vfs/agent/ledger.py`), and says with each answer what its caller waited for (`collecting`).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import msgspec


class Source(enum.StrEnum):
    """Where an operation was answered from."""

    PASSTHROUGH = "passthrough"
    LOCAL = "local"
    REPLICA = "replica"
    CACHE = "cache"
    ORIGIN = "origin"
    NAMES = "names"


class Cause(enum.StrEnum):
    """What an operation waited for. `vfs/admin/why.py` says what would change each."""

    NAMES = "names"
    QUEUE = "queue"
    MEMORY = "memory"
    BUDGET = "budget"
    LATENCY = "latency"
    LINK = "link"
    RETRY = "retry"
    STORE = "store"
    UPLOAD = "upload"
    DEADLINE = "deadline"
    AGENT = "agent"
    HERE = "here"


SOURCES: dict[Source, str] = {
    Source.PASSTHROUGH: "opens handed to the kernel, which reads the file alone: its bytes are not seen here",
    Source.LOCAL: "a file of a local site, or one that is staged for its origin, through the worker",
    Source.REPLICA: "a copy at a local replica, through the worker",
    Source.CACHE: "verified blocks that were in the cache when they were asked for",
    Source.ORIGIN: "what had to be fetched while the caller waited",
    Source.NAMES: "names, attributes and listings",
}
CAUSES: dict[Cause, str] = {
    Cause.NAMES: "an origin was asked for names or versions",
    Cause.QUEUE: "other requests were using the site's line",
    Cause.MEMORY: "the memory for bytes in flight was taken",
    Cause.BUDGET: "the policy's bandwidth was used up",
    Cause.LATENCY: "a request was sent and its first byte had not come",
    Cause.LINK: "bytes were coming, as fast as the line carried them",
    Cause.RETRY: "a site had failed and was given a pause",
    Cause.STORE: "fetched bytes were being written to the cache",
    Cause.UPLOAD: "what was written was being brought to the origin",
    Cause.DEADLINE: "nothing came until the deadline",
    Cause.AGENT: "the agent was away or busy",
    Cause.HERE: "the worker itself and the local disk",
}


class CallerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What policy rules can match of the process that asks; None where it is not known.

    Attributes:
        job: named as in all accounting (`vfs/processes.py`).
        world: number of ranks of the job.
    """

    uid: int | None = None
    gid: int | None = None
    job: str | None = None
    world: int | None = None


NOBODY = CallerFacts()
"""Who asks where no process does: for what is done of our own accord."""


class Row(msgspec.Struct):
    """Operations of one kind from one source.

    Attributes:
        bytes: that callers got or gave.
        seconds: from the request to its answer, added up over callers.
    """

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, other: Row) -> None:
        """Add another row's numbers."""
        self.count += other.count
        self.bytes += other.bytes
        self.seconds += other.seconds


class Usage(msgspec.Struct, array_like=True):
    """What one process did since the last report.

    Attributes:
        pid: of the process, 0 for the kernel's own requests and for callers that can't be told.
        command: its short name.
        cgroup: its path in the unified hierarchy, "" where unknown.
        rows: by operation ("open", "read", "write", "names") and source.
        causes: seconds.
        paths: seconds of waiting by lake path, those waited for most.
    """

    pid: int
    uid: int
    command: str
    cgroup: str
    rows: dict[str, dict[Source, Row]]
    causes: dict[Cause, float]
    paths: dict[str, float]


class Call(msgspec.Struct, frozen=True):
    """One slow operation, ended or still going on.

    Attributes:
        operation: the kernel's: "read", "lookup", ….
        began_s: seconds since the epoch.
        causes: what it waited for, seconds; may be empty while it goes on.
        error: what it failed with, "" where it did not.
    """

    operation: str
    path: str
    pid: int
    uid: int
    command: str
    began_s: float
    seconds: float
    causes: dict[Cause, float]
    error: str = ""


class Request:
    """A request of the kernel while it is served. What happens on its way is noted here.

    Attributes:
        subject: the handler's arguments, which say what it is about.
        source: where it was answered from.
        causes: what it waited for, seconds; None: nothing but the worker.
        asked: an origin was needed for bytes.
        gid: of its caller, where somebody had to know and the kernel states it.
    """

    __slots__ = ("asked", "began_s", "caller", "causes", "gid", "operation", "source", "subject")

    def __init__(self, operation: str, caller: object, subject: Sequence[object], began_s: float) -> None:
        self.operation = operation
        self.caller = caller
        self.subject = subject
        self.began_s = began_s
        self.source = Source.NAMES
        self.causes: dict[Cause, float] | None = None
        self.asked = False
        self.gid: int | None = None


_request: ContextVar[Request | None] = ContextVar("request", default=None)
_asking: ContextVar[CallerFacts] = ContextVar("asking", default=NOBODY)
_collected: ContextVar[dict[Cause, float] | None] = ContextVar("collected", default=None)


def serve(request: Request) -> None:
    """Make this the request that the current task serves."""
    _request.set(request)


def serving() -> Request | None:
    """Return the request that the current task serves, None in tasks of our own."""
    return _request.get()


@contextlib.contextmanager
def asked_by(caller: CallerFacts) -> Iterator[None]:
    """Let the block, and the tasks of the agent that it starts, ask for this process."""
    token = _asking.set(caller)
    try:
        yield
    finally:
        _asking.reset(token)


def asking() -> CallerFacts:
    """Return the process that the current task of the agent asks for, `NOBODY` where it asks for none."""
    return _asking.get()


def served_from(source: Source) -> None:
    """Note where the bytes of the current request come from, unless it had to wait for an origin."""
    request = _request.get()
    if request is not None:
        request.source = Source.ORIGIN if request.asked else source


def waited(causes: dict[Cause, float], rest: Cause, seconds: float, *, for_bytes: bool) -> None:
    """Note that the current request waited for the agent.

    Args:
        causes: what the agent knows about it.
        rest: what the other seconds were spent on.
        seconds: altogether.
        for_bytes: the request is answered from an origin.
    """
    request = _request.get()
    if request is None:
        return
    request.asked |= for_bytes
    found = request.causes = request.causes or {}
    for cause, part in causes.items():
        found[cause] = found.get(cause, 0.0) + part
    found[rest] = found.get(rest, 0.0) + max(seconds - sum(causes.values()), 0.0)


@contextlib.contextmanager
def collecting() -> Iterator[dict[Cause, float]]:
    """Yield what the block waits for, by cause, as far as `spent` is told inside it."""
    found: dict[Cause, float] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def spent(causes: dict[Cause, float]) -> None:
    """Note what the current task has waited for; nobody may be collecting."""
    found = _collected.get()
    if found is not None:
        for cause, seconds in causes.items():
            found[cause] = found.get(cause, 0.0) + seconds


def between(phases: Sequence[tuple[float, Cause]], start_s: float, end_s: float) -> dict[Cause, float]:
    """Return how `[start_s, end_s)` was spent by work that entered each phase at its time.

    Args:
        phases: (time, cause), in order; what lies before the first one counts as the agent's.
    """
    found: dict[Cause, float] = {}
    at_s, cause = start_s, Cause.AGENT
    for since_s, following in phases:
        if since_s >= end_s:
            break
        if since_s > at_s:
            found[cause] = found.get(cause, 0.0) + since_s - at_s
            at_s = since_s
        cause = following
    if end_s > at_s:
        found[cause] = found.get(cause, 0.0) + end_s - at_s
    return found
