"""A directory of this host as a tree: system calls in the worker, no message to anybody.

Costs 5-15 us a call on a local disk. A directory on a hanging network mount would hang the worker: such a place belongs
behind a site of the agent.

Whoever can write to the directory past the mount can put a symlink in the place of a directory at any time. No path is ever
resolved through one here: the mount shows it, and its reader's kernel follows it with its reader's rights.

Identity. Read only, an object is (device, inode, size, mtime): what was rewritten in place is another object, with another
inode in the mount. Writable, it is (device, inode): it changes through the mount while it is open, as POSIX has it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import stat
import struct
from collections.abc import Iterator

import trio

from vfs.errors import ReadOnly, Stale, Unavailable
from vfs.filesystem.beneath import open_beneath
from vfs.filesystem.scratch import read_at
from vfs.filesystem.tree import Buffer, Changes, Child, Node, Push, Verified
from vfs.model import Kind, LakePath, Version, join, split
from vfs.namespace.mounts import STATUS_PREFIX, MountPoint
from vfs.oserrors import Translated, meaning_of
from vfs.policy.inforce import KERNEL_TTL_S_MAX, InForce
from vfs.usage import Source as From

TTL_S = 1.0
"""How long the kernel believes names and attributes of a local directory at most: what `ls` twice in a second costs nothing.
Asking costs no more than the question, so a rule that allows more buys nothing, but for what never changes."""
_NOT_FOR_WRITING = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY))
"""What the system says of a file that may well be read: by its mode, its disk, or because it is a program that runs."""
_LISTING_BYTES = 64 << 10
_KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.SYMLINK}
_libc = ctypes.CDLL(None, use_errno=True)
_DIRENT = struct.Struct("=QqHB")  # struct linux_dirent64: inode, position after it, record length, type; then the name


class LocalTree:
    """The directory `point.local_root`.

    Attributes:
        writable: see `Tree`.
    """

    def __init__(self, point: MountPoint, policy: InForce) -> None:
        assert point.local_root is not None
        self._point = point
        self._policy = policy
        self._root = os.fsencode(point.local_root)
        self.writable = point.writable

    def _open(self, path: LakePath, flags: int) -> int:
        return open_beneath(self._root, self._point.below(path), flags)

    @contextlib.contextmanager
    def _object(self, path: LakePath) -> Iterator[int]:
        """Yield a descriptor that names what is at `path`, a symlink too, and needs no right to read it."""
        fd = self._open(path, os.O_PATH)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _parent(self, path: LakePath) -> Iterator[tuple[int, bytes]]:
        """Yield a descriptor of the directory that holds `path`, and the last component."""
        above, last = split(self._point.below(path))
        fd = open_beneath(self._root, above, os.O_PATH | os.O_DIRECTORY)
        try:
            yield fd, os.fsencode(last)
        finally:
            os.close(fd)

    def is_fixed(self, identity: str) -> bool:
        return False

    async def lookup(self, path: LakePath) -> Node:
        """Return the attributes of what is at `path`."""
        with Translated(path), self._object(path) as fd:
            found = os.fstat(fd)
            target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else b""
        return self.node_at(path, found, os.fsdecode(target))

    def known(self, identity: str, fd: int | None) -> Node | None:
        return None if fd is None else self._node(os.fstat(fd))

    def node_at(self, path: str, found: os.stat_result, target: str) -> Node:
        """Return the attributes of the object at `path`, to be believed as the policy says."""
        return self._node(found, target, self._ttl_s(LakePath(path), found))

    def _ttl_s(self, path: LakePath, found: os.stat_result) -> float:
        if self._point.prefix == STATUS_PREFIX:
            return TTL_S  # no document speaks of the status files
        if stat.S_ISDIR(found.st_mode):
            return min(TTL_S, self._policy.kernel_listing_ttl_s(LakePath(split(path)[0]), self._point.site))
        believed_s = self._policy.kernel_version_ttl_s(path, self._point.site, found.st_size)
        if math.isinf(believed_s) and not self.writable:
            return KERNEL_TTL_S_MAX
        return min(TTL_S, believed_s)

    def _node(self, found: os.stat_result, target: str = "", ttl_s: float = 0.0) -> Node:
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), Kind.FILE)
        identity = f"{found.st_dev}:{found.st_ino}"
        if kind is Kind.FILE and not self.writable:
            identity += f":{found.st_size}:{found.st_mtime_ns}"
        version = Version(found.st_size, found.st_mtime_ns)
        return Node(
            kind, identity, version, found.st_mode, found.st_uid, found.st_gid, found.st_nlink, target, found.st_blocks, ttl_s
        )

    async def open_directory(self, path: LakePath) -> LocalDirectory:
        with Translated(path):
            return LocalDirectory(self, self._open(path, os.O_RDONLY | os.O_DIRECTORY), path)

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> LocalSource:
        if write and not self.writable:
            raise ReadOnly(path, "lies on a mount that is not writable")
        flags = (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_NONBLOCK  # a FIFO in its place must not hang the worker
        with Translated(path):
            try:
                fd = self._open(path, flags)
            except OSError as exc:
                if write or not self.writable or exc.errno not in _NOT_FOR_WRITING:
                    raise
                fd = self._open(path, flags & ~os.O_RDWR)
        source = LocalSource(fd, path)
        if self._node(os.fstat(fd)).identity != identity:
            source.close()
            raise Stale(path, "was replaced")
        return source

    # Changes: `WritableTree`. Owners are the caller's.

    async def before_write(self, path: LakePath, identity: str, version: Version, *, truncate: bool) -> None:
        if truncate:
            await self.change(path, identity, None, Changes(size=0))

    async def make_file(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        with Translated(path), self._parent(path) as (parent, name):
            fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=parent)
            try:
                _own(fd, _owner_below(parent, owner))
                os.fchmod(fd, stat.S_IMODE(mode))
            finally:
                os.close(fd)

    async def make_directory(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        with Translated(path), self._parent(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                _own(fd, _owner_below(parent, owner))
                os.fchmod(fd, stat.S_IMODE(mode) | (os.fstat(fd).st_mode & stat.S_ISGID))
            finally:
                os.close(fd)

    async def make_symlink(self, path: LakePath, target: bytes, owner: tuple[int, int]) -> None:
        with Translated(path), self._parent(path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)
            owner = _owner_below(parent, owner)
            if not _is_mine(owner):
                os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)

    async def make_link(self, path: LakePath, new_path: LakePath) -> None:
        with Translated(new_path), self._parent(path) as (parent, name), self._parent(new_path) as (new_parent, new_name):
            os.link(name, new_name, src_dir_fd=parent, dst_dir_fd=new_parent, follow_symlinks=False)

    async def remove(self, path: LakePath, *, directory: bool, is_open: bool) -> None:
        with Translated(path), self._parent(path) as (parent, name):
            (os.rmdir if directory else os.unlink)(name, dir_fd=parent)

    async def rename(self, path: LakePath, new_path: LakePath, flags: int, *, is_open: bool) -> None:
        with Translated(path), self._parent(path) as (parent, name), self._parent(new_path) as (new_parent, new_name):
            if not flags:
                os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=new_parent)
            elif _libc.renameat2(parent, name, new_parent, new_name, flags):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    async def change(self, path: LakePath, identity: str, fd: int | None, changes: Changes) -> None:
        with Translated(path):
            if fd is not None:
                _change(fd, changes)
                return
            with self._object(path) as found:
                if self._node(os.fstat(found)).identity != identity:
                    raise Stale(path, "was replaced")  # the name is another file's by now
                _change(_by_descriptor(found), changes)

    async def sync_directory(self, path: LakePath) -> None:
        with Translated(path):
            fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                await trio.to_thread.run_sync(os.fsync, fd)
            finally:
                os.close(fd)

    def close_waits(self, path: LakePath, identity: str) -> bool:
        return False

    def released(self, identity: str, *, last: bool) -> None:
        return

    async def get_xattr(self, path: LakePath, identity: str, name: str) -> bytes | None:
        try:
            with self._object(path) as fd:
                return os.getxattr(_by_descriptor(fd), name)
        except OSError as exc:
            if exc.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return None
            raise meaning_of(exc, path) from exc

    async def list_xattrs(self, path: LakePath, identity: str) -> list[str]:
        with Translated(path), self._object(path) as fd:
            return [name for name in os.listxattr(_by_descriptor(fd)) if name.startswith("user.")]

    async def set_xattr(self, path: LakePath, identity: str, name: str, value: bytes | None) -> None:
        with Translated(path), self._object(path) as fd:
            if value is None:
                os.removexattr(_by_descriptor(fd), name)
            else:
                os.setxattr(_by_descriptor(fd), name, value)

    def statfs(self, path: LakePath) -> os.statvfs_result:
        """Return the figures of the file system below."""
        with Translated(path), self._object(path) as fd:
            return os.fstatvfs(fd)


def _by_descriptor(fd: int) -> bytes:
    """Return a path of what an O_PATH descriptor names, for calls that take no such descriptor: of a symlink its own."""
    return b"/proc/self/fd/%d" % fd


def _change(target: int | bytes, changes: Changes) -> None:
    if changes.uid is not None or changes.gid is not None:
        os.chown(target, -1 if changes.uid is None else changes.uid, -1 if changes.gid is None else changes.gid)
    if changes.mode is not None:
        os.chmod(target, stat.S_IMODE(changes.mode))
    if changes.size is not None:
        os.truncate(target, changes.size)
    if changes.atime_ns is not None or changes.mtime_ns is not None:
        set_times(target, changes)


def set_times(target: int | bytes, changes: Changes) -> None:
    """Set the times that are not None."""
    now = os.stat(target)
    atime_ns = now.st_atime_ns if changes.atime_ns is None else changes.atime_ns
    mtime_ns = now.st_mtime_ns if changes.mtime_ns is None else changes.mtime_ns
    os.utime(target, None, ns=(atime_ns, mtime_ns))


def _own(fd: int, owner: tuple[int, int]) -> None:
    if not _is_mine(owner):
        os.fchown(fd, *owner)


def _is_mine(owner: tuple[int, int]) -> bool:
    """Return whether a new object is the caller's already: an ordinary user's mount can't give it away and need not."""
    return owner == (os.geteuid(), os.getegid())


def _owner_below(parent: int, owner: tuple[int, int]) -> tuple[int, int]:
    """Return whose a new object in a directory is: with the setgid bit it gets the directory's group."""
    found = os.fstat(parent)
    return (owner[0], found.st_gid) if found.st_mode & stat.S_ISGID else owner


class LocalSource:
    """An open file of this host. Always complete; whether it may be mapped is the kernel's business.

    Args:
        verified: see `Source`.
    """

    def __init__(self, fd: int, subject: str, served_from: From = From.LOCAL, *, verified: Verified | None = None) -> None:
        self._fd = fd
        self._subject = subject
        self.served_from = served_from
        self.verified = verified

    @property
    def backing_fd(self) -> int | None:
        return self._fd

    async def read(self, offset: int, length: int, push: Push | None = None) -> Buffer:
        return read_at(self._fd, offset, length, self._subject)

    async def write(self, offset: int, content: Buffer) -> int:
        with Translated(self._subject):
            return os.pwrite(self._fd, content, offset)

    async def sync(self) -> None:
        with Translated(self._subject):
            await trio.to_thread.run_sync(os.fsync, self._fd)

    def joined(self) -> None:
        return

    def announce(self) -> None:
        return

    def shed(self) -> bool:
        self.close()
        return False

    def rest(self) -> bool:
        return False

    def close(self) -> None:
        os.close(self._fd)


class LocalDirectory:
    """A directory stream whose positions are the file system's own, so that another worker can go on from one.

    os.scandir hides the positions; getdents64 gives them, and the stream needs no memory however long it is.
    """

    def __init__(self, tree: LocalTree, fd: int, subject: LakePath) -> None:
        self._tree = tree
        self._fd = fd
        self._subject = subject
        self._buffer = ctypes.create_string_buffer(_LISTING_BYTES)

    async def read(self, position: int) -> list[Child]:
        os.lseek(self._fd, position, os.SEEK_SET)
        while True:
            count = _libc.getdents64(self._fd, self._buffer, _LISTING_BYTES)
            if count < 0:
                raise Unavailable(self._subject, os.strerror(ctypes.get_errno()).lower())
            if count == 0:
                return []
            found = [child for child in map(self._child, self._records(count)) if child is not None]
            if found:
                return found

    def _records(self, count: int) -> list[tuple[bytes, int]]:
        raw, at, records = self._buffer.raw[:count], 0, []
        while at < count:
            _, position, length, _ = _DIRENT.unpack_from(raw, at)
            name = raw[at + _DIRENT.size : at + length].split(b"\0", 1)[0]
            records.append((name, position))
            at += length
        return records

    def _child(self, record: tuple[bytes, int]) -> Child | None:
        name, position = record
        if name in (b".", b".."):
            return None
        try:
            found = os.lstat(name, dir_fd=self._fd)
            target = os.readlink(name, dir_fd=self._fd) if stat.S_ISLNK(found.st_mode) else b""
        except OSError:  # removed since it was listed
            return None
        path = join(self._subject, os.fsdecode(name))
        return Child(name, self._tree.node_at(path, found, os.fsdecode(target)), position)

    def close(self) -> None:
        os.close(self._fd)
