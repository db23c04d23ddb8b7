"""What a mount point can do for the file system: `local.py`, `remote.py`, and `staged.py` over the latter.

Pure: no I/O, no clock. The implementations run on trio.
"""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeGuard

from vfs.model import Kind, LakePath, Version
from vfs.usage import Source as From

Buffer = bytes | bytearray | memoryview

DIRECTORY_MODE = stat.S_IFDIR | 0o555
FILE_MODE = stat.S_IFREG | 0o444
LINK_MODE = stat.S_IFLNK | 0o777
MODE_OF = {Kind.FILE: FILE_MODE, Kind.DIRECTORY: DIRECTORY_MODE, Kind.SYMLINK: LINK_MODE}
"""Of what says nothing of its own mode."""


def identity_of(version: Version) -> str:
    """Return the identity of a file that is its version: another version is another object."""
    return f"{version.size}:{version.mtime_ns}:{version.etag}:{version.generation}"


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


class Pushable(Protocol):
    """Bytes that a thread can read, checked, while the loop goes on: a cached object."""

    def duplicate(self) -> Self:
        """Return the same with descriptors of its own."""
        ...

    def read(self, offset: int, length: int, scratch: memoryview) -> memoryview | None:
        """Return the bytes, in `scratch`; None where some are not there any more.

        Raises:
            Corrupt.
        """
        ...

    def close(self) -> None:
        """Let go of the descriptors."""
        ...


Push = Callable[[Pushable, int, int], Awaitable[bool]]
"""Puts whole pages (offset, length) into the page cache of the inode that is read; returns whether it did."""


class Verified(Protocol):
    """A local file in the state in which it was found to be right: see `verified.py`."""

    @property
    def state(self) -> str:
        """What it was like then; equal for equal states."""
        ...

    def holds(self) -> bool:
        """Return whether it is like that still."""
        ...


class Source(Protocol):
    """The bytes of one version of one file. Shared by all handles on its inode."""

    @property
    def served_from(self) -> From:
        """Where its bytes come from, as accounting says it, when nothing has to be fetched."""
        ...

    @property
    def backing_fd(self) -> int | None:
        """A descriptor of a complete, verified local file of exactly this version, for passthrough; else None."""
        ...

    @property
    def verified(self) -> Verified | None:
        """That file, where it is right only as long as nobody changes it; None without one, or where it is shown as it is."""
        ...

    async def read(self, offset: int, length: int, push: Push | None = None) -> Buffer:
        """Return the bytes `[offset, offset + length)`, fewer only at the end of the file.

        Args:
            push: for what is expected to be read next, where that is known and at hand.

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

    def joined(self) -> None:
        """The process that asks has opened a handle on it."""
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
        writable: whether it is a `WritableTree`, too.
    """

    writable: bool

    def is_fixed(self, identity: str) -> bool:
        """Return whether a file of this identity can't change: its inode is one version."""
        ...

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


@dataclass(frozen=True, slots=True)
class Changes:
    """Attributes to be changed; None: left alone.

    Attributes:
        mode: permission bits.
    """

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class WritableTree(Tree, Protocol):
    """A tree that can be changed through the mount. The kernel has checked permissions (default_permissions).

    All of these may raise NotFound, NotADirectory, Denied, NoSpace, Unsupported, Unavailable, DeadlineExceeded.
    """

    def known(self, identity: str, fd: int | None) -> Node | None:
        """Return the attributes of a file that may have lost its name, by its identity or an open descriptor."""
        ...

    async def before_write(self, path: LakePath, identity: str, version: Version, *, truncate: bool) -> None:
        """Prepare a file for being opened for writing.

        Args:
            truncate: its content is to go.
        Raises:
            Stale: the path stands for another file from now on, which can be written: look it up again.
        """
        ...

    async def make_file(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        """Create an empty file; `AlreadyExists` where the name is taken."""
        ...

    async def make_directory(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        """Create an empty directory; `AlreadyExists` where the name is taken."""
        ...

    async def make_symlink(self, path: LakePath, target: bytes, owner: tuple[int, int]) -> None:
        """Create a symlink; `target` is taken as it is."""
        ...

    async def make_link(self, path: LakePath, new_path: LakePath) -> None:
        """Create a hard link."""
        ...

    async def remove(self, path: LakePath, *, directory: bool, is_open: bool) -> None:
        """Unlink a file, which lives on without a name while it `is_open`, or remove an empty directory."""
        ...

    async def rename(self, path: LakePath, new_path: LakePath, flags: int, *, is_open: bool) -> None:
        """Rename; `flags` as in renameat2, `is_open` of what is replaced."""
        ...

    async def change(self, path: LakePath, identity: str, fd: int | None, changes: Changes) -> None:
        """Change attributes, through `fd` where the file is open: it may have lost its name.

        Raises:
            Stale: the path stands for another object by now.
        """
        ...

    async def sync_directory(self, path: LakePath) -> None:
        """Return when the directory's names are as durable as the policy says."""
        ...

    def close_waits(self, path: LakePath, identity: str) -> bool:
        """Return whether close() of a file that was written waits until it is durable."""
        ...

    def released(self, identity: str, *, last: bool) -> None:
        """A handle was closed; `last`: no other is left for sure."""
        ...

    async def get_xattr(self, path: LakePath, identity: str, name: str) -> bytes | None:
        """Return an extended attribute, None where there is none of this name."""
        ...

    async def list_xattrs(self, path: LakePath, identity: str) -> list[str]:
        """Return the names of the extended attributes."""
        ...

    async def set_xattr(self, path: LakePath, identity: str, name: str, value: bytes | None) -> None:
        """Set an extended attribute; None removes it."""
        ...


def is_writable(tree: Tree | None) -> TypeGuard[WritableTree]:
    """Return whether the tree can be changed."""
    return tree is not None and tree.writable
