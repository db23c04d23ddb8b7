"""A set of bytes as disjoint half-open intervals.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Spans:
    """A set of offsets.

    Attributes:
        total: how many offsets are in it.

    Invariant: intervals ascend, are not empty and don't touch.
    Cost: O(log n + touched) per call, and one shift of a list of n.
    """

    __slots__ = ("_ends", "_starts", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def __len__(self) -> int:
        return len(self._starts)

    def intervals(self) -> list[tuple[int, int]]:
        """Return them all, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the intervals of `[start, end)` that are not in the set, ascending."""
        found = []
        at = start
        for index in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            if self._starts[index] > at:
                found.append((at, self._starts[index]))
            at = self._ends[index]
        if at < end:
            found.append((at, end))
        return found

    def add(self, start: int, end: int) -> list[tuple[int, int]]:
        """Put `[start, end)` in; returns the intervals that were not."""
        if start >= end:
            return []
        new = self.gaps(start, end)
        if new:
            first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
            if first < last:
                start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]
            self.total += sum(stop - begin for begin, stop in new)
        return new

    def remove(self, start: int, end: int) -> int:
        """Take `[start, end)` out; returns how many offsets of it were in."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if start >= end or first >= last:
            return 0
        removed = self.measure(start, end)
        kept = [(self._starts[first], start), (end, self._ends[last - 1])]
        kept = [(begin, stop) for begin, stop in kept if begin < stop]
        self._starts[first:last] = [begin for begin, _ in kept]
        self._ends[first:last] = [stop for _, stop in kept]
        self.total -= removed
        return removed

    def measure(self, start: int, end: int) -> int:
        """Return how many offsets of `[start, end)` are in the set."""
        return sum(
            min(self._ends[index], end) - max(self._starts[index], start)
            for index in range(bisect_right(self._ends, start), bisect_left(self._starts, end))
        )

    def around(self, offset: int) -> tuple[int, int] | None:
        """Return the interval that holds `offset`, or None."""
        index = bisect_right(self._starts, offset) - 1
        return (self._starts[index], self._ends[index]) if index >= 0 and offset < self._ends[index] else None
