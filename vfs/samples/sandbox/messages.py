"""What a sandbox and the process that owns it say to each other. The bytes of samples lie in shared memory.

Pure: no I/O, no clock. Frames are a u32 little-endian length and a msgpack body. What a child says is not trusted.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from vfs.samples.operators.declare import Declaration
from vfs.units import encode_unit

LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a sandbox is allowed.

    Attributes:
        memory: bytes that one sample may take beyond what the libraries do.
        uid: that the processes run as where the owner is root.
        idle: only CPU time that nothing else on the host wants.
        samples_per_process: a new process after so many.
    """

    memory: int = 1 << 30
    uid: int = 65534
    idle: bool = True
    samples_per_process: int = 256


class OwnOperator(msgspec.Struct, frozen=True):
    """An operator of one's own, whose signature was checked."""

    declaration: Declaration
    code: bytes


class Start(msgspec.Struct, frozen=True):
    """First message to a zygote; answered with `Confinement` or `Trouble`."""

    settings: Settings
    operators: list[OwnOperator]


class Confinement(msgspec.Struct, frozen=True, tag=True):
    """What is in force, as tried out in a child.

    Attributes:
        network, writes, execution: whether each was refused when it was tried.
        by: what refuses it: "network namespace", "landlock 7", "seccomp", "uid 65534", …
        missing: what this host does not have, and why.
    """

    network: bool
    writes: bool
    execution: bool
    by: tuple[str, ...]
    missing: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """One sample; its raw bytes are the first `size` of the input memory."""

    operator: str
    params: str
    seed: int
    provenance: str
    size: int
    output_bytes: int
    cpu_s: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """The file is the first `size` bytes of the output memory."""

    size: int
    pixels: int
    seconds: float
    cpu_s: float


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """It failed; `text` is for people."""

    kind: Literal["failed", "memory", "output", "parameters", "unknown"]
    text: str
    cpu_s: float = 0.0


Answer = Done | Trouble


def frame(message: msgspec.Struct) -> bytes:
    """Return the message as it goes over a socket."""
    body = msgspec.msgpack.encode(message, enc_hook=encode_unit)
    return LENGTH.pack(len(body)) + body
