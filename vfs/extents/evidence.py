"""Which members the reads of a file show to be wanted.

Pure: no I/O, no clock.

A page that is missing in a mapped file makes the kernel read as much before it as after it, and what it sees as sequential,
it reads up to two windows beyond what was touched. So a member is wanted

- when it is read exactly, from its first byte or page to its last: no fault's surroundings fit so well;
- when its head's page is where the fault was, it is longer than the kernel reads before one, and nothing wanted ends just
  before it; the fault was at the begin or in the middle of a read that jumps, or as far from its end as the kernel reads on,
  where a part of its surroundings was there already;
- when the bytes read without a hole reach further beyond its head than the kernel reads ahead;
- when half of it is read, and more than the kernel reads ahead, wherever it begins;
- when the one before it is wanted, its own first byte was read with that, and a read that jumps has its fault in the page of
  its last byte: copying a tensor touches both ends before the middle (seen with safetensors 0.8 and numpy), and the page of
  its end is that of its neighbour's head too.

Small members that a fault's surroundings cover may or may not be meant; they are reported apart.
"""

from __future__ import annotations

from typing import NamedTuple

from vfs.checkpoints.layout import Layout
from vfs.extents.spans import Spans

_PAGE = 4096
_CANDIDATES_MAX = 2048
"""Members looked at per read: enough for 512 KiB of tensors of 256 bytes."""


class Seen(NamedTuple):
    """What one read shows.

    Attributes:
        new: intervals that had not been read before.
        jumped: it does not continue what was read before, or no read since one that did not has shown anything wanted.
        run_bytes: read without a hole up to the end of this one.
        wanted: members, for the first time, ascending.
        covered: small members that lie wholly in it and may or may not be wanted; of reads that jump only.
    """

    new: list[tuple[int, int]]
    jumped: bool
    run_bytes: int
    wanted: list[int]
    covered: list[int]


class Evidence:
    """The reads of one file.

    Attributes:
        wanted: members, in the order in which they were recognised.
    """

    def __init__(self, layout: Layout, *, around_bytes: int, ahead_bytes: int) -> None:
        self._layout = layout
        self._around = around_bytes
        self._ahead = ahead_bytes
        self._read = Spans()
        self._jump = 0
        self._is_unexplained = False
        self.wanted: dict[int, int] = {}
        """Member → where the jump began that led to it."""

    @property
    def read_bytes(self) -> int:
        return self._read.total

    @property
    def intervals_count(self) -> int:
        return len(self._read)

    def intervals(self) -> list[tuple[int, int]]:
        """Return what was read, ascending."""
        return self._read.intervals()

    def covered(self, start: int, end: int) -> int:
        """Return how many bytes of `[start, end)` were read."""
        return self._read.measure(start, end)

    def absent(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the intervals of `[start, end)` that were not read."""
        return self._read.gaps(start, end)

    def push(self, start: int, end: int) -> list[tuple[int, int]]:
        """Count bytes as read that nobody asked for; returns those that were not before."""
        return self._read.add(start, min(end, self._layout.size))

    def read(self, start: int, end: int) -> Seen:
        """Take in a read of `[start, end)`."""
        jumped = start > 0 and self._read.around(start - 1) is None
        if jumped:
            self._jump, self._is_unexplained = start, True
        new = self._read.add(start, end)
        wanted: list[int] = []
        covered: list[int] = []
        if new:
            self._search(start, end, jumped, wanted, covered)
        for member in wanted:
            self.wanted[member] = self._jump
        jumped |= self._is_unexplained
        self._is_unexplained &= not wanted
        run = self._read.around(end - 1)
        return Seen(new, jumped, end - run[0] if run is not None else 0, wanted, covered)

    def _search(self, start: int, end: int, jumped: bool, wanted: list[int], covered: list[int]) -> None:
        """Go through the members near the read, with `anchor` the end of the last one that is wanted."""
        layout = self._layout
        first = max(0, start - 2 * self._ahead)
        near = layout.touched(first, end - first)
        near = range(max(0, near.start - 1, near.stop - _CANDIDATES_MAX), near.stop)  # and what may have spilt into them
        anchor = sum(layout.header) or -1  # without a header nothing can have spilt into the first member
        for member in near:
            offset, length = layout.offsets[member], layout.lengths[member]
            if member in self.wanted:
                anchor = offset + length
                continue
            if offset + length <= start - self._ahead:
                continue
            run = self._read.around(offset)
            if (
                self._is_exact(offset, length, start, end)
                or (jumped and self._are_both_ends_touched(offset, length, start, end, anchor))
                or self._is_meant(offset, length, run, anchor, start, end)
            ):
                wanted.append(member)
                anchor = offset + length
            elif jumped and run is not None and offset + length <= run[1] and start <= offset < end:
                covered.append(member)

    def _is_exact(self, offset: int, length: int, start: int, end: int) -> bool:
        if start == offset and (end == offset + length or start % _PAGE):
            return True
        first, last = offset // _PAGE * _PAGE, min(-(-(offset + length) // _PAGE) * _PAGE, self._layout.size)
        return (start, end) == (first, last)

    def _is_meant(self, offset: int, length: int, run: tuple[int, int] | None, anchor: int, start: int, end: int) -> bool:
        """Return whether what was read without a hole around the member's head, `run`, is more than a spill."""
        if run is None:
            return length > self._ahead and self._read.measure(offset, offset + length) >= max(self._ahead, length // 2)
        if run[1] - offset > self._ahead:
            return True
        is_spill = anchor >= run[0] and anchor >= offset - self._ahead
        faults = (run[0], *self._faults(start, end))
        return (
            length >= self._around
            and run[1] - offset > self._around // 2 - _PAGE  # a lone page is no begin of a tensor
            and not is_spill
            and any(0 <= offset - fault < _PAGE for fault in faults)
        )

    def _are_both_ends_touched(self, offset: int, length: int, start: int, end: int, anchor: int) -> bool:
        last = offset + length - 1
        return (
            length > self._ahead
            and anchor >= offset - self._ahead
            and self._read.measure(offset, offset + 1) == 1
            and start > offset
            and any(0 <= last - fault < _PAGE for fault in self._faults(start, end))
        )

    def _faults(self, start: int, end: int) -> tuple[int, int, int, int]:
        """Return where in a read the fault may have been that caused it."""
        return start, (start + end) // 2, start + self._around, end - self._around

    def margins(self, member: int, previous: int | None) -> tuple[int, int]:
        """Return how far the reads reached before `member` when the reader jumped to it, and beyond the member before it."""
        layout = self._layout
        before, after = layout.offsets[member] - self.wanted[member], 0
        if not 0 <= before < self._around + _PAGE or self.wanted[member] < sum(layout.header):
            before = 0
        if previous is not None and layout.lengths[previous] >= self._around:
            end = layout.offsets[previous] + layout.lengths[previous]
            run = self._read.around(end - 1)
            nearest = layout.touched(end, self._ahead)
            if run is not None and not any(each in self.wanted for each in nearest[:64]):
                after = run[1] - end
        return before, after if after < self._ahead + _PAGE else 0
