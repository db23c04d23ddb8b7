"""A directory of this host as a site.

System calls run in a thread pool of the site's own: a disk or a network file system may take its time. Paths are walked
component by component with O_NOFOLLOW, so that no symlink leads out of the root; links themselves are reported as such and
the kernel resolves them through the mount.

A version is size, mtime in ns, and "device-inode" as the etag, so that a file that was renamed over is another one even if
its size and time are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat as statmod
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vfs.errors import Denied, ForemountError, NotADirectory, NotFound, Stale, Unavailable, WrongAnswer
from vfs.model import Entry, Kind, SiteName, SitePath, Version, split, version_of
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece

PAGE_ENTRIES = 1000
PIECE_BYTES = 1 << 20
"""One hop to a thread costs some 50 us, as much as reading 350 KB from the page cache."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a FIFO must not wait for a writer."""

T = TypeVar("T")


@contextlib.contextmanager
def parent_directory(
    root: str, site: SiteName, path: SitePath, access: int, *, make: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that holds `path`, and the path's last component, "" for the root.

    Args:
        access: O_PATH, or O_RDONLY where the directory is to be synced.
        make: make directories that are missing, durably; needs O_RDONLY.

    Raises:
        Unavailable: the root is missing: a disk that is not mounted says nothing about the files on it.
        OSError: a component is missing, no directory, or a symlink.
    """
    parent, last = split(path)
    flags = access | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        fd = os.open(root, flags)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise Unavailable(str(site), f"{root} is missing", "is it mounted?") from exc
    try:
        for component in parent.split("/") if parent else ():
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(component, dir_fd=fd)
                    os.fsync(fd)
            deeper = os.open(component, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd, last
    finally:
        os.close(fd)


class LocalSite:
    """Serves what lies below `root`."""

    def __init__(self, name: SiteName, root: str, *, threads: int = 8) -> None:
        self._name = name
        self._root = root
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"site-{name}")

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"LocalSite({self._name!r}, {self._root!r})"

    async def stat(self, path: SitePath) -> Entry:
        return await self._call(path, self._stat, path)

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        entries = await self._call(path, self._open_directory, path)
        try:
            names = NameFilter(self._name, path)
            while page := await self._call(path, entries.use, self._next_page, entries, names):
                yield page
        finally:
            entries.close()

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        if length <= PIECE_BYTES:
            yield await self._call(path, self._read_small, path, version, offset, length)
            return
        opened = await self._call(path, self._open_version, path, version)
        try:
            end = offset + length
            while offset < end:
                count = min(PIECE_BYTES, end - offset)
                piece = await self._call(path, opened.use, self._read_piece, path, opened.fd, version, offset, count)
                offset += len(piece)
                yield piece
        finally:
            opened.close()

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, path: SitePath, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking function in the pool and translate what the system says."""
        try:
            return await in_pool(self._pool, function, *args)
        except OSError as exc:
            raise _translated(f"{self._name}:{path}", exc) from exc

    @contextlib.contextmanager
    def _parent(self, path: SitePath) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the directory that holds `path`, and the last component, "." for the root."""
        with parent_directory(self._root, self._name, path, os.O_PATH) as (fd, last):
            yield fd, last or "."

    def _stat(self, path: SitePath) -> Entry:
        with self._parent(path) as (parent, last):
            entry = _entry(split(path)[1], os.stat(last, dir_fd=parent, follow_symlinks=False), last, parent)
        if entry is None:
            raise NotFound(f"{self._name}:{path}", "neither a file nor a directory")
        return entry

    def _open_directory(self, path: SitePath) -> _Scan:
        with self._parent(path) as (parent, last):
            try:
                fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
            except OSError as exc:
                if exc.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise NotADirectory(f"{self._name}:{path}") from exc
                raise
        return _Scan(fd)

    def _next_page(self, entries: _Scan, names: NameFilter) -> Sequence[Entry]:
        page = []
        for name in entries.names:
            if not names.admits(name):
                continue
            with contextlib.suppress(FileNotFoundError):  # it vanished between the two calls
                entry = _entry(name, os.stat(name, dir_fd=entries.fd, follow_symlinks=False), name, entries.fd)
                if entry is not None:
                    page.append(entry)
            if len(page) == PAGE_ENTRIES:
                break
        return page

    def _open_version(self, path: SitePath, version: Version) -> Opened:
        with self._parent(path) as (parent, last):
            opened = Opened(os.open(last, _READ, dir_fd=parent))
        try:
            info = os.fstat(opened.fd)
            if not statmod.S_ISREG(info.st_mode):
                raise NotFound(f"{self._name}:{path}", "is no file any more")
            self._check(path, info, version)
        except BaseException:
            opened.close()
            raise
        return opened

    def _read_small(self, path: SitePath, version: Version, offset: int, length: int) -> bytes:
        """Return all of a small range: one hop to a thread instead of two."""
        opened = self._open_version(path, version)
        try:
            found = self._read_piece(path, opened.fd, version, offset, length)
            while len(found) < length:  # a signal, or a file system that gives less
                found += self._read_piece(path, opened.fd, version, offset + len(found), length - len(found))
            return found
        finally:
            opened.close()

    def _read_piece(self, path: SitePath, fd: int, version: Version, offset: int, count: int) -> bytes:
        piece = os.pread(fd, count, offset)
        self._check(path, os.fstat(fd), version)  # after the read: what was written meanwhile must not be believed
        if not piece:
            raise WrongAnswer(f"{self._name}:{path}", f"ends at {offset}, {version.size} bytes were expected")
        return piece

    def _check(self, path: SitePath, info: os.stat_result, version: Version) -> None:
        if version_of(info) != version:
            raise Stale(f"{self._name}:{path}")


class Opened:
    """A descriptor that is closed once, and never under a thread that uses it.

    A cancelled caller can't stop the thread that works for it. `close` therefore only marks the descriptor when it is in
    use; whoever used it closes it then. Never blocks: the lock is only tried.

    Attributes:
        fd: valid inside `use`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._in_use = threading.Lock()
        self._unwanted = False
        self._closed = False

    def use(self, function: Callable[..., T], *args: Any) -> T:
        """Return what the function returns; one caller at a time."""
        try:
            with self._in_use:
                assert not self._closed
                return function(*args)
        finally:
            if self._unwanted:
                self.close()

    def close(self) -> None:
        """Close it now, or when the thread that uses it is done."""
        self._unwanted = True
        if self._in_use.acquire(blocking=False):
            try:
                if not self._closed:
                    self._closed = True
                    self._release()
            finally:
                self._in_use.release()

    def _release(self) -> None:
        os.close(self.fd)


class _Scan(Opened):
    """One open directory.

    Attributes:
        names: as the directory yields them.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._entries = os.scandir(fd)
        self.names = (entry.name for entry in self._entries)

    def _release(self) -> None:
        self._entries.close()
        super()._release()


def _entry(name: str, info: os.stat_result, last: str, parent: int) -> Entry | None:
    """Return the entry, or None for sockets, devices and FIFOs, which hold no bytes to serve."""
    mode = statmod.S_IMODE(info.st_mode)
    if statmod.S_ISDIR(info.st_mode):
        return Entry(name, Kind.DIRECTORY, Version(0, info.st_mtime_ns), mode)
    if statmod.S_ISREG(info.st_mode):
        return Entry(name, Kind.FILE, version_of(info), mode)
    if statmod.S_ISLNK(info.st_mode):
        return Entry(name, Kind.SYMLINK, version_of(info), mode, os.readlink(last, dir_fd=parent))
    return None


def _translated(subject: str, exc: OSError) -> ForemountError:
    match exc.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound(subject)
        case errno.ELOOP:
            return NotFound(subject, "is a symlink, not a file")
        case errno.EACCES | errno.EPERM:
            return Denied(subject)
        case _:
            return Unavailable(subject, exc.strerror or "the file system failed")


async def in_pool(pool: ThreadPoolExecutor, function: Callable[..., T], *args: Any) -> T:
    """Return what a blocking function returns.

    Cancellation: the thread goes on to its end; a descriptor that it returns then is closed there.
    """
    waiting = pool.submit(function, *args)
    try:
        return await asyncio.wrap_future(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(_drop)
        raise


def _drop(waiting: Any) -> None:
    """Close what a call returned that nobody waits for any more."""
    if not waiting.cancelled() and waiting.exception() is None and isinstance(waiting.result(), Opened):
        waiting.result().close()
