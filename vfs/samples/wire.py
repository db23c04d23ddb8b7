"""What the worker of `.jobs` and the agent say to each other, in the frames of `vfs/wire.py`.

Pure: no I/O, no clock. Calls may be repeated after a reconnect, all of them are idempotent. Bytes of samples never travel
here: the agent writes complete files, an answer names them.
"""

from __future__ import annotations

import msgspec

from vfs.errors import Failure
from vfs.model import Kind
from vfs.samples.model import Form
from vfs.usage import Cause
from vfs.wire import decode_frame, encode_frame


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


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The call's expected failure."""

    failure: Failure


Answer = Seen | Nodes | At | Placed | Dropped | Failed


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A call with the number that its answer will carry; id 0 is not answered. `deadline_s` as in `vfs/wire.py`."""

    id: int
    call: Call
    deadline_s: float = 0.0


class Response(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request of this id; with id 0 the agent tells something of its own accord.

    Attributes:
        causes: what it took its time for, seconds, as far as the agent knows.
    """

    id: int
    answer: Answer
    causes: dict[Cause, float] = {}


_request_decoder = msgspec.msgpack.Decoder(Request)
_response_decoder = msgspec.msgpack.Decoder(Response)


def encode(message: Request | Response) -> bytes:
    """Return the message as one frame of `vfs/wire.py`, whose `FrameBuffer` takes a stream of them apart."""
    return encode_frame(message)


def decode_request(body: bytes) -> Request:
    """Return the request in a frame's body.

    Raises:
        BrokenFrame: it is none.
    """
    return decode_frame(_request_decoder, body)


def decode_response(body: bytes) -> Response:
    """Return the response in a frame's body.

    Raises:
        BrokenFrame: it is none.
    """
    return decode_frame(_response_decoder, body)
