"""What a store that can be written does. One protocol, one contract suite (`tests/contract/test_writers.py`).

Pure: no I/O, no clock.

An object is sent in parts, under a hidden name or none, and gets its own name in one step, when all of it is there and was
found right: nobody ever sees half of it. Parts go in any order, several at a time, and again if need be. An `Upload` is a
value; who kept it goes on with it after a restart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from vfs.model import SitePath, Version, join, split
from vfs.sites.protocol import Piece

HIDDEN_PREFIX = ".foremount-upload-"
"""Begins the names of what is on its way. No listing shows them."""


class Upload(msgspec.Struct, frozen=True, array_like=True):
    """An object on its way into a store.

    Attributes:
        path: its name once it is finished.
        size: bytes.
        part_bytes: of every part but the last, > 0.
        token: tells this upload from all others, also of the same path.
        handle: the store's own name for it, "" where it has none.
    """

    path: SitePath
    size: int
    part_bytes: int
    token: str
    handle: str = ""

    @property
    def count(self) -> int:
        """Return the number of parts: at least one, which of an empty object is empty."""
        return max(1, -(-self.size // self.part_bytes))

    def span(self, index: int) -> tuple[int, int]:
        """Return (offset, length) of a part."""
        offset = index * self.part_bytes
        return offset, min(self.part_bytes, self.size - offset)

    @property
    def hidden(self) -> SitePath:
        """Return the name beside its own under which a store may keep what has arrived."""
        return SitePath(join(split(self.path)[0], HIDDEN_PREFIX + self.token))


class Body(Protocol):
    """The bytes of one part. They are read anew for each attempt."""

    @property
    def length(self) -> int:
        """The number of bytes."""
        ...

    def pieces(self) -> AsyncIterator[Piece]:
        """Yield all of them in order; each piece is valid until the next is asked for."""
        ...


class SiteWriter(Protocol):
    """Puts objects into a store.

    Raises, each method: `Denied` (final, credentials were read again), `NoSpace` (the store is full or a quota is used up),
    `Unavailable` and its subclasses (transient; this layer does not retry), `Unsupported`, and what is named below. Each may
    be called again after a failure, whether or not the store had done it.

    Attributes:
        renames: `rename` is supported.
    """

    @property
    def renames(self) -> bool:
        """Whether it can rename."""
        ...

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        """Open an upload; the directories above `path` need not be there."""
        ...

    async def received(self, upload: Upload) -> Mapping[int, str]:
        """Return the receipts of the parts that have arrived whole, by index.

        Raises:
            NotFound: the store knows nothing of this upload; begin anew.
        """
        ...

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        """Bring one part to the store and return its receipt.

        Args:
            known: its receipt from `received`. A part that has arrived already is read, compared and not sent again.

        Raises:
            NotFound: as `received`.
        """
        ...

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        """Give the object its name, in place of what has it, and return its version there.

        Raises:
            Corrupt: size or digest at the store differ from what was sent. The upload is of no use, what was visible stays
                where the store lets it be checked in time.
            NotFound: as `received`.
        """
        ...

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        """Remove what has arrived of an unfinished upload.

        Args:
            receipts: of its parts. Where an object gets its name with its last part (HTTP PUT, one part to S3), it goes if it
                is known by them to be this one.
        """
        ...

    async def make_directory(self, path: SitePath) -> None:
        """Make a directory and those above it; one that is there is left as it is."""
        ...

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        """Remove an object or an empty directory; one that is gone is no failure.

        Raises:
            DirectoryNotEmpty: something lies in it, where the store can tell.
        """
        ...

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        """Rename an object or a directory in one step, an object in place of what has the new name.

        Raises:
            NotFound: it is not there.
            Unsupported: the store has no such step.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A store that measures how many readers a copy there bears at a time."""

    async def readers_borne(self) -> str:
        """Return it as `vfs/foresight/bearing.py` writes it, "" while nothing is known."""
        ...


@runtime_checkable
class Multiplies(Protocol):
    """A store that keeps copies of its objects by itself, as many as it is told."""

    async def replication(self, path: SitePath) -> int:
        """Return how many copies the object is to have."""
        ...

    async def set_replication(self, path: SitePath, count: int) -> None:
        """Have it keep so many from now on."""
        ...

    async def copies_held(self, path: SitePath) -> int:
        """Return how many it keeps at least of every part of the object, now."""
        ...


async def whole(body: Body) -> bytearray:
    """Return all bytes of a part, for stores that take them in one piece."""
    found = bytearray(body.length)
    position = 0
    async for piece in body.pieces():
        found[position : position + len(piece)] = piece
        position += len(piece)
    assert position == body.length, "a body yields as many bytes as it announces"
    return found


def part_size(size: int, *, least: int, count_max: int, step: int) -> int:
    """Return the bytes of a part so that an object of `size` has `count_max` at most: `least`, or more in steps of `step`."""
    needed = -(-size // count_max)
    return max(least, -(-needed // step) * step)
