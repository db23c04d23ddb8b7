"""Time as a value that is passed in, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that must know the time is given."""

    def wall_ns(self) -> int:
        """Return ns since the epoch, for what is stored and compared across processes and hosts."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back, for durations and deadlines."""
        ...


class SystemClock:
    """The real one."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()


class FakeClock:
    """Stands still until it is told to advance."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._wall_ns = wall_ns
        self._monotonic_s = 0.0

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._wall_ns += round(seconds * 1e9)
        self._monotonic_s += seconds
