"""What every store can do for the agent. One protocol, one contract suite (`tests/contract/test_sites.py`).

Pure: no I/O, no clock. The implementations run on asyncio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from vfs.model import Entry, SiteName, SitePath, Version

Piece = bytes | bytearray | memoryview


class Site(Protocol):
    """A store of objects in directories.

    All methods raise `NotFound`, `Denied` (final, credentials were read again before giving up), `Unavailable` and its
    subclasses (transient: this layer does not retry), nothing else that is expected. Cancelling a call closes what it opened.
    """

    @property
    def name(self) -> SiteName:
        """The name that the configuration gives it."""
        ...

    async def stat(self, path: SitePath) -> Entry:
        """Return the entry of one object or directory ("" is the root).

        A store without directories reports one where an object lies below the path.

        Raises:
            NotFound: the store says that nothing is there. Never raised for a store that can't be reached.
        """
        ...

    def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of a directory in pages, in the store's order, each name once, as they arrive.

        Memory is bounded by a page, whatever the directory's size. Names that POSIX can't carry are left out, with one
        warning for each listing. Attributes are complete, so that nobody has to stat what was listed.

        Raises:
            NotFound: nothing is there; raised before the first page.
            NotADirectory: an object is there.
        """
        ...

    def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        """Yield the bytes `[offset, offset + length)` of exactly this version, in order, as they arrive.

        Args:
            offset: 0 <= offset < version.size.
            length: > 0; the range must lie inside the object.

        Yields:
            Pieces of at least one byte, together exactly `length` bytes; each is valid until the next is asked for.

        Raises:
            Stale: the object is there in another version. Nothing of the other version was yielded.
            NotFound: the object is gone.
            WrongAnswer: the body is shorter or longer than the range, encoded, or of another range.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. The site is not used afterwards."""
        ...
