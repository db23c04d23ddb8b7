"""The file system: inodes over the mount table's trees.

A handle is its inode's number: nothing about it can be lost when the worker is killed. All handles on an inode share one
`Source`, and with it one version.

Concurrency: one trio loop. Between awaits the tables are ours; after one, inodes are fetched again.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vfs.errors import (
    CrossesMounts,
    DeadlineExceeded,
    Denied,
    IsADirectory,
    NotADirectory,
    NotFound,
    ReadOnly,
    Stale,
    Unavailable,
    Unsupported,
)
from vfs.filesystem.buffered import BufferedDirectory
from vfs.filesystem.intents import Intents
from vfs.filesystem.local import LocalTree
from vfs.filesystem.merged import MergedDirectory
from vfs.filesystem.openfiles import Opener, OpenFiles
from vfs.filesystem.pinned import PinnedTree, is_pinned
from vfs.filesystem.place import PlaceTree
from vfs.filesystem.request import is_resent
from vfs.filesystem.tree import (
    DIRECTORY_MODE,
    Buffer,
    Changes,
    Child,
    Directory,
    Node,
    Pushable,
    Source,
    Tree,
    WritableTree,
    is_writable,
)
from vfs.model import Ino, Kind, LakePath, Version
from vfs.namespace.inodes import ROOT, InodeTable, Row
from vfs.namespace.mounts import MountTable
from vfs.usage import Source as From
from vfs.usage import served_from

log = logging.getLogger(__name__)
_RENAME_EXCHANGE = 2
"""Of renameat2."""
_USER_XATTR = b"user."
_TABLE_TTL_S = 3600.0
"""Directories that the mount table alone makes don't change while it is mounted."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What the kernel is told about an inode.

    Attributes:
        ttl_s: how long it may believe the name and the attributes.
    """

    ino: Ino
    node: Node
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """How the kernel is to treat a new handle.

    Attributes:
        backing: id for passthrough, 0: page-cache mode.
        keep_cache: pages of earlier opens are still right: true where an inode is one version.
        flush: the kernel is to send FLUSH on close.
        source: where its bytes come from, as far as they are here.
    """

    backing: int
    keep_cache: bool
    flush: bool
    source: From


@dataclass(slots=True)
class FileSystem:
    """All operations, by inode number.

    Attributes:
        open_max: directory streams that may be open.
        push: puts bytes of a cached object into an inode's page cache; None where there is no kernel.
        pinned: by mount point: stands in for its tree where the policy pins a path to a snapshot.
        directories: open directory streams by inode, the one that was opened longest ago first.
        intents: what is done to local directories, for the next worker.
    """

    mounts: MountTable
    trees: Mapping[LakePath, Tree]
    inodes: InodeTable
    files: OpenFiles
    owner: tuple[int, int]
    started_ns: int
    open_max: int = 1000
    push: Callable[[Ino, Pushable, int, int], Awaitable[bool]] | None = None
    pinned: Mapping[LakePath, PinnedTree] = field(default_factory=dict)
    directories: dict[Ino, Directory] = field(default_factory=dict)
    intents: Intents = field(init=False)

    def __post_init__(self) -> None:
        self.intents = Intents(self.inodes)

    # Names and attributes

    async def lookup(self, parent: Ino, name: bytes) -> Attributes:
        """Find a name and count one reference of the kernel to what it is."""
        path = self.inodes.path(parent, name)
        node, ttl_s = await self._lookup(path)
        inode = self.inodes.remember(row_of(parent, name, node), lookups=1)
        return Attributes(inode.ino, node, ttl_s)

    async def attributes(self, ino: Ino) -> Attributes:
        """Return the attributes of an inode; of a version that has moved on, what they were."""
        if ino == ROOT:
            return Attributes(ROOT, *await self._mount_node(LakePath("")))
        inode = self.inodes.get(ino)
        path = self.inodes.path(ino)
        tree = self._tree_of(ino, path)
        if inode.row.kind is not Kind.DIRECTORY and (tree is None or tree.is_fixed(inode.row.identity)):
            return Attributes(ino, node_of(inode.row), _TABLE_TTL_S)  # an inode is a version: it can't change
        if is_writable(tree) and (node := tree.known(inode.row.identity, None)) is not None:
            return Attributes(ino, node, node.ttl_s)
        try:
            node, ttl_s = await self._lookup(path)
        except NotFound:
            node = None
        if node is None or node.identity != inode.row.identity:
            return Attributes(ino, self._nameless_node(ino) or node_of(inode.row), 0.0)
        return Attributes(ino, node, ttl_s)

    def _nameless_node(self, ino: Ino) -> Node | None:
        """Return the attributes of a file that has lost its name; None: it is not open here."""
        file, tree = self.files.get(ino), self._tree_of(ino, self.inodes.path(ino))
        fd = file.source.backing_fd if file is not None and file.source is not None else None
        return tree.known(self.inodes.get(ino).row.identity, fd) if is_writable(tree) else None

    async def readlink(self, ino: Ino) -> bytes:
        """Return what a symlink points to."""
        return os.fsencode(self.inodes.get(ino).row.target)

    def forget(self, counts: list[tuple[Ino, int]]) -> None:
        """Take references of the kernel back."""
        with self.inodes.batch():
            for ino, lookups in counts:
                self.files.close_if_idle(ino)
                self.inodes.forget(ino, lookups)

    async def _lookup(self, path: LakePath) -> tuple[Node, float]:
        if self.mounts.leads_to_mounts(path):
            return await self._mount_node(path)
        tree = self._tree(path)
        if tree is None:
            raise NotFound(path, "nothing is mounted there")
        node = await tree.lookup(path)
        return node, node.ttl_s

    async def _mount_node(self, path: LakePath) -> tuple[Node, float]:
        """Return the attributes of a directory of the mount table: the origin's own where there is one on this host."""
        tree = self._tree(path)
        if is_writable(tree) or isinstance(tree, LocalTree | PlaceTree):
            try:
                node = await tree.lookup(path)
                return node, node.ttl_s
            except (NotFound, Unavailable, DeadlineExceeded):
                pass
        return self._table_node(), _TABLE_TTL_S

    def _table_node(self) -> Node:
        return Node(
            Kind.DIRECTORY, "table", Version(0, self.started_ns), DIRECTORY_MODE, *self.owner, nlink=2, ttl_s=_TABLE_TTL_S
        )

    def _tree(self, path: LakePath) -> Tree | None:
        """Return the tree that says what a name is now."""
        point = self.mounts.find(path)
        if point is None:
            return None
        pinned = self.pinned.get(point.prefix)
        return pinned if pinned is not None and pinned.holds(path) else self.trees[point.prefix]

    def _tree_of(self, ino: Ino, path: LakePath) -> Tree | None:
        """Return the tree that an inode came from: what is open stays what it is, though its name be pinned or set free."""
        point = self.mounts.find(path)
        if point is None:
            return None
        return (self.pinned if is_pinned(self.inodes.get(ino).row.identity) else self.trees)[point.prefix]

    # Directories

    async def open_directory(self, ino: Ino) -> None:
        """Open a directory stream."""
        if ino != ROOT and self.inodes.get(ino).row.kind is not Kind.DIRECTORY:
            raise NotADirectory(self.inodes.path(ino))
        self._keep_directory(ino, BufferedDirectory(await self._open_directory(self.inodes.path(ino))))

    def _keep_directory(self, ino: Ino, directory: Directory) -> None:
        """Hold the stream; too many are closed, oldest first: a position is enough to go on from."""
        self._close_directory(ino)
        self.directories[ino] = directory
        while len(self.directories) > self.open_max:
            self._close_directory(next(iter(self.directories)))

    async def _open_directory(self, path: LakePath) -> Directory:
        tree, names = self._tree(path), self.mounts.children(path)
        if not names:
            if tree is None:
                raise NotFound(path)
            return await tree.open_directory(path)
        children = {
            os.fsencode(name): (await self._lookup(LakePath(f"{path}/{name}" if path else name)))[0] for name in names
        }
        base = None
        if tree is not None:
            try:
                base = await tree.open_directory(path)
            except NotFound:
                base = None  # the prefix is there because something is mounted below it
        return MergedDirectory(children, base)

    async def read_directory(self, ino: Ino, position: int) -> list[Child]:
        """Return entries after `position`; opens the stream again where an earlier worker had it."""
        if ino not in self.directories:
            self._keep_directory(ino, BufferedDirectory(await self._open_directory(self.inodes.path(ino))))
        return await self.directories[ino].read(position)

    def remember_children(self, parent: Ino, children: Iterable[Child]) -> Iterator[tuple[Child, Attributes]]:
        """Yield listed entries, counting one reference of the kernel to each that is taken. Inside `inodes.batch()`."""
        for child in children:
            inode = self.inodes.remember(row_of(parent, child.name, child.node), lookups=1)
            yield child, Attributes(inode.ino, child.node, child.node.ttl_s)

    def _close_directory(self, ino: Ino) -> None:
        directory = self.directories.pop(ino, None)
        if directory is not None:
            directory.close()

    def release_directory(self, ino: Ino) -> None:
        """The kernel closed a stream."""
        self._close_directory(ino)

    # Files

    async def open(self, ino: Ino, flags: int) -> Opened:
        """Open a file; the handle is `ino`."""
        inode = self.inodes.get(ino)
        if inode.row.kind is Kind.DIRECTORY:
            raise IsADirectory(self.inodes.path(ino))
        write = (flags & os.O_ACCMODE) != os.O_RDONLY
        path = self.inodes.path(ino)
        tree = self._tree_of(ino, path)
        await self._check_pin(ino, path, tree)
        if write:
            if not is_writable(tree):
                raise ReadOnly(path, "lies on a mount that is not writable, or is pinned to a snapshot")
            row = inode.row
            await tree.before_write(path, row.identity, row.version, truncate=bool(flags & os.O_TRUNC))
        file = await self.files.open(ino, self._opener(ino, write=write), writable=self._changes(tree, ino))
        source = From.PASSTHROUGH if file.backing or file.source is None else file.source.served_from
        return Opened(file.backing, keep_cache=not file.writable, flush=write, source=source)

    async def _check_pin(self, ino: Ino, path: LakePath, tree: Tree | None) -> None:
        """Raise `Stale` where the name was pinned, or set free, since the kernel looked it up: it looks again then."""
        now = self._tree(path)
        if now is not tree:
            raise Stale(path, "was pinned to a snapshot, or set free")
        if isinstance(now, PinnedTree) and (await now.lookup(path)).identity != self.inodes.get(ino).row.identity:
            raise Stale(path, "is pinned to another snapshot")

    def _changes(self, tree: Tree | None, ino: Ino) -> bool:
        """Return whether the file can change under its inode."""
        return tree is not None and not tree.is_fixed(self.inodes.get(ino).row.identity) and tree.writable

    def _opener(self, ino: Ino, *, write: bool) -> Opener:
        async def opened() -> Source:
            inode, path = self.inodes.get(ino), self.inodes.path(ino)
            tree = self._tree_of(ino, path)
            if tree is None:
                raise NotFound(path)
            return await tree.open(path, inode.row.identity, inode.row.version, write=write)

        return opened

    async def _source(self, ino: Ino, *, write: bool = False) -> Source:
        tree = self._tree_of(ino, self.inodes.path(ino))
        return await self.files.source(ino, self._opener(ino, write=write), writable=self._changes(tree, ino))

    async def read(self, ino: Ino, offset: int, length: int) -> Buffer:
        """Return bytes of an open file; see `Source.read` for the buffer's life."""
        file = self.files.get(ino)
        source = (file.source if file is not None else None) or await self._source(ino)
        push = functools.partial(self.push, ino) if self.push is not None else None
        try:
            found = await source.read(offset, length, push)
        except Stale as exc:
            path = self.inodes.path(ino)
            tree = self._tree_of(ino, path)
            if isinstance(tree, PinnedTree):
                raise tree.gone(path) from exc
            raise
        served_from(source.served_from)
        return found

    async def write(self, ino: Ino, offset: int, content: Buffer) -> int:
        """Write to an open file."""
        source = await self._source(ino, write=True)
        count = await source.write(offset, content)
        served_from(source.served_from)
        return count

    async def sync(self, ino: Ino) -> None:
        """Return when what was written to an open file is on the disk."""
        await (await self._source(ino)).sync()

    def described(self, ino: Ino) -> tuple[LakePath, Version]:
        """Return path and version of an inode, for a record of what was read."""
        return self.inodes.path(ino), self.inodes.get(ino).row.version

    async def flush(self, ino: Ino) -> None:
        """A descriptor that can write is being closed: return when what was written is as durable as close promises."""
        inode, tree = self.inodes.get(ino), self._tree_of(ino, self.inodes.path(ino))
        if is_writable(tree) and tree.close_waits(self.inodes.path(ino), inode.row.identity):
            await self.sync(ino)

    def release(self, ino: Ino) -> None:
        """The kernel closed a handle."""
        self.files.release(ino)
        inode, tree = self.inodes.get(ino), self._tree_of(ino, self.inodes.path(ino))
        if is_writable(tree):
            tree.released(inode.row.identity, last=not inode.opens and not inode.inherited)

    def close(self) -> None:
        """Close everything that is open."""
        self.files.close_all()
        for directory in self.directories.values():
            directory.close()
        self.directories.clear()

    # Changes

    def _writable_path(self, parent: Ino, name: bytes) -> tuple[WritableTree, LakePath]:
        path = self.inodes.path(parent, name)
        tree = self._tree(path)
        if not is_writable(tree):
            raise ReadOnly(path, "lies on a mount that is not writable")
        if self.mounts.leads_to_mounts(path):
            raise Denied(path, "is part of the mount table")
        return tree, path

    async def _may_do(self, tree: WritableTree, path: LakePath, new_path: LakePath | None = None) -> bool:
        """Return whether to carry out a change that can't be repeated; False: it was, for this very request."""
        if not isinstance(tree, LocalTree):
            return True  # its journal knows
        if self.intents.was_done():
            return False
        await self.intents.declare(tree, path, new_path)
        return True

    async def make_node(self, parent: Ino, name: bytes, mode: int, owner: tuple[int, int]) -> Attributes:
        """Create a regular file (others: `Unsupported`)."""
        tree, path = self._writable_path(parent, name)
        if not stat.S_ISREG(mode):
            raise Unsupported(path, "only regular files can be made")
        if await self._may_do(tree, path):
            await tree.make_file(path, mode, owner)
        return await self.lookup(parent, name)

    async def make_directory(self, parent: Ino, name: bytes, mode: int, owner: tuple[int, int]) -> Attributes:
        """Create a directory."""
        tree, path = self._writable_path(parent, name)
        if await self._may_do(tree, path):
            await tree.make_directory(path, mode, owner)
        return await self.lookup(parent, name)

    async def make_symlink(self, parent: Ino, name: bytes, target: bytes, owner: tuple[int, int]) -> Attributes:
        """Create a symlink."""
        tree, path = self._writable_path(parent, name)
        if await self._may_do(tree, path):
            await tree.make_symlink(path, target, owner)
        return await self.lookup(parent, name)

    async def make_link(self, ino: Ino, parent: Ino, name: bytes) -> Attributes:
        """Create a hard link."""
        tree, path = self._writable_path(parent, name)
        source = self.inodes.path(ino)
        if self._tree(source) is not tree:
            raise CrossesMounts(path, "a link can't cross mounts")
        if await self._may_do(tree, path):
            await tree.make_link(source, path)
        return await self.lookup(parent, name)

    async def remove(self, parent: Ino, name: bytes, *, directory: bool) -> None:
        """Unlink a file or remove an empty directory."""
        tree, path = self._writable_path(parent, name)
        if await self._may_do(tree, path):
            await tree.remove(path, directory=directory, is_open=self._is_open(parent, name))
        self._let_go(parent, name)
        self.inodes.unlink(parent, name)

    def _is_open(self, parent: Ino, name: bytes) -> bool:
        """Return whether handles on a file may be left."""
        inode = self.inodes.child(parent, name)
        return inode is not None and (inode.opens > 0 or inode.inherited)

    def _let_go(self, parent: Ino, name: bytes) -> None:
        """Free the space of a file that loses its name, unless a handle has it open."""
        inode = self.inodes.child(parent, name)
        if inode is not None:
            self.files.close_if_idle(inode.ino)

    async def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int) -> None:
        """Rename within one mount."""
        tree, path = self._writable_path(parent, name)
        new_tree, new_path = self._writable_path(new_parent, new_name)
        if new_tree is not tree:
            raise CrossesMounts(path, "a rename can't cross mounts")
        if await self._may_do(tree, path, new_path):
            await tree.rename(path, new_path, flags, is_open=self._is_open(new_parent, new_name))
        if flags & _RENAME_EXCHANGE:
            if not (is_resent() and await self._matches(parent, name)):
                self.inodes.exchange(parent, name, new_parent, new_name)
            return
        self._let_go(new_parent, new_name)
        self.inodes.rename(parent, name, new_parent, new_name)

    async def _matches(self, parent: Ino, name: bytes) -> bool:
        """Return whether the inode of a name is that of what has the name."""
        inode = self.inodes.child(parent, name)
        node, _ = await self._lookup(self.inodes.path(parent, name))
        return inode is not None and inode.row.identity == node.identity

    async def change(self, ino: Ino, changes: Changes) -> Attributes:
        """Change size, mode, owner or times."""
        tree, path = self._own_path(ino)
        file = self.files.get(ino)
        fd = file.source.backing_fd if file is not None and file.source is not None else None
        await tree.change(path, self.inodes.get(ino).row.identity, fd, changes)
        return await self.attributes(ino)

    def _own_path(self, ino: Ino) -> tuple[WritableTree, LakePath]:
        path = self.inodes.path(ino)
        tree = self._tree(path)
        if self.mounts.leads_to_mounts(path) and (tree is None or isinstance(tree, LocalTree)):
            raise Denied(path or "/", "is part of the mount table")
        if not is_writable(tree):
            raise ReadOnly(path, "lies on a mount that is not writable")
        return tree, path

    async def sync_directory(self, ino: Ino) -> None:
        """Return when the names in a directory are on the disk."""
        path = self.inodes.path(ino)
        tree = self._tree(path)
        if is_writable(tree):
            await tree.sync_directory(path)

    # Extended attributes: those of users, where something can be written

    async def get_xattr(self, ino: Ino, name: bytes) -> bytes | None:
        """Return an extended attribute, None where there is none of this name."""
        path, identity = self.inodes.path(ino), self.inodes.get(ino).row.identity
        tree = self._tree(path)
        if not is_writable(tree) or not name.startswith(_USER_XATTR):
            return None
        return await tree.get_xattr(path, identity, os.fsdecode(name))

    async def list_xattrs(self, ino: Ino) -> list[bytes]:
        """Return the names of the extended attributes."""
        path, identity = self.inodes.path(ino), self.inodes.get(ino).row.identity
        tree = self._tree(path)
        return [os.fsencode(name) for name in await tree.list_xattrs(path, identity)] if is_writable(tree) else []

    async def set_xattr(self, ino: Ino, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute; None removes it."""
        tree, path = self._own_path(ino)
        if not name.startswith(_USER_XATTR):
            raise Unsupported(path, "only extended attributes of users are kept")
        await tree.set_xattr(path, self.inodes.get(ino).row.identity, os.fsdecode(name), value)

    @property
    def has_xattrs(self) -> bool:
        """Whether any tree keeps extended attributes: where none does, the kernel need not ask."""
        return any(tree.writable for tree in self.trees.values())

    def statfs(self, ino: Ino) -> os.statvfs_result | None:
        """Return the figures of the disk below, None where there is none."""
        path = self.inodes.path(ino)
        tree = self._tree(path)
        return tree.statfs(path) if isinstance(tree, LocalTree) else None


def row_of(parent: Ino, name: bytes, node: Node, *, file: str = "") -> Row:
    """Return what the inode table keeps of an object under a name.

    Args:
        file: as of `Row`.
    """
    kept = node.kind, node.identity, node.version, node.mode, node.uid, node.gid, node.nlink, node.target
    return Row(parent, name, *kept, file=file)


def node_of(row: Row) -> Node:
    """Return an object as the inode table keeps it."""
    return Node(row.kind, row.identity, row.version, row.mode, row.uid, row.gid, row.nlink, row.target)
