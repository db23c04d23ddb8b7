"""Writing to a directory of this host, or of a file system that is mounted here: a hidden file, fsync, rename, fsync.

Parts are written where they belong in the hidden file. After a restart it can't be known which of them reached the disk, so
all are written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vfs.errors import Corrupt, DirectoryNotEmpty, ForemountError, NotFound
from vfs.model import SiteName, SitePath, Version, join, split, version_of
from vfs.oserrors import meaning_of
from vfs.sites.local import Opened, in_pool, parent_directory
from vfs.sites.writing import Body, Upload

PART_BYTES = 64 << 20
T = TypeVar("T")


class LocalWriter:
    """Writes below `root`. Paths are walked without following symlinks, as `LocalSite` does."""

    renames = True

    def __init__(self, name: SiteName, root: str, *, part_bytes: int = PART_BYTES, threads: int = 4) -> None:
        self._name = name
        self._root = root
        self._part_bytes = part_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"write-{name}")

    def __repr__(self) -> str:
        return f"LocalWriter({self._name!r}, {self._root!r})"

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        upload = Upload(path, size, self._part_bytes, token)
        creating = asyncio.ensure_future(self._call(path, self._create, upload))
        try:
            await asyncio.shield(creating)
        except asyncio.CancelledError:  # a thread can't be cancelled: what it makes nobody would know of
            with contextlib.suppress(ForemountError):
                await creating
                await self.abandon(upload)
            raise
        return upload

    async def received(self, upload: Upload) -> Mapping[int, str]:
        await self._call(upload.path, self._identity, upload)
        return {}

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        offset, length = upload.span(index)
        assert length == body.length
        file = await self._call(upload.path, self._open, upload)
        try:
            async for piece in body.pieces():
                await self._call(upload.path, file.use, _write_at, file.fd, memoryview(piece).cast("B"), offset)
                offset += len(piece)
            return await self._call(upload.path, file.use, _sync, file.fd)
        finally:
            file.close()

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        return await self._call(upload.path, self._publish, upload, receipts)

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        await self.remove(upload.hidden)

    async def make_directory(self, path: SitePath) -> None:
        await self._call(path, self._make_directory, path)

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        await self._call(path, self._remove, path, directory)

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        await self._call(path, self._rename, path, new_path)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, path: SitePath, function: Callable[..., T], *args: Any) -> T:
        try:
            return await in_pool(self._pool, function, *args)
        except OSError as exc:
            if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise DirectoryNotEmpty(f"{self._name}:{path}") from exc
            raise meaning_of(exc, f"{self._name}:{path}") from exc

    def _parent(self, path: SitePath, *, make: bool = False) -> contextlib.AbstractContextManager[tuple[int, str]]:
        """Yield a descriptor of the directory that holds `path`, and the last component."""
        return parent_directory(self._root, self._name, path, os.O_RDONLY, make=make)

    def _create(self, upload: Upload) -> None:
        with self._parent(upload.hidden, make=True) as (parent, hidden):
            fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
            try:
                os.ftruncate(fd, upload.size)
            finally:
                os.close(fd)

    def _open(self, upload: Upload) -> Opened:
        with self._parent(upload.hidden) as (parent, hidden):
            return Opened(os.open(hidden, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent))

    def _identity(self, upload: Upload) -> str:
        with self._parent(upload.hidden) as (parent, hidden):
            return version_of(os.stat(hidden, dir_fd=parent, follow_symlinks=False)).etag

    def _publish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        subject = f"{self._name}:{upload.path}"
        if len(receipts) != upload.count or len(set(receipts.values())) != 1:
            raise Corrupt(subject, "its parts were written to several files")
        with self._parent(upload.path) as (parent, last):
            hidden = split(upload.hidden)[1]
            with contextlib.suppress(FileNotFoundError):
                found = version_of(os.stat(hidden, dir_fd=parent, follow_symlinks=False))
                if found.size != upload.size or found.etag != receipts[0]:
                    raise Corrupt(subject, "is another file than was written")
                os.rename(hidden, last, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
            version = version_of(os.stat(last, dir_fd=parent, follow_symlinks=False))
        if version.etag != receipts[0]:
            raise NotFound(subject, "no such upload")
        if version.size != upload.size:
            raise Corrupt(subject, "has another size than was written")
        return version

    def _make_directory(self, path: SitePath) -> None:
        with self._parent(SitePath(join(path, ".")), make=True):
            return

    def _remove(self, path: SitePath, directory: bool) -> None:
        with contextlib.suppress(FileNotFoundError), self._parent(path) as (parent, last):
            (os.rmdir if directory else os.unlink)(last, dir_fd=parent)
            os.fsync(parent)

    def _rename(self, path: SitePath, new_path: SitePath) -> None:
        with self._parent(path) as (parent, last), self._parent(new_path, make=True) as (new_parent, new_last):
            os.rename(last, new_last, src_dir_fd=parent, dst_dir_fd=new_parent)
            os.fsync(new_parent)
            os.fsync(parent)


def _write_at(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _sync(fd: int) -> str:
    """Bring the file to the disk; return its identity."""
    os.fsync(fd)
    return version_of(os.fstat(fd)).etag
