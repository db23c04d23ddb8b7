"""Places that a site serves and a test can write: one for each implementation, so that one contract suite fits all."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tests.servers.hdfs import Hdfs
from tests.servers.seaweedfs import SeaweedFs
from vfs.sites.memory import MemorySite
from vfs.sites.protocol import Site

MANY = 5000
MANY_REMOTE = 1500
"""More than a page, where making an entry takes 2 to 5 ms."""


class Place(Protocol):
    """Somewhere to put objects, and the site that serves them.

    Attributes:
        many: entries of a directory that this place can make in a few seconds.
    """

    site: Site
    many: int

    def put(self, path: str, content: bytes) -> None:
        """Write an object in place of the one before, in another version than that."""

    def delete(self, path: str) -> None:
        """Remove an object."""

    def fill(self, path: str, names: Iterable[str]) -> None:
        """Make many entries of one directory, as fast as the store allows; files or directories."""


class MemoryPlace:
    """A `MemorySite` is its own place."""

    many = MANY

    def __init__(self, inner: MemorySite, site: Site | None = None) -> None:
        self.site = site or inner
        self._inner = inner

    def put(self, path: str, content: bytes) -> None:
        self._inner.put(path, content)

    def delete(self, path: str) -> None:
        self._inner.delete(path)

    def fill(self, path: str, names: Iterable[str]) -> None:
        for name in names:
            self.put(f"{path}/{name}", b"x")


class FolderPlace:
    """A folder that a server shows. Files look a while old, and each write is a second later than the one before.

    Servers that state whole seconds can't tell writes of one second apart; what sites do about files that are that new has
    tests of its own.
    """

    many = MANY

    def __init__(self, site: Site, root: Path, *, manifest: str | None = None) -> None:
        self.site = site
        self._root = root
        self._manifest = manifest
        self._mtimes = itertools.count(int(time.time()) - 100_000)

    def put(self, path: str, content: bytes) -> None:
        self._write(path, content)
        self._publish()

    def delete(self, path: str) -> None:
        (self._root / path).unlink()
        self._publish()

    def fill(self, path: str, names: Iterable[str]) -> None:
        for name in names:
            self._write(f"{path}/{name}", b"x")
        self._publish()

    def rename_over(self, path: str, content: bytes) -> None:
        """Put the content in place by renaming, with the size and time of what was there."""
        target = self._root / path
        before = target.stat()
        fresh = self._root / "fresh"
        fresh.write_bytes(content)
        os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
        fresh.rename(target)

    def _write(self, path: str, content: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self._age(target)

    def _age(self, target: Path) -> None:
        mtime = next(self._mtimes)
        os.utime(target, (mtime, mtime))

    def _publish(self) -> None:
        if self._manifest is None:
            return
        files = [found for found in self._root.rglob("*") if found.is_file() and found.name != self._manifest]
        rows = [
            {"path": str(found.relative_to(self._root)), "size": found.stat().st_size, "mtime": found.stat().st_mtime}
            for found in files
        ]
        target = self._root / self._manifest
        target.write_text(json.dumps(rows))
        self._age(target)


class HdfsPlace:
    """A directory in HDFS."""

    many = MANY_REMOTE

    def __init__(self, site: Site, server: Hdfs, root: str) -> None:
        self.site = site
        self._server = server
        self._root = root
        server.mkdir(root)

    def put(self, path: str, content: bytes) -> None:
        self._server.put(f"{self._root}/{path}", content)

    def delete(self, path: str) -> None:
        self._server.delete(f"{self._root}/{path}")

    def fill(self, path: str, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._server.mkdir, [f"{self._root}/{path}/{name}" for name in names]))


class S3Place:
    """A prefix in a bucket."""

    many = MANY_REMOTE

    def __init__(self, site: Site, server: SeaweedFs, prefix: str) -> None:
        self.site = site
        self._store = server.filesystem()
        self._root = f"lake/{prefix}"

    def put(self, path: str, content: bytes) -> None:
        """Write; an object of the same size is written again until its time, in whole seconds, is another one."""
        before = self._mtime_s(path)
        while self._mtime_s(path) == before:
            self._write(path, content)

    def delete(self, path: str) -> None:
        self._store.delete_file(f"{self._root}/{path}")

    def fill(self, path: str, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: self._write(f"{path}/{name}", b"x"), names))

    def _write(self, path: str, content: bytes) -> None:
        with self._store.open_output_stream(f"{self._root}/{path}") as target:
            target.write(content)

    def _mtime_s(self, path: str) -> int | None:
        (info,) = self._store.get_file_info([f"{self._root}/{path}"])
        return info.mtime_ns and info.mtime_ns // 10**9
