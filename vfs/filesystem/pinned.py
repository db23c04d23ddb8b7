"""A tree as a snapshot has it: names, sizes and versions from the snapshot, bytes of exactly these versions.

Nothing here can be changed, whatever the mount allows. A node's identity is its version alone, marked: its inode is no
other tree's, and stays the same from one snapshot to the next where the file does.
"""

from __future__ import annotations

import os
from dataclasses import replace

from vfs.errors import Corrupt, NotADirectory, NotFound, PinnedGone, ReadOnly, Stale
from vfs.filesystem.local import LocalSource
from vfs.filesystem.tree import MODE_OF, Child, Node, Source, Tree, identity_of
from vfs.filesystem.verified import VerifiedFile, state_of
from vfs.model import Entry, Kind, LakePath, Version, join
from vfs.namespace.catalog import POSITION_MAX
from vfs.namespace.mounts import MountPoint
from vfs.namespace.pins import Pins
from vfs.policy.inforce import KERNEL_TTL_S_MAX

_MARK = "pinned:"
_PAGE_ENTRIES = 512
_WRITING = 0o222


def is_pinned(identity: str) -> bool:
    """Return whether an inode of this identity came from a snapshot."""
    return identity.startswith(_MARK)


class PinnedTree:
    """What the snapshots that rules pin paths of a mount point to hold of it.

    Args:
        tree: of the same mount point, as it is now: a local directory, or the origin without what is staged.
    """

    writable = False

    def __init__(self, point: MountPoint, tree: Tree, pins: Pins, owner: tuple[int, int]) -> None:
        self._point = point
        self._tree = tree
        self._pins = pins
        self._owner = owner

    def holds(self, path: LakePath) -> bool:
        """Return whether a path is pinned: this tree has it then, and no other."""
        return bool(self._pins.named(path))

    def is_fixed(self, identity: str) -> bool:
        return True

    async def lookup(self, path: LakePath) -> Node:
        return await self.node(path, self._pins.entry(path))

    async def node(self, path: LakePath, entry: Entry) -> Node:
        """Return the attributes of what a snapshot holds at a path; owner and mode are those of today where it is local."""
        is_directory = entry.kind is Kind.DIRECTORY
        identity = "directory" if is_directory else _MARK + identity_of(entry.version)
        mode = MODE_OF[entry.kind]
        if entry.mode is not None and entry.kind is not Kind.SYMLINK:
            mode = (mode & ~0o7777) | (entry.mode & 0o555)
        node = Node(
            entry.kind, identity, entry.version, mode, *self._owner, target=entry.target, ttl_s=self._ttl_s(path)
        )  # fmt: skip
        live = await self._live(path, entry.kind) if self._point.local_root is not None else None
        if live is None:
            return node
        identity = live.identity if is_directory else identity  # as the listing above it has it: who works in it stays there
        return replace(node, identity=identity, mode=live.mode & ~_WRITING, uid=live.uid, gid=live.gid)

    def _ttl_s(self, path: LakePath) -> float:
        return KERNEL_TTL_S_MAX if self.holds(path) else 0.0  # a rule of its own may set a file free

    async def _live(self, path: LakePath, kind: Kind) -> Node | None:
        """Return what is there now, None where it is nothing of this kind."""
        try:
            found = await self._tree.lookup(path)
        except (NotFound, NotADirectory):
            return None
        return found if found.kind is kind else None

    async def open_directory(self, path: LakePath) -> PinnedDirectory:
        snapshot, _ = self._pins.directory(path)
        return PinnedDirectory(path, self, self._pins, snapshot.id)

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        if write:
            raise ReadOnly(path, "is pinned to a snapshot")
        try:
            if self._point.local_root is not None:
                return await self._open_local(path, version)
            return await self._tree.open(path, identity, version, write=False)
        except (NotFound, Stale) as exc:
            raise self.gone(path) from exc

    async def _open_local(self, path: LakePath, version: Version) -> Source:
        live = await self._live(path, Kind.FILE)
        if live is None or not _is_same(live.version, live.identity, version):
            raise Stale(path, "was replaced")
        source = await self._tree.open(path, live.identity, live.version, write=False)
        try:
            assert source.backing_fd is not None, "a local file is always whole"
            found = os.fstat(source.backing_fd)
            if (found.st_size, found.st_mtime_ns) != (version.size, version.mtime_ns):
                raise Stale(path, "is being written")
            assert self._point.local_root is not None
            seen = VerifiedFile(self._point.local_root, self._point.below(path), state_of(found))
            return LocalSource(os.dup(source.backing_fd), path, verified=seen)
        finally:
            source.close()

    def gone(self, path: LakePath) -> PinnedGone:
        """Return what a reader is told whose version is nowhere any more."""
        what = f"is pinned to the snapshot {self._pins.named(path)!r}, whose version of it is neither at its origin nor here"
        return PinnedGone(path, what, "put that version back, or take a new snapshot and name it in the rule")


class PinnedDirectory:
    """A directory stream over a snapshot. A position names the snapshot too: another worker goes on in the same."""

    def __init__(self, path: LakePath, tree: PinnedTree, pins: Pins, snapshot_id: int) -> None:
        self._path = path
        self._tree = tree
        self._pins = pins
        self._id = snapshot_id

    async def read(self, position: int) -> list[Child]:
        snapshot_id, place = (position >> 40, position & POSITION_MAX) if position else (self._id, 0)
        page = self._pins.page(self._path, snapshot_id, place, _PAGE_ENTRIES)
        children = []
        for at, entry in enumerate(page, place + 1):
            if entry is None:  # a snapshot never changes
                raise Corrupt(self._path, "lacks a name in its snapshot", "take a new one")
            node = await self._tree.node(LakePath(join(self._path, entry.name)), entry)
            children.append(Child(os.fsencode(entry.name), node, snapshot_id << 40 | at))
        return children

    def close(self) -> None:
        return


def _is_same(version: Version, identity: str, pinned: Version) -> bool:
    """Return whether a local file is the pinned version. Pure: `LocalTree` says "dev:ino…", `LocalSite` "dev-ino" in hex."""
    device, inode = (int(number) for number in identity.split(":")[:2])
    same_file = pinned.etag == f"{device:x}-{inode:x}"
    return same_file and (version.size, version.mtime_ns) == (pinned.size, pinned.mtime_ns)
