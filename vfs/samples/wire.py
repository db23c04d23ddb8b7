"""What the worker of `.jobs` and the agent say to each other, in the frames of `vfs/frames.py`.

Pure: no I/O, no clock. Calls may be repeated after a reconnect, all of them are idempotent. Bytes of samples never travel
here: the agent writes complete files, an answer names them.
"""

from __future__ import annotations

import msgspec

from vfs.frames import Dialect, Failed
from vfs.model import Kind
from vfs.samples.model import Form


class Node(msgspec.Struct, frozen=True, array_like=True):
    """One name below `.jobs`, fixed for the life of its inode: its content never changes.

    Attributes:
        path: relative to `.jobs`, e.g. "run7/step_0000012/rank_0003/000017.npy".
        kind: file or directory.
        key: names the content; another form of the same sample has another key. "" for directories.
        size: bytes.
        mtime_ns: of the schedule; equal on every host.
        form: what the bytes are, told as xattr `user.foremount.form`; None for directories.
        provenance: JSON, told as xattr `user.foremount.provenance`: identity, and why it is raw.
        file: absolute path of a complete local file with the content; "" while it is not here (`Content` brings it).
    """

    path: str
    kind: Kind
    key: str = ""
    size: int = 0
    mtime_ns: int = 0
    form: Form | None = None
    provenance: str = ""
    file: str = ""


class Greet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First message of a worker of `.jobs`; not answered, but what is ready already is told as `Placed`."""

    pid: int


class Look(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Decide what `path` is, and in which form; answered with `Seen`."""

    path: str


class Children(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """List a directory, deciding the form of each of its samples; answered with `Nodes`. Costs no transform."""

    path: str


class Content(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bring the content of a node into a local file; answered with `At`."""

    path: str
    key: str


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The kernel holds these no more: (path, key). Not answered."""

    nodes: list[tuple[str, str]]


class Entered(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A reader has come to a directory that was placed: how far its rank is. Told once for each placing. Not answered."""

    path: str


class Counters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests of the kernel by handler, and what was pushed, since the worker was started. Not answered."""

    values: dict[str, float]


Call = Greet | Look | Children | Content | Forgotten | Entered | Counters


class Seen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What is there; None: nothing."""

    node: Node | None


class Nodes(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The children by name, without "." and ".."; None: there is no such directory."""

    nodes: list[Node] | None


class At(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Absolute path of a complete local file with exactly the content asked for."""

    file: str


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These samples are ready, their step comes next: told with id 0, to be pushed into the page cache.

    Attributes:
        directory: the path that they lie in.
        nodes: with `file` set.
    """

    directory: str
    nodes: list[Node]


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These directories' steps have been read: their files go. Told with id 0."""

    directories: list[str]


Answer = Seen | Nodes | At | Placed | Dropped | Failed


DIALECT = Dialect[Call, Answer](Call, Answer)
"""What is said on the line of the worker of `.jobs`."""
