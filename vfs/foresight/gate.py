"""How far a job's predictions are trusted, from what came of the last ones.

Pure: no I/O, no clock. What was announced is not gated: somebody said it. A job whose predictions are off goes on being
predicted, without copies: when they come true again, they are on again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

OUTCOMES_MIN = 5
NARROW_BELOW = 0.5
OFF_BELOW = 0.25
NARROWED = 0.5


class Window(msgspec.Struct, frozen=True):
    """How long hints live, as a share of the time that they would; `off`: they are kept for the ledger alone."""

    share: float = 1.0
    off: bool = False
    why: str = ""


def window_of(outcomes: Sequence[bool], stop_below: float = OFF_BELOW) -> Window:
    """Return the window for the next prediction.

    Args:
        outcomes: of the last ones: whether somebody came.
        stop_below: hit rate below which nothing is copied.
    """
    if len(outcomes) < OUTCOMES_MIN:
        return Window()
    rate = sum(outcomes) / len(outcomes)
    seen = f"{sum(outcomes)} of the last {len(outcomes)} came true"
    if rate < stop_below:
        return Window(NARROWED, off=True, why=f"without copies: {seen}")
    if rate < NARROW_BELOW:
        return Window(NARROWED, why=f"for a shorter time: {seen}")
    return Window()
