"""Changes of names in a writable remote tree.

Each asks the origin what it has to, then decides and commits without an await in between. A request that an earlier worker
carried out is not carried out again.
"""

from __future__ import annotations

import stat
from collections.abc import Callable

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
from vfs.filesystem.stagedcontent import COPY_UP_BYTES_MAX, StagedContent
from vfs.filesystem.stagednames import StagedNames
from vfs.filesystem.staging import StagingArea
from vfs.model import Kind, LakePath, can_posix_carry, split
from vfs.namespace.staged import NAMELESS, Change, Drop, Staged, StagedKind

_NOREPLACE, _EXCHANGE = 1, 2


class StagedChanges:
    """Makes, removes and renames. Errors as `WritableTree`."""

    def __init__(
        self, area: StagingArea, names: StagedNames, content: StagedContent, *, deadline_s: Callable[[LakePath], float]
    ) -> None:
        self._area = area
        self._names = names
        self._content = content
        self._deadline_s = deadline_s

    async def make_file(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        """Create an empty file, about to be written."""
        if await self._may_make(path):
            await self._wait_gone(path)
            content = self._area.new_content(path)
            self._make(path, StagedKind.FILE, owner, mode=stat.S_IMODE(mode), content=content, writing=True)

    async def make_directory(self, path: LakePath, mode: int, owner: tuple[int, int]) -> None:
        """Create an empty directory."""
        if await self._may_make(path):
            self._make(path, StagedKind.DIRECTORY, owner, mode=stat.S_IMODE(mode), seq=1)

    async def make_symlink(self, path: LakePath, target: bytes, owner: tuple[int, int]) -> None:
        """Create a symlink, which stays on this host."""
        try:
            text = target.decode()
        except UnicodeDecodeError as exc:
            raise Unsupported(path, "points to a name that is not UTF-8") from exc
        if await self._may_make(path):
            await self._wait_gone(path)
            self._make(path, StagedKind.SYMLINK, owner, mode=0o777, target=text)

    async def _may_make(self, path: LakePath) -> bool:
        """Return whether to make something new; False: it was made for this very request by an earlier worker."""
        if not can_posix_carry(split(path)[1]):
            raise Unsupported(path, "no origin can hold a name that is not UTF-8")
        if self._area.was_done():
            return False
        if await self._names.origin_node(path) is not None or self._names.walk(path).shown is not None:
            raise AlreadyExists(path)
        return True

    async def _wait_gone(self, path: LakePath) -> None:
        """Wait until a directory that is being removed is gone from its origin: a file can't be there before.

        Raises:
            Busy: it is not, within the deadline.
        """
        absent = self._names.walk(path).node
        if absent is None or absent.kind is not StagedKind.ABSENT or not self._area.nodes.children(absent.id):
            return
        try:
            await self._area.settle(absent, path, self._deadline_s(path))
        except Stale:
            return
        except (DeadlineExceeded, Unavailable) as exc:
            raise Busy(path, "is a directory at its origin that is being removed there", "try again") from exc

    def _make(
        self, path: LakePath, kind: StagedKind, owner: tuple[int, int], *, mode: int, content: int = 0, writing: bool = False,
        target: str = "", seq: int = 0,
    ) -> None:  # fmt: skip
        parent, changes = self._names.directory(LakePath(split(path)[0]))
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
        node = replace(node, hides=_hidden_by(absent))
        if not self._area.nodes.children(absent.id):
            return node, [Drop(absent.id)]
        if node.kind is not StagedKind.DIRECTORY:
            raise Busy(path, "is a directory at its origin that is being removed there", "try again")
        return replace(node, id=absent.id, seq=absent.seq + 1), []  # what is in it goes on being hidden and removed

    def _commit_leaving(self, node: Staged, path: LakePath, changes: list[Change]) -> None:
        """Commit changes with which a node leaves its name: it is hidden, and goes from the origin, where that may show it.

        Said first and taken back where it can't be so. The agent notes what it begins before it looks whether the name still
        stands: if nothing was noted until now, it finds that it does not.
        """
        serial = self._area.uploads_serial()
        may_show = self._names.may_show(node, path)
        is_directory = node.kind is StagedKind.DIRECTORY
        absent = self._absent(self._area.next_id(), node.parent, node.name, directory=is_directory)
        self._area.commit([*changes, absent])
        if not may_show and self._area.uploads_serial() == serial:
            self._area.commit([Drop(absent.id)])

    def _absent(self, node_id: int, parent: int, name: str, *, directory: bool) -> Staged:
        return Staged(id=node_id, parent=parent, name=name, kind=StagedKind.ABSENT, through=directory, seq=1)

    async def remove(self, path: LakePath, *, directory: bool, is_open: bool) -> None:
        """Unlink a file or remove an empty directory."""
        if self._area.was_done():
            return
        origin = await self._names.origin_node(path)
        node = self._names.walk(path).shown
        if node is None and origin is None:
            raise NotFound(path)
        kind = Kind(node.kind.value) if node is not None else origin.kind if origin is not None else None
        if directory and kind is not Kind.DIRECTORY:
            raise NotADirectory(path)
        if not directory and kind is Kind.DIRECTORY:
            raise IsADirectory(path)
        if directory:
            await self._check_empty(path)
        node = self._names.walk(path).shown
        if node is None:
            parent, changes = self._names.directory(LakePath(split(path)[0]))
            absent = self._absent(self._area.next_id(), parent.id, split(path)[1], directory=directory)
            self._area.commit([*changes, absent])
        elif directory:
            if any(child.kind is not StagedKind.ABSENT for child in self._area.nodes.children(node.id)):
                raise DirectoryNotEmpty(path)
            serial = self._area.uploads_serial()
            keeps = node.through or self._names.may_show(node, path) or self._area.nodes.children(node.id)
            self._area.commit([replace(node, kind=StagedKind.ABSENT, through=True, seq=node.seq + 1)])
            if not keeps and self._area.uploads_serial() == serial:  # as in `_commit_leaving`
                self._area.commit([Drop(node.id)])
        else:
            self._commit_leaving(node, path, self._unnamed(node, is_open=is_open))

    def _unnamed(self, node: Staged, *, is_open: bool) -> list[Change]:
        """Return what becomes of a file that loses its name."""
        if is_open and node.kind is StagedKind.FILE and (node.content or node.at):
            return [replace(node, parent=NAMELESS, seq=node.seq + 1)]
        return [Drop(node.id)]

    async def _check_empty(self, path: LakePath) -> None:
        stream = await self._names.open_directory(path)
        try:
            if await stream.read(0):
                raise DirectoryNotEmpty(path)
        finally:
            stream.close()

    async def rename(self, path: LakePath, new_path: LakePath, flags: int, *, is_open: bool) -> None:
        """Rename: one node changes, whatever is below it."""
        if self._area.was_done():
            return
        if not can_posix_carry(split(new_path)[1]):
            raise Unsupported(new_path, "no origin can hold a name that is not UTF-8")
        node = await self._movable(path)
        new_origin = await self._names.origin_node(new_path)
        target = self._names.walk(new_path).shown
        target_kind = Kind(target.kind.value) if target is not None else new_origin.kind if new_origin is not None else None
        if flags & _EXCHANGE:
            self._exchange(path, new_path)
            return
        if target_kind is not None:
            await self._check_replaceable(new_path, node, target_kind, flags)
        if node.kind is not StagedKind.DIRECTORY:
            await self._wait_gone(new_path)
        # Atomic: no await until the commit.
        now = self._names.walk(path).shown
        if now is None or now.id != node.id:
            raise NotFound(path)
        parent, changes = self._names.directory(LakePath(split(new_path)[0]))
        old = self._area.nodes.child(parent.id, split(new_path)[1])
        if old is not None and old.id != now.id:
            changes += self._inherited(new_path, old, now)
            changes += self._unnamed(old, is_open=is_open)
        hides = _hidden_by(old) if old is not None else StagedKind(new_origin.kind.value) if new_origin is not None else None
        moved = replace(now, parent=parent.id, name=split(new_path)[1], hides=hides)
        self._commit_leaving(now, path, [*changes, moved])

    def _inherited(self, path: LakePath, old: Staged, node: Staged) -> list[Change]:
        """Return what hands the names that are still being removed in a directory on to the one that takes its place."""
        changes: list[Change] = []
        for child in self._area.nodes.children(old.id):
            taken = self._area.nodes.child(node.id, child.name) is not None
            if node.kind is not StagedKind.DIRECTORY or (taken and self._area.nodes.children(child.id)):
                raise Busy(path, "is being removed at its origin", "try again")
            changes.append(Drop(child.id) if taken else replace(child, parent=node.id))
        return changes

    async def _movable(self, path: LakePath) -> Staged:
        """Return the node of what can be renamed, bringing a small object of the origin here.

        Raises:
            CrossesMounts: what the origin has can't be moved from here; `mv` then copies it.
        """
        origin = await self._names.origin_node(path)
        node = self._names.walk(path).shown
        if node is None:
            if origin is None:
                raise NotFound(path)
            if origin.kind is not Kind.FILE or origin.version.size > COPY_UP_BYTES_MAX:
                raise CrossesMounts(path, "lies at its origin, which can't rename it", "copy it")
            return await self._content.copy_up(path, origin.version, size=None)
        if node.kind is StagedKind.DIRECTORY and (node.through or await self._has_foreign(path, node)):
            raise CrossesMounts(path, "holds what its origin has, which can't rename it", "copy it")
        return node

    async def _has_foreign(self, path: LakePath, node: Staged) -> bool:
        """Return whether the origin has more in a directory that was made here than what came from here."""
        base = await self._names.base(path, node)
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
        here, there = self._names.walk(path).shown, self._names.walk(new_path).shown
        if here is None or there is None or here.through or there.through:
            raise Unsupported(path, "only names that were written here can be exchanged")
        self._area.commit([
            replace(here, parent=there.parent, name=there.name, hides=there.kind),
            replace(there, parent=here.parent, name=here.name, hides=here.kind),
        ])  # fmt: skip


def _hidden_by(old: Staged) -> StagedKind:
    """Return what the origin may have under a node's name when another takes it."""
    if old.kind is StagedKind.ABSENT:
        return StagedKind.DIRECTORY if old.through else StagedKind.FILE
    return old.kind
