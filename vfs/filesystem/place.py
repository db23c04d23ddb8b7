"""A directory in which nothing is, for the kernel to mount something else on, or a link to where that is mounted: `.jobs`."""

from __future__ import annotations

from vfs.errors import NotFound
from vfs.filesystem.merged import MergedDirectory
from vfs.filesystem.tree import DIRECTORY_MODE, LINK_MODE, Directory, Node, Source
from vfs.model import Kind, LakePath, Version

_TTL_S = 3600.0
"""A walk to a sample passes by here: not to be asked for each."""


class PlaceTree:
    """The tree below `prefix`: itself alone.

    Args:
        target: what it links to; "": it is a directory.
    """

    writable = False

    def __init__(self, prefix: LakePath, owner: tuple[int, int], mtime_ns: int, target: str = "") -> None:
        self._prefix = prefix
        # One identity for ever: a directory of another inode under this name would have the kernel unmount what is on it.
        kind, mode, nlink = (Kind.SYMLINK, LINK_MODE, 1) if target else (Kind.DIRECTORY, DIRECTORY_MODE, 2)
        self._node = Node(kind, "place", Version(0, mtime_ns), mode, *owner, nlink=nlink, target=target, ttl_s=_TTL_S)

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
