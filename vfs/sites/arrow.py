"""Whatever pyarrow.fs opens, as a site: gs://, abfs://, hdfs://, file://. (S3: see `s3.py`.)

Every call blocks and runs in the site's own thread pool. Limits that pyarrow sets:
- A listing is one call that returns all entries, 240 bytes each (measured 2026-11): 240 MB for a million. They are turned
  into ours a page at a time and let go of on the way; one listing of a site is fetched at a time.
- Objects are told apart by size and modification time; FileInfo has no ETag. Azure states whole seconds at stat but
  parts of seconds in listings, so whole seconds count there, and a file that is younger than two seconds by our clock gets
  generation 1 until it is seen again: see `http.py`.
- There is no conditional read. Each piece is read, then the object's version is asked, then it is yielded: one small request
  more for each 4 MiB.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyarrow import ArrowException, fs

from vfs.clock import Clock, SystemClock
from vfs.errors import (
    Denied,
    ForemountError,
    InvalidConfig,
    NotADirectory,
    NotFound,
    Stale,
    Unavailable,
    WrongAnswer,
)
from vfs.model import Entry, Kind, SiteName, SitePath, Version, join, split
from vfs.sites.httpanswers import RACY, RACY_S
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece

PAGE_ENTRIES = 1000
PIECE_BYTES = 4 << 20
T = TypeVar("T")

_WHOLE_SECONDS = frozenset({"abfs"})
_Found = list[fs.FileInfo]


class ArrowSite:
    """Serves what lies below the path of `url`.

    Attributes:
        _opened: the file system and the path in it; made on first use.
    """

    def __init__(
        self,
        name: SiteName,
        url: str,
        *,
        threads: int = 32,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._url = url
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"site-{name}")
        self._listing_turn = asyncio.Semaphore(1)
        self._opened: tuple[fs.FileSystem, str] | None = None

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"ArrowSite({self._name!r}, {urlsplit(self._url).scheme!r})"

    async def stat(self, path: SitePath) -> Entry:
        return await self._call(path, self._stat, path)

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        async with self._listing_turn:
            found = await self._call(path, self._list, path)
        names = NameFilter(self._name, path)
        found.reverse()
        while found:
            page = [found.pop() for _ in range(min(PAGE_ENTRIES, len(found)))]  # what was yielded is let go of
            if entries := [self._entry(info, info.base_name) for info in page if names.admits(info.base_name)]:
                yield entries

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        # never closed by hand: a cancelled caller's thread may still read from it, and the last reference closes it
        source = await self._call(path, self._open, path)
        for start in range(offset, offset + length, PIECE_BYTES):
            count = min(PIECE_BYTES, offset + length - start)
            yield await self._call(path, self._read_piece, path, source, version, start, count)

    async def close(self) -> None:
        self._pool.shutdown(wait=False)

    async def _call(self, path: SitePath, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking function in the pool."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        except (OSError, ArrowException) as exc:
            raise error_of(exc, f"{self._name}:{path}") from exc

    def _locate(self, path: str) -> tuple[fs.FileSystem, str]:
        """Return the file system and the path in it. Two threads may open one each at first; either is good."""
        if self._opened is None:
            self._opened = open_url(self._url, self._name)
        file_system, root = self._opened
        return file_system, join(root.rstrip("/"), path) or "/"

    def _info(self, path: SitePath) -> fs.FileInfo:
        file_system, target = self._locate(path)
        (info,) = file_system.get_file_info([target])
        if info.type == fs.FileType.NotFound:
            raise NotFound(f"{self._name}:{path}")
        return info

    def _stat(self, path: SitePath) -> Entry:
        return self._entry(self._info(path), split(path)[1])

    def _list(self, path: SitePath) -> _Found:
        file_system, target = self._locate(path)
        try:
            found = file_system.get_file_info(fs.FileSelector(target))
        except (FileNotFoundError, NotADirectoryError) as exc:
            if self._info(path).type == fs.FileType.File:
                raise NotADirectory(f"{self._name}:{path}") from exc
            raise
        return [info for info in found if info.type in (fs.FileType.File, fs.FileType.Directory)]

    def _open(self, path: SitePath) -> Any:
        if self._info(path).type != fs.FileType.File:
            raise NotFound(f"{self._name}:{path}", "is no file any more")
        file_system, target = self._locate(path)
        return file_system.open_input_file(target)

    def _read_piece(self, path: SitePath, source: Any, version: Version, offset: int, count: int) -> bytes:
        """Return bytes that were read while the path had this version."""
        try:
            piece = source.read_at(count, offset)
        except OSError:
            self._check(path, version)  # the range may lie past the end of what is there now
            raise
        self._check(path, version)
        if len(piece) != count:
            raise WrongAnswer(f"{self._name}:{path}", f"brought {len(piece)} bytes of {count} at {offset}")
        return bytes(piece)

    def _check(self, path: SitePath, version: Version) -> None:
        current = self._entry(self._info(path), "").version
        if (current.size, current.mtime_ns) != (version.size, version.mtime_ns):
            raise Stale(f"{self._name}:{path}")

    def _entry(self, info: fs.FileInfo, name: str) -> Entry:
        mtime_ns = info.mtime_ns or 0
        if info.type == fs.FileType.Directory:
            return Entry(name, Kind.DIRECTORY, Version(0, mtime_ns))
        assert self._opened is not None
        generation = 0
        if self._opened[0].type_name in _WHOLE_SECONDS and mtime_ns:
            generation = RACY if self._clock.wall_ns() - mtime_ns < RACY_S * 10**9 else 0
            mtime_ns -= mtime_ns % 10**9
        return Entry(name, Kind.FILE, Version(info.size, mtime_ns, "", generation))


def open_url(url: str, site: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path in it.

    Raises:
        InvalidConfig: the URL can't be used.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        raise InvalidConfig(f"sites.{site}.kind", "reads s3:// no more", 'write kind = "s3"')
    try:
        found, root = fs.FileSystem.from_uri(url)
    except (ValueError, ArrowException) as exc:
        # the text of `exc` may quote keys that stand in the URL
        raise InvalidConfig(f"sites.{site}.url", f"pyarrow can't open a {scheme}:// URL like this") from exc
    return found, str(root)


def error_of(exc: Exception, subject: str) -> ForemountError:
    """Return what an exception of pyarrow means."""
    if isinstance(exc, OSError) and exc.errno is not None:
        match exc.errno:
            case errno.ENOENT | errno.ENOTDIR:
                return NotFound(subject)
            case errno.EACCES | errno.EPERM:
                return Denied(subject)
            case _:
                return Unavailable(subject, f"failed: {errno.errorcode.get(exc.errno, exc.errno)}")
    return Unavailable(subject, f"failed: {type(exc).__name__}")
