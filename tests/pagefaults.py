"""The reads that a kernel sends for a mapped file, without a kernel: page faults in, READs out.

After mm/filemap.c (do_sync_mmap_readahead, do_async_mmap_readahead) and mm/readahead.c of Linux 6.x, as far as they decide
which pages are read: read-around at a missing page, the mark that makes the next window follow, doubling up to the limit.
"""

from __future__ import annotations

from collections.abc import Callable

PAGE = 4096
_LOTS_OF_MISSES = 100


class MappedFile:
    """One open and mapped file with an empty page cache.

    Args:
        read: is told (offset, length) of every READ.
        read_ahead_bytes: `read_ahead_kb` of the mount; doubled, as fadvise(SEQUENTIAL) does.
        read_bytes_max: of one READ: max_pages.
    """

    def __init__(
        self, size: int, read: Callable[[int, int], None], *, read_ahead_bytes: int, read_bytes_max: int = 1 << 20
    ) -> None:
        self._pages = -(-size // PAGE)
        self._size = size
        self._read = read
        self._window_max = 2 * read_ahead_bytes // PAGE
        self._read_max = read_bytes_max // PAGE
        self._present = bytearray(self._pages)
        self._marked: set[int] = set()
        self._start = self._window = self._behind = 0
        self._misses = 0

    def touch(self, offset: int, length: int) -> None:
        """Use these bytes in ascending order."""
        for page in range(offset // PAGE, -(-(offset + length) // PAGE)):
            if not self._present[page]:
                self._fault(page)
            elif page in self._marked:
                self._marked.discard(page)
                self._misses = max(0, self._misses - 1)
                self._follow(page)

    def _fault(self, page: int) -> None:
        self._misses += 1
        if self._misses > _LOTS_OF_MISSES:
            self._submit(page, 1, 0)
        else:
            self._submit(max(0, page - self._window_max // 2), self._window_max, self._window_max // 4)

    def _follow(self, page: int) -> None:
        if page == self._start + self._window - self._behind:
            start, window = self._start + self._window, self._window
        else:
            start = next((at for at in range(page + 1, self._pages) if not self._present[at]), self._pages)
            window = start - page
        window = min(4 * window if window < self._window_max // 16 else 2 * window, self._window_max)
        self._submit(start, window, window)

    def _submit(self, start: int, window: int, behind: int) -> None:
        self._start, self._window, self._behind = start, window, behind
        end = min(start + window, self._pages)
        mark = start + window - behind
        if behind and mark < end and not self._present[mark]:  # only a page that is new gets the mark
            self._marked.add(mark)
        for first, stop in self._absent(start, end):
            for at in range(first, stop, self._read_max):
                until = min(at + self._read_max, stop)
                self._present[at:until] = b"\1" * (until - at)
                self._read(at * PAGE, min(until * PAGE, self._size) - at * PAGE)

    def _absent(self, start: int, end: int) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for page in range(start, end):
            if self._present[page]:
                continue
            if runs and runs[-1][1] == page:
                runs[-1] = (runs[-1][0], page + 1)
            else:
                runs.append((page, page + 1))
        return runs
