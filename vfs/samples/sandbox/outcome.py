"""What became of one sample in a sandbox.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

from vfs.samples.model import Reason


class Made(msgspec.Struct, frozen=True):
    """A sample that was transformed, and what it cost."""

    file: bytes
    pixels: int
    seconds: float
    cpu_s: float


class Fault(msgspec.Struct, frozen=True):
    """A sample that was not: why, and for people, in which words."""

    reason: Reason
    text: str
    cpu_s: float = 0.0


Outcome = Made | Fault
