"""What of a file to fetch ahead when all of it will be read: its bytes in order, a window ahead of what was read.

Pure: no I/O, no clock.
"""

from __future__ import annotations

Range = tuple[int, int]
"""(offset, length)."""
_WORTHY = 4
"""Part of the window that is asked for at a time: a request for each read would be many small ones."""


class Whole:
    """One file.

    Args:
        size: of the file.
        window_bytes: ahead of what was read at most. A file that is not larger is fetched at once.

    Invariants: what is handed out is contiguous from the start and inside the file; no byte is handed out twice.
    """

    def __init__(self, size: int, *, window_bytes: int) -> None:
        self._size = size
        self._window = window_bytes
        self._read = 0
        self._end = 0

    @property
    def prefetched_bytes(self) -> int:
        """Return what was handed out."""
        return self._end

    def begin(self) -> list[Range]:
        """Return what to fetch when the file is opened."""
        return self._hand_out()

    def read(self, length: int) -> list[Range]:
        """Note that so many bytes were read, wherever; return what to fetch now."""
        self._read += length
        return self._hand_out()

    def _hand_out(self) -> list[Range]:
        start, end = self._end, min(self._size, self._read + self._window)
        if end <= start or (end < self._size and end - start < self._window // _WORTHY):
            return []
        self._end = end
        return [(start, end - start)]
