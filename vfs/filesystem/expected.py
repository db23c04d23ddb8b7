"""What the agent expects to be read, so that a read which comes there gets the rest along into the page cache.

Pure: no I/O, no clock.

A mapped tensor is read by requests of 64 KiB, each some 300 us of two processes; the rest of it in one go costs 0.5 ms for a
megabyte. Only what lies behind a read goes along, to the end of the tensor (member, window of a stream) in which the read
ended: the first read of each still comes to us and tells where its reader is.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from vfs.extents.spans import Spans
from vfs.model import ObjectKey

PAGE = 4096
PUSH_BYTES_MAX = 2 << 20
"""Behind one read: its reader waits for them, 1 ms."""
PUSH_BYTES_MIN = 64 << 10
"""Less is not worth the thread: the kernel's next request brings it."""
_AGAIN_SHARE = 4
_AGAIN_BYTES_MIN = 4 << 20
_RANGES_MAX = 100_000
"""Kept for one object, 100 bytes each."""


@dataclass(slots=True)
class _Object:
    """What is expected of one object.

    Attributes:
        ranges: (offset, end), ascending, as they were told.
        pushed: what lies in the page cache because of us, as far as nobody has asked for it again.
        pushed_bytes, again_bytes: so far.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)
    pushed: Spans = field(default_factory=Spans)
    pushed_bytes: int = 0
    again_bytes: int = 0

    @property
    def is_off(self) -> bool:
        """Return whether it does not pay: the kernel asks for what it was given, for it has no room or is not to cache."""
        return self.again_bytes > max(_AGAIN_BYTES_MIN, self.pushed_bytes // _AGAIN_SHARE)


class Expected:
    """Expected ranges of the objects that are open."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, _Object] = {}

    def opened(self, key: ObjectKey) -> None:
        """The object is read here: what is expected of others, which are only being fetched, is not kept."""
        self._objects.setdefault(key, _Object())

    def forget(self, key: ObjectKey) -> None:
        """The object is closed."""
        self._objects.pop(key, None)

    def note(self, key: ObjectKey, ranges: Iterable[tuple[int, int]]) -> None:
        """Ranges (offset, length) of an object are going to be read."""
        found = self._objects.get(key)
        if found is None:
            return
        for offset, length in ranges:
            if len(found.ranges) < _RANGES_MAX:
                insort(found.ranges, (offset, offset + length))

    def behind(self, key: ObjectKey, offset: int, end: int) -> int:
        """Return how many bytes behind a read of `[offset, end)` should go along with it, 0 for none."""
        found = self._objects.get(key)
        if found is None:
            return 0
        found.again_bytes += found.pushed.remove(offset, end)
        place = bisect_right(found.ranges, (end, end)) - 1
        if found.is_off or place < 0 or found.ranges[place][1] <= end:
            return 0
        return min(found.ranges[place][1] - end, PUSH_BYTES_MAX)

    def pushed(self, key: ObjectKey, offset: int, end: int) -> None:
        """These bytes lie in the page cache now."""
        found = self._objects.get(key)
        if found is not None:
            found.pushed.add(offset, end)
            found.pushed_bytes += end - offset
