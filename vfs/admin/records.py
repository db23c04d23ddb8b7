"""What the admin API says, as types: the answers, the OpenAPI document and the tests are all made of these.

Pure: no I/O, no clock. An answer may hold more keys than its type names: rooms add facts of their own.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from vfs.agent.ledger import Moment
from vfs.extents.link import LineFacts
from vfs.policy.diff import Change
from vfs.policy.written import SNAPSHOT_NAME
from vfs.usage import Call, Cause, Row, Source

PATHS_MAX = 1000
PATH_CHARS_MAX = 4096
LakePathText = Annotated[str, msgspec.Meta(max_length=PATH_CHARS_MAX, description="Lake path; a leading slash is ignored.")]


class FailureFacts(msgspec.Struct, frozen=True):
    """What went wrong: its kind, what it is about, one sentence, and what to do about it."""

    kind: str
    subject: str
    reason: str
    hint: str


class Refusal(msgspec.Struct, frozen=True):
    """The body of every answer that is no success."""

    error: FailureFacts


class Trouble(msgspec.Struct, frozen=True):
    """Something that is wrong, and what to do about it."""

    what: str
    advice: str


class Health(msgspec.Struct, frozen=True):
    """The mount in one line.

    Attributes:
        verdict: "serving" or "trouble".
        sentence: for people.
    """

    verdict: str
    sentence: str
    troubles: list[Trouble]


class MountFacts(msgspec.Struct, frozen=True):
    """One line of the mount table."""

    prefix: str
    site: str
    root: str
    replicas: list[str]
    writable: bool
    local: bool


class WorkerFacts(msgspec.Struct, frozen=True):
    """The fs worker, and the kernel's requests to it by kind."""

    connected: bool
    passthrough: bool
    why_no_passthrough: str
    counters: dict[str, float]


class PolicySummary(msgspec.Struct, frozen=True):
    """What is in force, and why newer documents are not."""

    version: str
    documents: list[str]
    error: FailureFacts | None


class StatusFacts(msgspec.Struct, frozen=True):
    """The mount as `foremount status` shows it."""

    version: str
    host: str
    mountpoint: str
    health: Health
    mounts: list[MountFacts]
    worker: WorkerFacts
    stores: dict[str, dict[str, Any]]
    open_objects: int
    fetches: dict[str, int]
    sites: dict[str, dict[str, Any]]
    policies: PolicySummary
    admin: dict[str, str]


class DocumentFacts(msgspec.Struct, frozen=True):
    """One policy document in force."""

    name: str
    source: str
    shipped: bool
    about: str
    digest: str
    rules: list[str]


class PolicyFacts(msgspec.Struct, frozen=True):
    """The policy in force; its version is the ETag."""

    version: str
    documents: list[DocumentFacts]
    error: FailureFacts | None


class ReloadFacts(msgspec.Struct, frozen=True):
    """What a reload did."""

    before: str
    after: str
    changes: list[Change]


class JobFacts(msgspec.Struct, frozen=True):
    """One job since the agent was started.

    Attributes:
        uid: -1 for the job "other", which holds those that were too many.
        processes: that did something in the last minute.
        operations, bytes: by source.
        waits: seconds by cause, without the worker's own time.
        rows: by operation and source.
        bytes_minute, wait_s_minute: of the last minute.
        stall: part of the last minute that its processes spent waiting, on average: 0 to 1, more where threads wait side by
            side.
        seen_s: when it did something last, since the epoch.
    """

    job: str
    uid: int
    cgroup: str
    commands: list[str]
    processes: int
    operations: dict[Source, int]
    bytes: dict[Source, int]
    waits: dict[Cause, float]
    rows: dict[str, dict[Source, Row]]
    bytes_minute: int
    wait_s_minute: float
    stall: float
    seen_s: float


class Jobs(msgspec.Struct, frozen=True):
    """Jobs, those that waited most in the last minute first."""

    at_s: float
    jobs: list[JobFacts]


class Stats(msgspec.Struct, frozen=True):
    """Sums since the agent was started, and the last two minutes second by second.

    Attributes:
        rows: by operation and source. Reads in passthrough and from the kernel's page cache are not seen: only their opens.
        causes: seconds by cause.
        slow: operations of 0.1 s or more, the latest first, 50 at most.
        waiting: operations that go on for long right now.
        lost_reports: of the worker, that came faster than they could be added up.
        lines: what is known of the sites' lines.
    """

    at_s: float
    rows: dict[str, dict[Source, Row]]
    causes: dict[Cause, float]
    moments: list[Moment]
    slow: list[Call]
    waiting: list[Call]
    lost_reports: int
    lines: list[LineFacts]


class Transfer(msgspec.Struct, frozen=True):
    """Bytes that are being fetched right now.

    Attributes:
        priority: "foreground", "prefetch" or "background".
        state: what it waits for, as a cause.
        readers: callers that wait for it.
    """

    site: str
    path: str
    offset: int
    bytes_total: int
    bytes_done: int
    priority: str
    state: str
    readers: int


class Order(msgspec.Struct, frozen=True):
    """A tree that somebody has asked to be made local."""

    paths: list[str]
    began_s: float
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    failed: int


class Transfers(msgspec.Struct, frozen=True):
    """What is on its way, 200 requests at most, and orders that go on."""

    orders: list[Order]
    requests: list[Transfer]
    more: int


class ReplicaFacts(msgspec.Struct, frozen=True):
    """A place that may hold copies of what lies below a prefix.

    Attributes:
        role: "origin" or "replica".
        local: it is a directory of this host.
        answers: it answered when it was asked last.
        bytes_per_s, ttfb_s: of its line as measured; None where it was not used.
    """

    prefix: str
    site: str
    root: str
    role: str
    local: bool
    answers: bool
    bytes_per_s: float | None
    ttfb_s: float | None
    requests_in_flight: int
    failures_in_a_row: int


class Replicas(msgspec.Struct, frozen=True):
    """All places, by prefix; what the rooms say about copies in `rooms`."""

    replicas: list[ReplicaFacts]


class CachedObjectFacts(msgspec.Struct, frozen=True):
    """One object of the cache."""

    site: str
    path: str
    size: int
    present: int
    used: int
    sealed: bool
    held: bool


class CacheFacts(msgspec.Struct, frozen=True):
    """The stores, and objects of the cache below a site path, `limit` at most.

    Attributes:
        more: there are others.
    """

    stores: dict[str, dict[str, Any]]
    objects: list[CachedObjectFacts]
    more: bool


class Advice(msgspec.Struct, frozen=True):
    """One cause of waiting and what would change it.

    Attributes:
        seconds: waited in the window, over all threads.
        share: of all waiting.
        meaning: what the time was spent on.
        change: what to change: a policy value with what is in force, a setting of `foremount.toml`, or a resource.
        rule: where that value comes from, "" where no rule is involved.
    """

    cause: Cause
    seconds: float
    share: float
    meaning: str
    change: str
    rule: str = ""


class PathWait(msgspec.Struct, frozen=True):
    """A path that was waited for."""

    path: str
    seconds: float


class Why(msgspec.Struct, frozen=True):
    """Where the time of a process, a job or all callers went.

    Attributes:
        subject: whom it is about.
        window_s: looked at.
        operations, bytes: in the window, by source.
        waited_s: on anything but the worker itself, over all threads.
        here_s: in the worker and on the local disk.
        causes: the longest first.
        going_on: operations that wait right now.
    """

    subject: str
    window_s: float
    sentence: str
    processes: int
    operations: dict[Source, int]
    bytes: dict[Source, int]
    waited_s: float
    here_s: float
    causes: list[Advice]
    paths: list[PathWait]
    going_on: list[Call]
    slow: list[Call]


class Rooms(msgspec.Struct, frozen=True):
    """Facts of rooms that have no resource of their own, by name: each a table or key and value."""

    rooms: dict[str, Any]


class Event(msgspec.Struct, frozen=True):
    """Something that happened; each is one server-sent event.

    Attributes:
        kind: "stats", "slow", "policy", "worker", "site" or "transfer".
    """

    id: int
    at_s: float
    kind: str
    data: Any


class Overview(msgspec.Struct, frozen=True):
    """All that the page and `foremount top` show."""

    status: StatusFacts
    stats: Stats
    jobs: Jobs
    replicas: Replicas
    transfers: Transfers
    policies: PolicyFacts
    rooms: Rooms


class PathsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trees are meant."""

    paths: Annotated[list[LakePathText], msgspec.Meta(max_length=PATHS_MAX)]


SnapshotText = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=f"^{SNAPSHOT_NAME}$")]


class SnapshotName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which snapshot is meant."""

    name: SnapshotText


class SnapshotBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be listed, and the name that rules pin it by."""

    name: SnapshotText
    prefix: LakePathText


class SnapshotFacts(msgspec.Struct, frozen=True):
    """One snapshot.

    Attributes:
        taken: when its listing was begun, UTC; "" while it is being taken or dropped.
        pinned_by: the first rule that names it, or "".
        state: "ready", "unfinished", or "missing": a rule names it, and it is not on this host.
    """

    name: str
    prefix: str
    taken: str
    directories: int
    files: int
    bytes: int
    pinned_by: str
    state: str


class SnapshotsHeld(msgspec.Struct, frozen=True):
    """Snapshots by name."""

    snapshots: list[SnapshotFacts]


JobName = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job whose samples are shown at `.jobs`: a document in the lake, or the text of one.

    Attributes:
        declaration: lake path of the document; "": `text` is the document, its name `name` and its place `directory`.
    """

    declaration: LakePathText = ""
    text: Annotated[str, msgspec.Meta(max_length=1 << 20)] = ""
    name: Annotated[str, msgspec.Meta(max_length=255)] = ""
    directory: LakePathText = ""


class JobBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which job is meant."""

    job: JobName


class TellBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which step a job is about to read, with which ranks on this host; none: those that it has read with."""

    job: JobName
    step: Annotated[int, msgspec.Meta(ge=0, le=10**18 - 1)]
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=10**9 - 1)]], msgspec.Meta(max_length=4096)] = []


class TimelineQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which job is meant."""

    job: JobName


class Evicted(msgspec.Struct, frozen=True):
    """What was dropped."""

    objects: int
    bytes: int


class Ended(msgspec.Struct, frozen=True):
    """Whether there was a recording to end."""

    ended: bool


class CheckpointsFound(msgspec.Struct, frozen=True):
    """Checkpoints by path; each as in `vfs/agent/writing/checkpoints.py`."""

    checkpoints: list[dict[str, Any]]


class PathQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which path is meant."""

    path: LakePathText = ""


class ExplainQuery(PathQuery, frozen=True, forbid_unknown_fields=True):
    """Which path is meant, and who asks: what is not stated is not known."""

    uid: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    gid: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    job: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    world: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    rules: Annotated[bool, msgspec.Meta(description="Say of every rule whether it matches, and if not, why.")] = False


class CacheQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which objects of the cache are meant."""

    below: Annotated[str, msgspec.Meta(max_length=PATH_CHARS_MAX, description="SITE:PATH that they lie below.")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class WhyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is meant: a process (0: none), a job ("": none), or nobody in particular."""

    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    job: Annotated[str, msgspec.Meta(max_length=200)] = ""
    window: Annotated[int, msgspec.Meta(ge=1, le=120, description="Seconds looked at.")] = 60


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a stream of events begins.

    Attributes:
        since: the last event that was seen; those after it that are still known come first. -1: only what comes.
        seconds: after which the stream ends; 0: never.
    """

    since: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    seconds: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 0
