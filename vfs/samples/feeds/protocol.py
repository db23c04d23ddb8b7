"""What every schedule feed can do, and what it needs of the lake. One contract suite: `tests/contract/test_feeds.py`.

Pure: no I/O, no clock. Feeds run on asyncio, in the agent and in the node service alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vfs.model import Entry, LakePath, Version
from vfs.samples.model import Sample

Found = tuple[str, LakePath, tuple[tuple[int, int], ...]]
"""Sample id, source, and the ranges of its raw bytes."""


class Lake(Protocol):
    """Reads the lake: the agent through its cache, a node service straight from the site beside it.

    All methods raise `Denied`, `Unavailable` and its subclasses as a `Site` does.
    """

    async def stat(self, path: LakePath) -> Entry | None:
        """Return the entry of a path, None where nothing is."""
        ...

    async def list(self, path: LakePath) -> Sequence[Entry]:
        """Return the entries of a directory; none where nothing is."""
        ...

    async def read(self, path: LakePath, version: Version, offset: int, length: int) -> bytes:
        """Return exactly the bytes `[offset, offset + length)` of this version.

        Raises:
            NotFound, Stale: it is gone or in another version.
        """
        ...


class Feed(Protocol):
    """The schedule of one job. Random access by (step, rank) in memory of one step.

    All methods raise `InvalidFeed`, naming file and row, for what can't be used: then nothing of that file is.
    A file that is replaced while it is in use raises `Stale`.

    Attributes:
        mtime_ns: of the schedule.
    """

    @property
    def mtime_ns(self) -> int: ...

    async def steps(self) -> Sequence[int]:
        """Return the steps that the schedule has by now, ascending."""
        ...

    async def ranks(self, step: int) -> Sequence[int]:
        """Return the ranks of a step, ascending; none where there is no such step."""
        ...

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        """Return what a rank reads in a step, by slot; none where the schedule has no such step or rank."""
        ...
