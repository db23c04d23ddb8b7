"""What a mount point can do for the file system. Two implementations: `local.py` and `remote.py`.

Pure: no I/O, no clock. The implementations run on trio.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Protocol

from vfs.model import Kind, LakePath, Version

Buffer = bytes | bytearray | memoryview

DIRECTORY_MODE = stat.S_IFDIR | 0o555
FILE_MODE = stat.S_IFREG | 0o444
LINK_MODE = stat.S_IFLNK | 0o777


@dataclass(frozen=True, slots=True)
class Node:
    """An object's attributes as a tree sees them now.

    Attributes:
        identity: distinguishes this object from another that may come under the same name. Equal identity, same inode:
            for what can't be written here it covers the content's version.
        mode: st_mode, with the file type.
        blocks: 512-byte units on the disk where known, else derived from the size.
        ttl_s: how long the kernel may believe name and attributes from now on.
    """

    kind: Kind
    identity: str
    version: Version
    mode: int
    uid: int
    gid: int
    nlink: int = 1
    target: str = ""
    blocks: int | None = None
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Child:
    """One entry of a directory stream.

    Attributes:
        name: as bytes: kernel names need not be UTF-8.
        position: where the stream goes on after this entry; > 0.
    """

    name: bytes
    node: Node
    position: int


class Directory(Protocol):
    """An open directory. Positions hold over a restart of the worker: a stream can be reopened and go on."""

    async def read(self, position: int) -> list[Child]:
        """Return the next entries after `position` (0: from the start), empty at the end; each entry once per pass."""
        ...

    def close(self) -> None:
        """Let go of descriptors."""
        ...


class Source(Protocol):
    """The bytes of one version of one file. Shared by all handles on its inode."""

    @property
    def backing_fd(self) -> int | None:
        """A descriptor of a complete, verified local file of exactly this version, for passthrough; else None."""
        ...

    async def read(self, offset: int, length: int) -> Buffer:
        """Return the bytes `[offset, offset + length)`, fewer only at the end of the file.

        The buffer is valid until the next await of the caller.

        Raises:
            Stale, NotFound, Denied, Unavailable, DeadlineExceeded.
        """
        ...

    async def write(self, offset: int, content: Buffer) -> int:
        """Write and return the number of bytes taken.

        Raises:
            ReadOnly, NoSpace.
        """
        ...

    async def sync(self) -> None:
        """Return when what was written is on the disk."""
        ...

    def announce(self) -> None:
        """There is a new agent: tell it what is held for this source, if anything."""
        ...

    def shed(self) -> bool:
        """The kernel has the backing file: let go of descriptors. Returns whether `read` goes on without them."""
        ...

    def rest(self) -> bool:
        """The last handle is closed: let go of all that costs. Returns whether the source then waits for another open."""
        ...

    def close(self) -> None:
        """Let go of descriptors, and of what is held elsewhere for this source."""
        ...


class Tree(Protocol):
    """The objects below one mount point.

    Attributes:
        writable: whether `vfs/filesystem/local.py`'s changing operations exist.
    """

    writable: bool

    async def lookup(self, path: LakePath) -> Node:
        """Return the object's attributes now.

        Raises:
            NotFound, Denied, Unavailable, DeadlineExceeded.
        """
        ...

    async def open_directory(self, path: LakePath) -> Directory:
        """Open a directory for listing.

        Raises:
            NotFound, NotADirectory, Denied, Unavailable, DeadlineExceeded.
        """
        ...

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        """Open exactly the object of this identity.

        Raises:
            Stale: the name stands for another object by now.
            NotFound, Denied, ReadOnly, Unavailable, DeadlineExceeded.
        """
        ...
