"""A directory in which nothing is, for the kernel to mount something else on: `.jobs`."""

from __future__ import annotations

import stat

from vfs.errors import NotFound
from vfs.filesystem.merged import MergedDirectory
from vfs.filesystem.tree import Directory, Node, Source
from vfs.model import Kind, LakePath, Version

_TTL_S = 3600.0
"""A walk to a sample passes by here: not to be asked for each."""


class PlaceTree:
    """The tree below the directory `prefix`: itself alone.

    Its owner may write it, as fusermount3 wants it of what an ordinary user mounts on; what is written then fails.
    """

    writable = False

    def __init__(self, prefix: LakePath, owner: tuple[int, int], mtime_ns: int) -> None:
        self._prefix = prefix
        # One identity for ever: a directory of another inode under this name would have the kernel unmount what is on it.
        self._node = Node(
            Kind.DIRECTORY, "place", Version(0, mtime_ns), stat.S_IFDIR | 0o755, *owner, nlink=2, ttl_s=_TTL_S
        )  # fmt: skip

    def is_fixed(self, identity: str) -> bool:
        return True

    async def lookup(self, path: LakePath) -> Node:
        if path != self._prefix:
            raise NotFound(path)
        return self._node

    async def open_directory(self, path: LakePath) -> Directory:
        if path != self._prefix:
            raise NotFound(path)
        return MergedDirectory({}, None)

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        raise NotFound(path)
