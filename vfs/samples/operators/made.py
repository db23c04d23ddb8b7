"""What an operator of ours returns."""

from __future__ import annotations

from dataclasses import dataclass

from vfs.samples.operators.produce import Arrays


@dataclass(frozen=True, slots=True)
class Made:
    """The arrays, and what they cost: the size of what was decoded, for the cost model.

    Attributes:
        pixels: that were decoded.
        seconds: of sound or film that were decoded.
    """

    arrays: Arrays
    pixels: int = 0
    seconds: float = 0.0
