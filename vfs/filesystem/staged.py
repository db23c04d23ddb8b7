"""A remote origin that can be written: what is staged on this host, over what the origin has.

Names are looked up among the staged nodes first. What they do not say, the origin says (`RemoteTree`). Changes never wait
for the origin, but for the question what is there already, which its listings mostly answer. In a directory that was made
here and is not at the origin there is nothing to ask: saving into it costs no round trip.

What the origin has is a version, with an inode of its own. Opened for writing it is brought here first (small objects) or,
if its content is to go anyway, replaced by an empty file; the path then stands for another inode, and `Stale` makes the
kernel look it up again. Who has the old version open goes on reading it.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime

import trio
from msgspec.structs import replace

from vfs.errors import (
    AlreadyExists,
    Busy,
    CrossesMounts,
    DeadlineExceeded,
    DirectoryNotEmpty,
    IsADirectory,
    NotADirectory,
    NotFound,
    Stale,
    Unavailable,
    Unsupported,
)
from vfs.filesystem.local import set_times
from vfs.filesystem.remote import RemoteTree
from vfs.filesystem.stagedfiles import StagedDirectory, StagedSource
from vfs.filesystem.staging import StagingArea
from vfs.filesystem.tree import Changes, Directory, Node, Source
from vfs.model import Kind, LakePath, Version, can_posix_carry, join, split
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import NAMELESS, NOWHERE, At, Change, Drop, Staged, StagedKind
from vfs.oserrors import Translated
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce

log = logging.getLogger(__name__)
TTL_S = 1.0
COPY_UP_BYTES_MAX = 64 << 20
"""Of an object that is changed in place: what is brought here while its opener waits. Larger ones are refused."""
_COPY_BYTES = 1 << 20
_PRESENT_S = 2.0
"""How long a writer waits to learn whether the origin has a directory that was made here. It goes on without an answer."""
_AWAY_S = 10.0
_XATTRS_BYTES_MAX = 64 << 10
_NOREPLACE, _EXCHANGE = 1, 2
_PREFIX = "staged:"
_TIMES = {
    "user.foremount.written": "written_ns",
    "user.foremount.durable_here": "synced_ns",
    "user.foremount.durable_at_origin": "settled_ns",
}
"""Extended attributes that say when: read only, and not listed, so that nobody copies them."""
_TYPE_BITS = {StagedKind.FILE: stat.S_IFREG, StagedKind.DIRECTORY: stat.S_IFDIR, StagedKind.SYMLINK: stat.S_IFLNK}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk over the nodes ends.

    Attributes:
        node: of the path itself, None where no node says anything of it.
        above: the deepest directory's node on the way, the path's own not counted.
        gone: something above it is gone, or no directory.
    """

    node: Staged | None
    above: Staged
    gone: bool = False

    @property
    def is_absent(self) -> bool:
        return self.gone or (self.node is not None and self.node.kind is StagedKind.ABSENT)

    @property
    def shown(self) -> Staged | None:
        """The node, unless it says that nothing is there."""
        return None if self.is_absent else self.node


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
        self._owner = owner
        self._away_until_s = 0.0
        if area.nodes.child(NOWHERE, point.prefix) is None:
            area.commit([self._through(area.next_id(), NOWHERE, point.prefix)])

    def _through(self, node_id: int, parent: int, name: str) -> Staged:
        return Staged(
            id=node_id, parent=parent, name=name, kind=StagedKind.DIRECTORY, through=True, mtime_ns=self._area.now_ns(),
            uid=self._owner[0], gid=self._owner[1],
        )  # fmt: skip

    # Names

    def is_fixed(self, identity: str) -> bool:
        return not identity.startswith(_PREFIX)

    def _walk(self, path: LakePath) -> _Place:
        nodes, node = self._area.nodes, self._area.nodes.child(NOWHERE, self._point.prefix)
        assert node is not None, "made with the tree"
        below = self._point.below(path)
        names = below.split("/") if below else []
        place = _Place(node, node)
        for depth, name in enumerate(names, 1):
            child = nodes.child(node.id, name)
            place = _Place(child, node)
            if child is None or depth == len(names):
                break
            if child.kind is not StagedKind.DIRECTORY:
                return _Place(None, node, gone=True)
            node = child
        return place

    async def lookup(self, path: LakePath) -> Node:
        if not can_posix_carry(split(path)[1]) and path:
            raise NotFound(path, "no origin can hold a name that is not UTF-8")
        place = self._walk(path)
        if place.is_absent:
            raise NotFound(path)
        node = place.node
        if node is None:
            return await self._ask_origin(path, place)
        if node.kind is StagedKind.FILE and node.settled and not self._area.is_open(node.id):
            return await self._settled(path, node)
        return self._attributes(node)

    async def _settled(self, path: LakePath, node: Staged) -> Node:
        """Return what is there: the node still, unless the origin has moved on to another version."""
        if node.at is None or node.at.path != self._point.site_path(path):
            return self._attributes(node)
        try:
            found: Node | None = await self._remote.lookup(path)
        except NotFound:
            found = None
        except (Unavailable, DeadlineExceeded):
            return self._attributes(node)
        now = self._area.nodes.get(node.id)
        if now is None or now.seq != node.seq or now.parent != node.parent or now.name != node.name:
            return await self.lookup(path)  # changed while the origin was asked
        if found is not None and found.version == node.at.version:
            return self._attributes(now)
        log.info("%s: its origin has another version by now", path)
        self._area.commit([Drop(node.id, retired=True)])
        if found is None:
            raise NotFound(path)
        return found

    async def _ask_origin(self, path: LakePath, place: _Place) -> Node:
        """Return what the origin has at a path that no node speaks of."""
        if not place.above.through and not await self._is_at_origin(place.above):
            raise NotFound(path)
        return await self._remote.lookup(path)

    async def _is_at_origin(self, directory: Staged) -> bool:
        """Return whether the origin has a directory that was made here. Lists it: its names are then known."""
        path, now_s = self._area.nodes.path(directory), trio.current_time()
        if path is None or now_s < self._away_until_s:
            return False
        with trio.move_on_after(_PRESENT_S) as asking:
            try:
                await self._remote.lookup(path)
                await self._remote.open_directory(path)
            except NotFound:
                return False
            except (Unavailable, DeadlineExceeded):
                asking.cancel()
        if asking.cancel_called:
            self._away_until_s = trio.current_time() + _AWAY_S
            return False
        return True

    def _attributes(self, node: Staged) -> Node:
        found = self._area.stat(node) if node.kind is StagedKind.FILE else None
        version = Version(node.size, node.mtime_ns) if found is None else Version(found.st_size, found.st_mtime_ns)
        mode = node.mode or (0o755 if node.kind is StagedKind.DIRECTORY else 0o644)
        return Node(
            Kind(node.kind.value),
            "directory" if node.kind is StagedKind.DIRECTORY else f"{_PREFIX}{node.id}",
            version,
            _TYPE_BITS[node.kind] | stat.S_IMODE(mode),
            node.uid,
            node.gid,
            target=node.target,
            blocks=None if found is None else found.st_blocks,
            ttl_s=TTL_S,
        )

    def known(self, identity: str, fd: int | None) -> Node | None:
        node = self._by_identity(identity)
        return None if node is None else self._attributes(node)

    def _by_identity(self, identity: str) -> Staged | None:
        return None if self.is_fixed(identity) else self._area.nodes.get(int(identity[len(_PREFIX) :]))

    async def open_directory(self, path: LakePath) -> Directory:
        place = self._walk(path)
        if place.is_absent:
            raise NotFound(path)
        node = place.node
        if node is None:
            if not place.above.through and not await self._is_at_origin(place.above):
                raise NotFound(path)
            return await self._remote.open_directory(path)
        if node.kind is not StagedKind.DIRECTORY:
            raise NotADirectory(path)
        base = await self._base(path, node)
        children = self._area.nodes.children(node.id)
        shown = {child.name.encode(): self._attributes(child) for child in children if child.kind is not StagedKind.ABSENT}
        return StagedDirectory(shown, {child.name.encode() for child in children}, base)

    async def _base(self, path: LakePath, node: Staged) -> Directory | None:
        """Return the origin's directory below a staged one, None where it has none."""
        if not node.through and not await self._is_at_origin(node):
            return None
        try:
            return await self._remote.open_directory(path)
        except (NotFound, NotADirectory):
            return None

    # Content

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        if self.is_fixed(identity):
            return await self._remote.open(path, identity, version, write=write)
        node = self._by_identity(identity)
        if node is None:
            raise Stale(path, "was removed")
        if node.content:
            if write:
                self._area.begin_writing(node)
            return StagedSource(self._area, node.id, path, self._sync)
        assert node.at is not None, "content goes when the origin has it"
        return await self._open_at(node.at)

    async def _open_at(self, at: At) -> Source:
        below = at.path[len(self._point.root) :].lstrip("/") if self._point.root else at.path
        return await self._remote.open(LakePath(join(self._point.prefix, below)), "", at.version, write=False)

    async def before_write(self, path: LakePath, identity: str, version: Version, *, truncate: bool) -> None:
        await self._area.admit(path, self._policy.deadline_s(path, Access.WRITE, self._point.site))
        node = self._by_identity(identity)
        if node is None:
            if not self.is_fixed(identity):
                raise Stale(path, "was removed")
            await self._copy_up(path, version, size=0 if truncate else None)
            raise Stale(path, "is another file from now on")
        if not node.content:
            node = await self._bring_back(path, node, truncate=truncate)
        self._area.begin_writing(node)
        if truncate:
            with Translated(path):
                os.truncate(self._area.path(node.content), 0)

    async def _copy_up(self, path: LakePath, version: Version, *, size: int | None) -> Staged:
        """Bring an object of the origin here, its first `size` bytes: as a node in its place, which is returned."""
        content = await self._fetch(path, At(self._point.site_path(path), version), size)
        place = self._walk(path)
        if place.node is not None or place.gone:  # somebody else was faster
            if place.shown is None:
                raise NotFound(path)
            return place.shown
        parent, changes = self._directory(LakePath(split(path)[0]))
        whole = size is None or size == version.size
        node = Staged(
            id=self._area.next_id(), parent=parent.id, name=split(path)[1], kind=StagedKind.FILE, mode=0o644,
            uid=self._owner[0], gid=self._owner[1], seq=1, content=content, size=version.size if size is None else size,
            mtime_ns=version.mtime_ns if whole else self._area.now_ns(), written_ns=self._area.now_ns(),
            at=At(self._point.site_path(path), version), settled_seq=1 if whole else 0,
        )  # fmt: skip
        os.utime(self._area.path(content), ns=(node.mtime_ns, node.mtime_ns))
        self._area.commit([*changes, node])
        return node

    async def _bring_back(self, path: LakePath, node: Staged, *, truncate: bool) -> Staged:
        """Give a node content again."""
        assert node.at is not None
        content = await self._fetch(path, node.at, 0 if truncate else None)
        now = self._area.nodes.get(node.id)
        if now is None or now.content or now.seq != node.seq:
            raise Stale(path, "was changed by somebody else")
        os.utime(self._area.path(content), ns=(now.mtime_ns, now.mtime_ns))
        self._area.commit([filled := replace(now, content=content)])
        return filled

    async def _fetch(self, path: LakePath, at: At, size: int | None) -> int:
        """Return the number of a staging file with the first bytes of an object."""
        length = at.version.size if size is None else min(size, at.version.size)
        if length > COPY_UP_BYTES_MAX:
            raise Unsupported(path, "is too large to be changed in place", "write a new file and rename it over this one")
        source = await self._open_at(at) if length else None
        content = self._area.new_content(path)
        try:
            fd = os.open(self._area.path(content), os.O_RDWR | os.O_CLOEXEC)
            try:
                offset = 0
                while source is not None and offset < length:
                    piece = await source.read(offset, min(_COPY_BYTES, length - offset))
                    with Translated(path):
                        offset += os.pwrite(fd, piece, offset)
                with Translated(path):
                    os.truncate(fd, length if size is None else size)
            finally:
                os.close(fd)
        finally:
            if source is not None:
                source.close()
        return content

    def released(self, identity: str, *, last: bool) -> None:
        node = self._by_identity(identity)
        if node is not None:
            self._area.released(node.id, last=last)

    def close_waits(self, path: LakePath, identity: str) -> bool:
        node = self._by_identity(identity)
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
        node = self._walk(path).shown
        if node is None or not self._policy.waits_for_origin(path, self._point.site):
            return
        for child in self._area.nodes.children(node.id):
            if not (child.settled or child.writing or child.through or child.kind is StagedKind.SYMLINK):
                await self._area.settle(child, LakePath(join(path, child.name)), self._deadline_s(path))

    # Changes of names. Each asks the origin what it has to, then decides and commits without an await in between.

    async def make_file(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        await self._area.admit(path, self._deadline_s(path))
        if await self._may_make(path):
            content = self._area.new_content(path)
            self._make(path, StagedKind.FILE, owner, mode=stat.S_IMODE(mode), content=content, writing=True)

    async def make_directory(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        if await self._may_make(path):
            self._make(path, StagedKind.DIRECTORY, owner, mode=stat.S_IMODE(mode), seq=1)

    async def make_symlink(self, path: LakePath, target: bytes, owner: tuple[int, int]) -> None:
        try:
            text = target.decode()
        except UnicodeDecodeError as exc:
            raise Unsupported(path, "points to a name that is not UTF-8") from exc
        if await self._may_make(path):
            self._make(path, StagedKind.SYMLINK, owner, mode=0o777, target=text)

    async def make_link(self, path: LakePath, new_path: LakePath) -> None:
        raise Unsupported(new_path, "no origin keeps hard links", "copy the file")

    async def _may_make(self, path: LakePath) -> bool:
        """Return whether to make something new; False: it was made for this very request by an earlier worker."""
        if not can_posix_carry(split(path)[1]):
            raise Unsupported(path, "no origin can hold a name that is not UTF-8")
        if self._area.was_done():
            return False
        if await self._origin_node(path) is not None or self._walk(path).shown is not None:
            raise AlreadyExists(path)
        return True

    async def _origin_node(self, path: LakePath) -> Node | None:
        """Return what the origin shows at a path, None where it is hidden or nothing."""
        place = self._walk(path)
        if place.node is not None or place.gone:
            return None
        try:
            return await self._ask_origin(path, place)
        except NotFound:
            return None

    def _make(
        self, path: LakePath, kind: StagedKind, owner: tuple[int, int], *, mode: int, content: int = 0, writing: bool = False,
        target: str = "", seq: int = 0,
    ) -> None:  # fmt: skip
        parent, changes = self._directory(LakePath(split(path)[0]))
        uid, gid = owner
        if parent.mode & stat.S_ISGID:
            gid = parent.gid
            mode |= stat.S_ISGID if kind is StagedKind.DIRECTORY else 0
        node = Staged(
            id=self._area.next_id(), parent=parent.id, name=split(path)[1], kind=kind, mode=mode, uid=uid, gid=gid, seq=seq,
            content=content, writing=writing, target=target, mtime_ns=self._area.now_ns(),
        )  # fmt: skip
        old = self._area.nodes.child(parent.id, node.name)
        if old is not None:
            node, superseded = self._supersede(path, old, node)
            changes += superseded
        self._area.commit([*changes, node])

    def _supersede(self, path: LakePath, absent: Staged, node: Staged) -> tuple[Staged, list[Change]]:
        """Return what takes the name of an ABSENT node, and the changes that go with it."""
        if not self._area.nodes.children(absent.id):
            return node, [Drop(absent.id)]
        if node.kind is not StagedKind.DIRECTORY:
            raise Busy(path, "is a directory at its origin that is being removed there", "try again")
        return replace(node, id=absent.id, seq=absent.seq + 1), []  # what is in it goes on being hidden and removed

    def _directory(self, path: LakePath) -> tuple[Staged, list[Change]]:
        """Return a directory's node, and the changes that make it and those above, where the origin's alone was there."""
        place = self._walk(path)
        if place.is_absent:
            raise NotFound(path)
        if place.node is not None:
            if place.node.kind is not StagedKind.DIRECTORY:
                raise NotADirectory(path)
            return place.node, []
        parent, changes = self._directory(LakePath(split(path)[0]))
        made = self._through(self._area.next_id(), parent.id, split(path)[1])
        return made, [*changes, made]

    def _may_show(self, node: Staged, path: LakePath) -> bool:
        """Return whether the origin has, or is getting, something under a node's name that would show without it."""
        return node.at is not None or self._area.is_known_to_origin(node.id, path)

    def _leave(self, node: Staged, path: LakePath) -> list[Change]:
        """Return what hides a name, and has it removed at the origin, when its node leaves it."""
        if not self._may_show(node, path):
            return []
        is_directory = node.kind is StagedKind.DIRECTORY
        return [self._absent(self._area.next_id(), node.parent, node.name, directory=is_directory)]

    def _absent(self, node_id: int, parent: int, name: str, *, directory: bool) -> Staged:
        return Staged(id=node_id, parent=parent, name=name, kind=StagedKind.ABSENT, through=directory, seq=1)

    async def remove(self, path: LakePath, *, directory: bool, is_open: bool) -> None:
        if self._area.was_done():
            return
        origin = await self._origin_node(path)
        node = self._walk(path).shown
        if node is None and origin is None:
            raise NotFound(path)
        kind = Kind(node.kind.value) if node is not None else origin.kind if origin is not None else None
        if directory and kind is not Kind.DIRECTORY:
            raise NotADirectory(path)
        if not directory and kind is Kind.DIRECTORY:
            raise IsADirectory(path)
        if directory:
            await self._check_empty(path)
        node = self._walk(path).shown
        if node is None:
            parent, changes = self._directory(LakePath(split(path)[0]))
            absent = self._absent(self._area.next_id(), parent.id, split(path)[1], directory=directory)
            self._area.commit([*changes, absent])
        elif directory:
            if any(child.kind is not StagedKind.ABSENT for child in self._area.nodes.children(node.id)):
                raise DirectoryNotEmpty(path)
            keeps = node.through or self._may_show(node, path) or self._area.nodes.children(node.id)
            self._area.commit(
                [replace(node, kind=StagedKind.ABSENT, through=True, seq=node.seq + 1)] if keeps else [Drop(node.id)]
            )
        else:
            self._area.commit([*self._unnamed(node, is_open=is_open), *self._leave(node, path)])

    def _unnamed(self, node: Staged, *, is_open: bool) -> list[Change]:
        """Return what becomes of a file that loses its name."""
        if is_open and node.kind is StagedKind.FILE and (node.content or node.at):
            return [replace(node, parent=NAMELESS, seq=node.seq + 1)]
        return [Drop(node.id)]

    async def _check_empty(self, path: LakePath) -> None:
        stream = await self.open_directory(path)
        try:
            if await stream.read(0):
                raise DirectoryNotEmpty(path)
        finally:
            stream.close()

    async def rename(self, path: LakePath, new_path: LakePath, flags: int, *, is_open: bool) -> None:
        if self._area.was_done():
            return
        if not can_posix_carry(split(new_path)[1]):
            raise Unsupported(new_path, "no origin can hold a name that is not UTF-8")
        node = await self._movable(path)
        new_origin = await self._origin_node(new_path)
        target = self._walk(new_path).shown
        target_kind = Kind(target.kind.value) if target is not None else new_origin.kind if new_origin is not None else None
        if flags & _EXCHANGE:
            self._exchange(path, new_path)
            return
        if target_kind is not None:
            await self._check_replaceable(new_path, node, target_kind, flags)
        # Atomic: no await until the commit.
        now = self._walk(path).shown
        if now is None or now.id != node.id:
            raise NotFound(path)
        parent, changes = self._directory(LakePath(split(new_path)[0]))
        old = self._area.nodes.child(parent.id, split(new_path)[1])
        if old is not None and old.id != now.id:
            if self._area.nodes.children(old.id):
                raise Busy(new_path, "is being removed at its origin", "try again")
            changes += self._unnamed(old, is_open=is_open)
        left = self._leave(now, path)
        self._area.commit([*changes, replace(now, parent=parent.id, name=split(new_path)[1]), *left])

    async def _movable(self, path: LakePath) -> Staged:
        """Return the node of what can be renamed, bringing a small object of the origin here.

        Raises:
            CrossesMounts: what the origin has can't be moved from here; `mv` then copies it.
        """
        origin = await self._origin_node(path)
        node = self._walk(path).shown
        if node is None:
            if origin is None:
                raise NotFound(path)
            if origin.kind is not Kind.FILE or origin.version.size > COPY_UP_BYTES_MAX:
                raise CrossesMounts(path, "lies at its origin, which can't rename it", "copy it")
            return await self._copy_up(path, origin.version, size=None)
        if node.kind is StagedKind.DIRECTORY and (node.through or await self._has_foreign(path, node)):
            raise CrossesMounts(path, "holds what its origin has, which can't rename it", "copy it")
        return node

    async def _has_foreign(self, path: LakePath, node: Staged) -> bool:
        """Return whether the origin has more in a directory that was made here than what came from here."""
        base = await self._base(path, node)
        if base is None:
            return False
        ours = {child.name.encode() for child in self._area.nodes.children(node.id)}
        position = 0
        try:
            while page := await base.read(position):
                if any(child.name not in ours for child in page):
                    return True
                position = page[-1].position
        finally:
            base.close()
        return False

    async def _check_replaceable(self, path: LakePath, node: Staged, kind: Kind, flags: int) -> None:
        if flags & _NOREPLACE:
            raise AlreadyExists(path)
        if node.kind is StagedKind.DIRECTORY:
            if kind is not Kind.DIRECTORY:
                raise NotADirectory(path)
            await self._check_empty(path)
        elif kind is Kind.DIRECTORY:
            raise IsADirectory(path)

    def _exchange(self, path: LakePath, new_path: LakePath) -> None:
        here, there = self._walk(path).shown, self._walk(new_path).shown
        if here is None or there is None or here.through or there.through:
            raise Unsupported(path, "only names that were written here can be exchanged")
        self._area.commit([
            replace(here, parent=there.parent, name=there.name),
            replace(there, parent=here.parent, name=here.name),
        ])  # fmt: skip

    # Attributes

    async def change(self, path: LakePath, identity: str, fd: int | None, changes: Changes) -> None:
        node = self._by_identity(identity)
        if node is None:
            if not self.is_fixed(identity):
                raise Stale(path, "was removed")
            place = self._walk(path)
            if identity != "directory":
                await self._change_origins(path, identity, changes)
                return
            if place.is_absent:
                raise NotFound(path)
            node, made = self._directory(path)
            self._area.commit([*made, self._changed(node, changes)])
            return
        if changes.size is not None and not node.content:
            node = await self._bring_back(path, node, truncate=changes.size == 0)
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
        await self._copy_up(path, found.version, size=changes.size)
        raise Stale(path, "is another file from now on")

    async def get_xattr(self, path: LakePath, identity: str, name: str) -> bytes | None:
        node = self._by_identity(identity) or (self._walk(path).shown if identity == "directory" else None)
        if node is None:
            return None
        if name in _TIMES:
            at_ns = getattr(node, _TIMES[name])
            return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat().encode() if at_ns else None
        return node.xattrs.get(name)

    async def list_xattrs(self, path: LakePath, identity: str) -> list[str]:
        node = self._by_identity(identity) or (self._walk(path).shown if identity == "directory" else None)
        return [] if node is None else list(node.xattrs)

    async def set_xattr(self, path: LakePath, identity: str, name: str, value: bytes | None) -> None:
        node, made = self._by_identity(identity), list[Change]()
        if node is None and identity == "directory":
            node, made = self._directory(path)
        if node is None or name in _TIMES:
            raise Unsupported(path, "lies at its origin, which keeps no attributes", "copy it")
        xattrs = {each: kept for each, kept in node.xattrs.items() if each != name}
        if value is not None:
            xattrs[name] = value
        if sum(len(each) + len(kept) for each, kept in xattrs.items()) > _XATTRS_BYTES_MAX:
            raise Unsupported(path, f"may have {_XATTRS_BYTES_MAX} bytes of attributes")
        self._area.commit([*made, replace(node, xattrs=xattrs)])
