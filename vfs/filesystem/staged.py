"""A remote origin that can be written: what is staged on this host, over what the origin has.

Names are looked up among the staged nodes first. What they do not say, the origin says (`RemoteTree`). Changes never wait
for the origin, but for the question what is there already, which its listings mostly answer. In a directory that was made
here and is not at the origin there is nothing to ask: saving into it costs no round trip.

What the origin has is a version, with an inode of its own. Opened for writing it is brought here first (small objects) or,
if its content is to go anyway, replaced by an empty file; the path then stands for another inode, and `Stale` makes the
kernel look it up again. Who has the old version open goes on reading it.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime

from msgspec.structs import replace

from vfs.errors import NotFound, Stale, Unsupported
from vfs.filesystem.local import set_times
from vfs.filesystem.remote import RemoteTree
from vfs.filesystem.stagedchanges import StagedChanges
from vfs.filesystem.stagedcontent import StagedContent
from vfs.filesystem.stagedfiles import StagedSource
from vfs.filesystem.stagednames import StagedNames
from vfs.filesystem.staging import StagingArea
from vfs.filesystem.tree import Changes, Directory, Node, Source
from vfs.model import LakePath, Version, join
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import NAMELESS, Change, Staged, StagedKind
from vfs.oserrors import Translated
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce

_XATTRS_BYTES_MAX = 64 << 10
_TIMES = {
    "user.foremount.written": "written_ns",
    "user.foremount.durable_here": "synced_ns",
    "user.foremount.durable_at_origin": "settled_ns",
}
"""Extended attributes that say when: read only, and not listed, so that nobody copies them."""


class StagedTree:
    """The objects below a writable mount point whose origin is not on this host."""

    writable = True

    def __init__(
        self, point: MountPoint, remote: RemoteTree, area: StagingArea, *, policy: InForce, owner: tuple[int, int]
    ) -> None:
        self._point = point
        self._remote = remote
        self._area = area
        self._policy = policy
        self._names = StagedNames(point, remote, area, owner=owner)
        self._content = StagedContent(point, remote, area, self._names, owner=owner)
        self._changes = StagedChanges(area, self._names, self._content, deadline_s=self._deadline_s)

    # Names

    def is_fixed(self, identity: str) -> bool:
        return self._names.is_fixed(identity)

    async def lookup(self, path: LakePath) -> Node:
        return await self._names.lookup(path)

    def known(self, identity: str, fd: int | None) -> Node | None:
        node = self._names.by_identity(identity)
        return None if node is None else self._names.attributes(node)

    async def open_directory(self, path: LakePath) -> Directory:
        return await self._names.open_directory(path)

    async def make_file(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        await self._area.admit(path, self._deadline_s(path))
        await self._changes.make_file(path, mode, owner)

    async def make_directory(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        await self._changes.make_directory(path, mode, owner)

    async def make_symlink(self, path: LakePath, target: bytes, owner: tuple[int, int]) -> None:
        await self._changes.make_symlink(path, target, owner)

    async def make_link(self, path: LakePath, new_path: LakePath) -> None:
        raise Unsupported(new_path, "no origin keeps hard links", "copy the file")

    async def remove(self, path: LakePath, *, directory: bool, is_open: bool) -> None:
        await self._changes.remove(path, directory=directory, is_open=is_open)

    async def rename(self, path: LakePath, new_path: LakePath, flags: int, *, is_open: bool) -> None:
        await self._changes.rename(path, new_path, flags, is_open=is_open)

    # Content

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        if self._names.is_fixed(identity):
            return await self._remote.open(path, identity, version, write=write)
        node = self._names.by_identity(identity)
        if node is None:
            raise Stale(path, "was removed")
        if node.content:
            if write:
                self._area.begin_writing(node)
            return StagedSource(self._area, node.id, path, self._sync)
        assert node.at is not None, "content goes when the origin has it"
        return await self._content.open_at(node.at)

    async def before_write(self, path: LakePath, identity: str, version: Version, *, truncate: bool) -> None:
        await self._area.admit(path, self._policy.deadline_s(path, Access.WRITE, self._point.site))
        node = self._names.by_identity(identity)
        if node is None:
            if not self._names.is_fixed(identity):
                raise Stale(path, "was removed")
            await self._content.copy_up(path, version, size=0 if truncate else None)
            raise Stale(path, "is another file from now on")
        if not node.content:
            node = await self._content.bring_back(path, node, truncate=truncate)
        self._area.begin_writing(node)
        if truncate:
            with Translated(path):
                os.truncate(self._area.path(node.content), 0)

    def released(self, identity: str, *, last: bool) -> None:
        node = self._names.by_identity(identity)
        if node is not None:
            self._area.released(node.id, last=last)

    def close_waits(self, path: LakePath, identity: str) -> bool:
        node = self._names.by_identity(identity)
        return node is not None and node.parent != NAMELESS and self._policy.waits_for_origin(path, self._point.site)

    async def _sync(self, node_id: int) -> None:
        node = self._area.nodes.get(node_id)
        path = self._area.nodes.path(node) if node is not None else None
        if path is not None:
            remote = self._policy.waits_for_origin(path, self._point.site)
            await self._area.sync(node_id, path, remote=remote, deadline_s=self._deadline_s(path))

    def _deadline_s(self, path: LakePath) -> float:
        return self._policy.deadline_s(path, Access.WRITE, self._point.site)

    async def sync_directory(self, path: LakePath) -> None:
        await self._area.sync_names()
        node = self._names.walk(path).shown
        if node is None or not self._policy.waits_for_origin(path, self._point.site):
            return
        for child in self._area.nodes.children(node.id):
            if not (child.settled or child.writing or child.through or child.kind is StagedKind.SYMLINK):
                await self._area.settle(child, LakePath(join(path, child.name)), self._deadline_s(path))

    # Attributes

    async def change(self, path: LakePath, identity: str, fd: int | None, changes: Changes) -> None:
        node = self._names.by_identity(identity)
        if node is None:
            if not self._names.is_fixed(identity):
                raise Stale(path, "was removed")
            place = self._names.walk(path)
            if identity != "directory":
                await self._change_origins(path, identity, changes)
                return
            if place.is_absent:
                raise NotFound(path)
            node, made = self._names.directory(path)
            self._area.commit([*made, self._changed(node, changes)])
            return
        if changes.size is not None and not node.content:
            node = await self._content.bring_back(path, node, truncate=changes.size == 0)
        with Translated(path):
            if changes.size is not None:
                os.truncate(self._area.path(node.content), changes.size)
            if node.content and (changes.atime_ns is not None or changes.mtime_ns is not None):
                set_times(self._area.path(node.content).encode(), changes)
        changed = self._changed(node, changes)
        found = self._area.stat(changed)
        if found is not None and not node.writing:
            if changes.size is not None:
                changed = self._area.with_content(changed, found)
            changed = replace(changed, mtime_ns=found.st_mtime_ns)
        if changed != node:
            self._area.commit([changed])

    def _changed(self, node: Staged, changes: Changes) -> Staged:
        return replace(
            node,
            mode=node.mode if changes.mode is None else stat.S_IMODE(changes.mode),
            uid=node.uid if changes.uid is None else changes.uid,
            gid=node.gid if changes.gid is None else changes.gid,
            mtime_ns=node.mtime_ns if changes.mtime_ns is None else changes.mtime_ns,
        )

    async def _change_origins(self, path: LakePath, identity: str, changes: Changes) -> None:
        """Truncate an object of the origin; it becomes another file. Its other attributes are the origin's."""
        if changes.size is None:
            raise Unsupported(path, "lies at its origin, which keeps no attributes", "copy it")
        found = await self._remote.lookup(path)
        if found.identity != identity:
            raise Stale(path, "was replaced")
        await self._content.copy_up(path, found.version, size=changes.size)
        raise Stale(path, "is another file from now on")

    async def get_xattr(self, path: LakePath, identity: str, name: str) -> bytes | None:
        node = self._names.by_identity(identity) or (self._names.walk(path).shown if identity == "directory" else None)
        if node is None:
            return None
        if name in _TIMES:
            at_ns = getattr(node, _TIMES[name])
            return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat().encode() if at_ns else None
        return node.xattrs.get(name)

    async def list_xattrs(self, path: LakePath, identity: str) -> list[str]:
        node = self._names.by_identity(identity) or (self._names.walk(path).shown if identity == "directory" else None)
        return [] if node is None else list(node.xattrs)

    async def set_xattr(self, path: LakePath, identity: str, name: str, value: bytes | None) -> None:
        node, made = self._names.by_identity(identity), list[Change]()
        if node is None and identity == "directory":
            node, made = self._names.directory(path)
        if node is None or name in _TIMES:
            raise Unsupported(path, "lies at its origin, which keeps no attributes", "copy it")
        xattrs = {each: kept for each, kept in node.xattrs.items() if each != name}
        if value is not None:
            xattrs[name] = value
        if sum(len(each) + len(kept) for each, kept in xattrs.items()) > _XATTRS_BYTES_MAX:
            raise Unsupported(path, f"may have {_XATTRS_BYTES_MAX} bytes of attributes")
        self._area.commit([*made, replace(node, xattrs=xattrs)])
