"""What the fs worker and the agent say to each other over a Unix stream socket.

Pure: no I/O, no clock. The worker asks, the agent answers, in the frames of `vfs/frames.py`; calls may be repeated after a
reconnect, all of them are idempotent. Bytes of files never travel here: the agent puts them into the cache, an answer says
that they are there.
"""

from __future__ import annotations

import msgspec

from vfs.frames import Dialect, Failed
from vfs.model import Entry, LakePath, ObjectKey, Version
from vfs.usage import Call as SlowCall
from vfs.usage import CallerFacts, Usage

WHOLE = -2
"""For `Need.broken`."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First message of a worker. Answered with `Welcome`.

    Attributes:
        pid: of the worker.
        passthrough: whether local files are read by the kernel alone.
        why_not: the reason where they are not, else "".
    """

    pid: int
    passthrough: bool
    why_not: str


class Stat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ask the origin for one path; the answer is in the catalog too. Answered with `Found`."""

    path: LakePath


class List(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bring a directory's listing into the catalog; answered with `Listed` once it holds more than `after` entries, or all.

    Attributes:
        generation: of the listing that `after` counts in; 0 for whichever is current. A listing that was replaced
            meanwhile is answered as far as it is still there.
    """

    path: LakePath
    generation: int
    after: int


class OpenObject(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Prepare this version in the cache and keep it from being evicted until `CloseObject`. Answered with `Opened`."""

    path: LakePath
    version: Version


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One more process has an open object open; sent where policy rules ask who that is. Not answered."""

    key: ObjectKey
    caller: CallerFacts


class Hold(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Keep an object that the worker found complete, and that the kernel may read, until `CloseObject`. Not answered."""

    key: ObjectKey


class Need(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fetch a range of an open object; answered with `Ready` once every block of it is in the cache.

    Attributes:
        offset, length: bytes; the agent may fetch more.
        broken: a block that failed its digest and is to be dropped first, `WHOLE` where the object's files as such can't be
            used and are to be made anew, else -1.
    """

    key: ObjectKey
    offset: int
    length: int
    broken: int = -1


class Reads(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the kernel has read of an open object lately, hits and misses, in order. Not answered: food for prediction.

    Attributes:
        ranges: (offset, length) of each read.
    """

    key: ObjectKey
    ranges: list[tuple[int, int]]


class CloseObject(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The worker holds no handle on it any more. Not answered."""

    key: ObjectKey


class Used(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What callers did since the last such message. Not answered.

    Attributes:
        slow: operations that have ended.
        waiting: those that go on for long already.
    """

    usages: list[Usage]
    slow: list[SlowCall]
    waiting: list[SlowCall]


class Seen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A process that was not known before asks for something: its job is to be found out while it lives. Not answered."""

    usage: Usage


class Counters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests of the kernel by handler since the worker was started. Not answered."""

    values: dict[str, float]


class Staging(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The journal of staged writes has grown (`vfs/namespace/staged.py`). Not answered; the agent looks by itself too."""


class Settle(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bring a staged node to its origin now; answered with `Settled` once that holds this content, or a later one, verified.

    For a node of kind ABSENT: once it is gone from there. `Stale` where the journal does not hold the node any more.
    """

    id: int
    seq: int


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take a staging file into the cache by renaming it: the worker has given it up, its origin holds it. See `Adopted`.

    Attributes:
        id, seq: of the node, whose content it was.
        content: number of the staging file.
    """

    id: int
    seq: int
    content: int


class Traced(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the kernel opened and read while a recording goes on (`vfs/traces/records.py`). Not answered.

    Attributes:
        worker: process that serves the mount; with another one file numbers begin anew.
        files: (number, path, version) of those that the records name for the first time.
        records: packed `RECORD`s.
        lost: events that were not recorded because the agent did not keep up.
        last: the recording was switched off, nothing comes after this.
    """

    worker: int
    files: list[tuple[int, LakePath, Version]]
    records: bytes
    lost: int = 0
    last: bool = False


Call = (
    Hello
    | Stat
    | List
    | OpenObject
    | Joined
    | Hold
    | Need
    | Reads
    | CloseObject
    | Counters
    | Used
    | Seen
    | Staging
    | Settle
    | Adopt
    | Traced
)


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The agent's answer to `Hello`."""

    pid: int


class Found(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The entry, or None where the origin says that nothing is there."""

    entry: Entry | None


class Listed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How much of the listing is in the catalog.

    Attributes:
        generation: under which the catalog holds it.
        count: entries so far; they are numbered from 0.
        complete: no more will come.
    """

    generation: int
    count: int
    complete: bool


class CopyHere(msgspec.Struct, frozen=True, array_like=True):
    """A file of this host, below a directory.

    Attributes:
        version: as a `local` site states it.
    """

    directory: str
    path: str
    version: Version


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Where the object's data and digests lie (`vfs/extents/layout.py`).

    Attributes:
        root: directory of the store that holds it now: the cache, or memory when the cache disk can't be used.
        here: a copy of all of it on this host, made and verified ahead; None: there is none.
    """

    root: str
    here: CopyHere | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The range is in the cache.

    Attributes:
        root: as in `Opened`; where it differs from before, the files have to be opened again.
        here: as in `Opened`, where the copy has come since it was opened.
    """

    root: str
    here: CopyHere | None = None


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The origin has it; the table of uploads says where and in which version."""


class Adopted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Whether the staging file is the cache's now; else it lies where it was, and may go."""

    adopted: bool


class Expect(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What is going to be read of an open object, as the agent believes. Nobody asks for it: it comes under id 0.

    Attributes:
        ranges: (offset, length), each of one member, or ahead of one stream. They need not be in the cache yet.
    """

    key: ObjectKey
    ranges: list[tuple[int, int]]


class Tracing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Begin to send `Traced`, or end it. Told by the agent with id 0: it answers nothing."""

    on: bool


Answer = Welcome | Found | Listed | Opened | Ready | Settled | Adopted | Failed | Tracing | Expect


DIALECT = Dialect[Call, Answer](Call, Answer)
"""What is said on the line of the fs worker."""
