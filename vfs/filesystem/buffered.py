"""A directory stream that keeps what the kernel's last reply had no room for.

The kernel takes some hundred entries at a time, a tree yields thousands: without this each would be found many times.
"""

from __future__ import annotations

from vfs.filesystem.tree import Child, Directory


class BufferedDirectory:
    """Reads `inner` page by page.

    Invariant: `_page[_next]` is what follows position `_position`.
    """

    def __init__(self, inner: Directory) -> None:
        self._inner = inner
        self._page: list[Child] = []
        self._next = 0
        self._position = 0

    async def read(self, position: int) -> list[Child]:
        """Return what follows `position`; the caller comes back with the position of the last one that it took."""
        if position != self._position or self._next >= len(self._page):
            self._find(position)
        if self._next >= len(self._page):
            self._page, self._next, self._position = await self._inner.read(position), 0, position
        return self._page[self._next :]

    def _find(self, position: int) -> None:
        """Move to what follows `position` if it is in the page, else past its end."""
        for index in range(self._next, len(self._page)):
            if self._page[index].position == position:
                self._next, self._position = index + 1, position
                return
        self._page, self._next = [], 0

    def close(self) -> None:
        self._inner.close()
