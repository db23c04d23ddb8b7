"""What became of a scheduled sample: transformed, or why it stays raw.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfs.samples.model import Envelope, Reason


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transformed sample, and what it cost.

    Attributes:
        pixels, seconds: that were decoded.
    """

    envelope: Envelope
    body: bytes
    pixels: int
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a sample stays raw; `text` for people."""

    reason: Reason
    text: str
    cpu_s: float = 0.0
