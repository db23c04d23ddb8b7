"""FUSE_INIT: read the kernel's request, choose what the connection can do, write the reply.

Pure: no I/O, no clock.

The keeper answers INIT itself because no FUSE library for Python exposes passthrough, resend, the background limits or
HANDLE_KILLPRIV_V2. Each fs worker gets a synthetic INIT (`worker_init_request`), so that libfuse knows what was agreed.
Names and values as in the kernel's include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

FUSE_INIT = 26
FUSE_KERNEL_VERSION = 7
FUSE_KERNEL_MINOR_VERSION = 40
"""The protocol that we speak: 7.40 brought passthrough and resend. Later features are asked for by flag, not by version."""
FUSE_MINOR_MIN = 36
"""INIT_EXT and the 64-byte request (Linux 5.17)."""

FUSE_ASYNC_READ = 1 << 0
FUSE_ATOMIC_O_TRUNC = 1 << 3
FUSE_BIG_WRITES = 1 << 5
FUSE_AUTO_INVAL_DATA = 1 << 12
FUSE_DO_READDIRPLUS = 1 << 13
FUSE_READDIRPLUS_AUTO = 1 << 14
FUSE_WRITEBACK_CACHE = 1 << 16
FUSE_PARALLEL_DIROPS = 1 << 18
FUSE_MAX_PAGES = 1 << 22
FUSE_CACHE_SYMLINKS = 1 << 23
FUSE_HANDLE_KILLPRIV_V2 = 1 << 28
FUSE_INIT_EXT = 1 << 30

FUSE_PASSTHROUGH = 1 << 37
FUSE_HAS_RESEND = 1 << 39

WANTED_FLAGS = (
    FUSE_ASYNC_READ
    | FUSE_ATOMIC_O_TRUNC  # an object of an origin that is about to be overwritten need not be fetched first
    | FUSE_BIG_WRITES
    | FUSE_AUTO_INVAL_DATA
    | FUSE_DO_READDIRPLUS
    | FUSE_PARALLEL_DIROPS
    | FUSE_MAX_PAGES
    | FUSE_CACHE_SYMLINKS
    | FUSE_HANDLE_KILLPRIV_V2  # without it each passthrough write costs a getxattr round trip: 73 us for 4 KiB
    | FUSE_INIT_EXT
    | FUSE_HAS_RESEND
)
assert not WANTED_FLAGS & FUSE_WRITEBACK_CACHE, "the kernel refuses passthrough beside the writeback cache"
assert not WANTED_FLAGS & FUSE_READDIRPLUS_AUTO, "the kernel would fall back to bare readdir and one lookup per name"

MAX_BACKGROUND = 256
"""Read-ahead and asynchronous requests in flight. The kernel's default of 12 serialises a remote origin."""
CONGESTION_THRESHOLD = 192
MAX_WRITE = 1 << 20
MAX_PAGES = 256
"""1 MiB per request at 4 KiB pages: the most that libfuse's buffers take."""
MAX_READAHEAD = 16 << 20
"""An upper bound only; what is in force is the bdi's read_ahead_kb, raised after mounting."""
TIME_GRAN_NS = 1
MAX_STACK_DEPTH = 1
"""Backing files lie on plain file systems, not on overlays."""

_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_IN = struct.Struct("<IIIII44x")
_INIT_IN_OLD = struct.Struct("<IIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHIIH22x")
assert _IN_HEADER.size == 40
assert _OUT_HEADER.size == 16
assert _INIT_IN.size == _INIT_OUT.size == 64


class UnusableInit(Exception):
    """The kernel's first request is none that we can answer."""


@dataclass(frozen=True, slots=True)
class InitRequest:
    """What the kernel offers.

    Attributes:
        flags: both halves, 64 bits.
    """

    unique: int
    major: int
    minor: int
    max_readahead: int
    flags: int


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What the connection does from now on, for the fs workers and for `status`.

    Attributes:
        flags: both halves, 64 bits; a subset of what the kernel offered.
        max_stack_depth: 0 without passthrough.
        why_no_passthrough: one sentence, "" with passthrough.
    """

    major: int
    minor: int
    flags: int
    max_readahead: int
    max_background: int
    congestion_threshold: int
    max_write: int
    max_pages: int
    time_gran_ns: int
    max_stack_depth: int
    why_no_passthrough: str = ""

    @property
    def passthrough(self) -> bool:
        """Return whether local files can be read and written by the kernel alone."""
        return bool(self.flags & FUSE_PASSTHROUGH)

    @property
    def resend(self) -> bool:
        """Return whether a new worker can ask for the requests that a dead one had taken."""
        return bool(self.flags & FUSE_HAS_RESEND)

    def to_text(self) -> str:
        """Return it as the value of the workers' `--negotiated`."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> Negotiated:
        """Return what `to_text` was called on.

        Raises:
            ValueError: the text is no such value.
        """
        try:
            return Negotiated(**json.loads(text))
        except TypeError as exc:
            raise ValueError(f"{text!r} is no negotiated INIT") from exc


def decode_request(message: bytes) -> InitRequest:
    """Return the offer in the first message that a new connection gives.

    Raises:
        UnusableInit: it is no INIT, is cut short, or speaks a protocol before 7.36 (Linux 5.17).
    """
    if len(message) < _IN_HEADER.size + _INIT_IN_OLD.size:
        raise UnusableInit(f"the first message has only {len(message)} bytes")
    length, opcode, unique, *_ = _IN_HEADER.unpack_from(message)
    if opcode != FUSE_INIT:
        raise UnusableInit(f"the first message has opcode {opcode} instead of {FUSE_INIT}")
    if length != len(message):
        raise UnusableInit(f"the first message announces {length} bytes and has {len(message)}")
    major, minor, *_ = _INIT_IN_OLD.unpack_from(message, _IN_HEADER.size)
    if major != FUSE_KERNEL_VERSION or minor < FUSE_MINOR_MIN or len(message) < _IN_HEADER.size + _INIT_IN.size:
        raise UnusableInit(
            f"the kernel speaks FUSE {major}.{minor}; {FUSE_KERNEL_VERSION}.{FUSE_MINOR_MIN} (Linux 5.17) or later is needed"
        )
    _, _, max_readahead, low, high = _INIT_IN.unpack_from(message, _IN_HEADER.size)
    return InitRequest(unique, major, minor, max_readahead, low | high << 32)


def negotiate(offer: InitRequest, *, why_no_passthrough: str) -> Negotiated:
    """Return what to agree on: everything wanted that the kernel offers.

    Args:
        why_no_passthrough: the host's reason against passthrough, or "" to have it where the kernel offers it.
    """
    wanted = WANTED_FLAGS
    if not why_no_passthrough and not offer.flags & FUSE_PASSTHROUGH:
        why_no_passthrough = "the kernel does not offer FUSE passthrough (Linux 6.9, CONFIG_FUSE_PASSTHROUGH)"
    if not why_no_passthrough:
        wanted |= FUSE_PASSTHROUGH
    return Negotiated(
        major=FUSE_KERNEL_VERSION,
        minor=min(offer.minor, FUSE_KERNEL_MINOR_VERSION),
        flags=offer.flags & wanted,
        max_readahead=MAX_READAHEAD,
        max_background=MAX_BACKGROUND,
        congestion_threshold=CONGESTION_THRESHOLD,
        max_write=MAX_WRITE,
        max_pages=MAX_PAGES,
        time_gran_ns=TIME_GRAN_NS,
        max_stack_depth=0 if why_no_passthrough else MAX_STACK_DEPTH,
        why_no_passthrough=why_no_passthrough,
    )


def encode_reply(unique: int, agreed: Negotiated) -> bytes:
    """Return the whole message that answers the INIT of this number."""
    body = _INIT_OUT.pack(
        agreed.major,
        agreed.minor,
        agreed.max_readahead,
        agreed.flags & 0xFFFFFFFF,
        agreed.max_background,
        agreed.congestion_threshold,
        agreed.max_write,
        agreed.time_gran_ns,
        agreed.max_pages,
        0,  # map_alignment: DAX only
        agreed.flags >> 32,
        agreed.max_stack_depth,
        0,  # request_timeout: not asked for
    )
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), 0, unique) + body


def decode_reply(message: bytes) -> tuple[int, Negotiated]:
    """Return (unique, what was agreed) from a reply of ours; the inverse of `encode_reply`.

    Raises:
        UnusableInit: it is no such reply.
    """
    if len(message) != _OUT_HEADER.size + _INIT_OUT.size:
        raise UnusableInit(f"an INIT reply has 80 bytes, not {len(message)}")
    _, error, unique = _OUT_HEADER.unpack_from(message)
    if error:
        raise UnusableInit(f"the reply refuses with errno {-error}")
    major, minor, readahead, low, background, congestion, write, gran, pages, _, high, depth, _ = _INIT_OUT.unpack_from(
        message, _OUT_HEADER.size
    )
    agreed = Negotiated(
        major, minor, low | high << 32, readahead, background, congestion, write, pages, gran, depth
    )  # fmt: skip
    return unique, agreed


def worker_init_request(agreed: Negotiated, *, unique: int = 2, pid: int = 0) -> bytes:
    """Return the INIT that a worker feeds to libfuse in the kernel's place.

    The form from before 7.36 (16 bytes, 32 flags): every libfuse 3 takes it, and none learns of flags that it would
    answer in its own way. Its reply is thrown away, for the kernel has had ours.
    """
    body = _INIT_IN_OLD.pack(agreed.major, _WORKER_MINOR, agreed.max_readahead, agreed.flags & 0xFFFFFFFF & ~FUSE_INIT_EXT)
    return _IN_HEADER.pack(_IN_HEADER.size + len(body), FUSE_INIT, unique, 0, 0, 0, pid, 0, 0) + body


_WORKER_MINOR = 31
"""What libfuse 3.2 to 3.18 all speak; it decides the size of the structures, which have not changed since."""
