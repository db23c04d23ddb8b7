"""The file system: inodes over the mount table's trees.

A handle is its inode's number: nothing about it can be lost when the worker is killed. All handles on an inode share one
`Source`, and with it one version.

Concurrency: one trio loop. Between awaits the tables are ours; after one, inodes are fetched again.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vfs.errors import CrossesMounts, Denied, IsADirectory, NotADirectory, NotFound, ReadOnly, Stale, Unsupported
from vfs.filesystem.buffered import BufferedDirectory
from vfs.filesystem.local import LocalTree
from vfs.filesystem.merged import MergedDirectory
from vfs.filesystem.openfiles import Opener, OpenFiles
from vfs.filesystem.tree import DIRECTORY_MODE, Buffer, Child, Directory, Node, Source, Tree
from vfs.model import Ino, Kind, LakePath, Version
from vfs.namespace.inodes import ROOT, InodeTable, Row
from vfs.namespace.mounts import MountTable

log = logging.getLogger(__name__)
_RENAME_EXCHANGE = 2
"""Of renameat2."""
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
    """

    backing: int
    keep_cache: bool
    flush: bool


@dataclass(slots=True)
class FileSystem:
    """All operations, by inode number.

    Attributes:
        open_max: directory streams that may be open.
        directories: open directory streams by inode, the one that was opened longest ago first.
    """

    mounts: MountTable
    trees: Mapping[LakePath, Tree]
    inodes: InodeTable
    files: OpenFiles
    owner: tuple[int, int]
    started_ns: int
    open_max: int = 1000
    directories: dict[Ino, Directory] = field(default_factory=dict)

    # Names and attributes

    async def lookup(self, parent: Ino, name: bytes) -> Attributes:
        """Find a name and count one reference of the kernel to what it is."""
        path = self.inodes.path(parent, name)
        node, ttl_s = await self._lookup(path)
        inode = self.inodes.remember(_row(parent, name, node), lookups=1)
        return Attributes(inode.ino, node, ttl_s)

    async def attributes(self, ino: Ino) -> Attributes:
        """Return the attributes of an inode; of a version that has moved on, what they were."""
        if ino == ROOT:
            return Attributes(ROOT, *await self._mount_node(LakePath("")))
        inode = self.inodes.get(ino)
        path = self.inodes.path(ino)
        tree = self._tree(path)
        if inode.row.kind is not Kind.DIRECTORY and not isinstance(tree, LocalTree):
            return Attributes(ino, _node_of(inode.row), _TABLE_TTL_S)  # an inode is a version: it can't change
        try:
            node, ttl_s = await self._lookup(path)
        except NotFound:
            node = None
        if node is None or node.identity != inode.row.identity:
            return Attributes(ino, self._nameless_node(ino) or _node_of(inode.row), 0.0)
        return Attributes(ino, node, ttl_s)

    def _nameless_node(self, ino: Ino) -> Node | None:
        """Return the attributes of an open local file that has lost its name; None: it is not open here."""
        file, tree = self.files.get(ino), self._tree(self.inodes.path(ino))
        if file is None or file.source is None or file.source.backing_fd is None or not isinstance(tree, LocalTree):
            return None
        return tree.node_of_open(file.source.backing_fd)

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
        if isinstance(tree, LocalTree) and path not in {point.prefix for point in self.mounts.points if not point.local_root}:
            try:
                node = await tree.lookup(path)
                return node, node.ttl_s
            except NotFound:
                pass
        return self._table_node(), _TABLE_TTL_S

    def _table_node(self) -> Node:
        return Node(
            Kind.DIRECTORY, "table", Version(0, self.started_ns), DIRECTORY_MODE, *self.owner, nlink=2, ttl_s=_TABLE_TTL_S
        )

    def _tree(self, path: LakePath) -> Tree | None:
        point = self.mounts.find(path)
        return None if point is None else self.trees[point.prefix]

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
            inode = self.inodes.remember(_row(parent, child.name, child.node), lookups=1)
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
        tree = self._tree(path)
        if write and (tree is None or not tree.writable):
            raise ReadOnly(path, "lies on a mount that is not writable")
        file = await self.files.open(ino, self._opener(ino, write=write), writable=tree is not None and tree.writable)
        return Opened(file.backing, keep_cache=not file.writable, flush=write)

    def _opener(self, ino: Ino, *, write: bool) -> Opener:
        async def opened() -> Source:
            inode, path = self.inodes.get(ino), self.inodes.path(ino)
            tree = self._tree(path)
            if tree is None:
                raise NotFound(path)
            return await tree.open(path, inode.row.identity, inode.row.version, write=write)

        return opened

    async def _source(self, ino: Ino, *, write: bool = False) -> Source:
        tree = self._tree(self.inodes.path(ino))
        return await self.files.source(ino, self._opener(ino, write=write), writable=tree is not None and tree.writable)

    async def read(self, ino: Ino, offset: int, length: int) -> Buffer:
        """Return bytes of an open file; see `Source.read` for the buffer's life."""
        file = self.files.get(ino)
        source = file.source if file is not None else None
        return await (source or await self._source(ino)).read(offset, length)

    async def write(self, ino: Ino, offset: int, content: Buffer) -> int:
        """Write to an open file."""
        return await (await self._source(ino, write=True)).write(offset, content)

    async def sync(self, ino: Ino) -> None:
        """Return when what was written to an open file is on the disk."""
        await (await self._source(ino)).sync()

    def described(self, ino: Ino) -> tuple[LakePath, Version]:
        """Return path and version of an inode, for a record of what was read."""
        return self.inodes.path(ino), self.inodes.get(ino).row.version

    def release(self, ino: Ino) -> None:
        """The kernel closed a handle."""
        self.files.release(ino)

    def close(self) -> None:
        """Close everything that is open."""
        self.files.close_all()
        for directory in self.directories.values():
            directory.close()
        self.directories.clear()

    # Changes: local sites that are mounted writable

    def _writable_path(self, parent: Ino, name: bytes) -> tuple[LocalTree, LakePath]:
        path = self.inodes.path(parent, name)
        tree = self._tree(path)
        if not isinstance(tree, LocalTree) or not tree.writable:
            raise ReadOnly(path, "lies on a mount that is not writable")
        if self.mounts.leads_to_mounts(path):
            raise Denied(path, "is part of the mount table")
        return tree, path

    async def make_node(self, parent: Ino, name: bytes, mode: int, owner: tuple[int, int]) -> Attributes:
        """Create a regular file (others: `Unsupported`)."""
        tree, path = self._writable_path(parent, name)
        if not stat.S_ISREG(mode):
            raise Unsupported(path, "only regular files can be made")
        tree.make_file(path, mode, owner)
        return await self.lookup(parent, name)

    async def make_directory(self, parent: Ino, name: bytes, mode: int, owner: tuple[int, int]) -> Attributes:
        """Create a directory."""
        tree, path = self._writable_path(parent, name)
        tree.make_directory(path, mode, owner)
        return await self.lookup(parent, name)

    async def make_symlink(self, parent: Ino, name: bytes, target: bytes, owner: tuple[int, int]) -> Attributes:
        """Create a symlink."""
        tree, path = self._writable_path(parent, name)
        tree.make_symlink(path, target, owner)
        return await self.lookup(parent, name)

    async def make_link(self, ino: Ino, parent: Ino, name: bytes) -> Attributes:
        """Create a hard link."""
        tree, path = self._writable_path(parent, name)
        source = self.inodes.path(ino)
        if self._tree(source) is not tree:
            raise CrossesMounts(path, "a link can't cross mounts")
        tree.make_link(source, path)
        return await self.lookup(parent, name)

    async def remove(self, parent: Ino, name: bytes, *, directory: bool) -> None:
        """Unlink a file or remove an empty directory."""
        tree, path = self._writable_path(parent, name)
        tree.remove(path, directory=directory)
        self._let_go(parent, name)
        self.inodes.unlink(parent, name)

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
        tree.rename(path, new_path, flags)
        if flags & _RENAME_EXCHANGE:
            self.inodes.exchange(parent, name, new_parent, new_name)
            return
        self._let_go(new_parent, new_name)
        self.inodes.rename(parent, name, new_parent, new_name)

    async def change(self, ino: Ino, **changes: int | None) -> Attributes:
        """Change size, mode, owner or times; see `LocalTree.change` for the names."""
        tree, path = self._writable_path(*self._parent_and_name(ino))
        file = self.files.get(ino)
        fd = file.source.backing_fd if file is not None and file.source is not None else None
        if fd is None and tree.node(tree.host_path(path), path).identity != self.inodes.get(ino).row.identity:
            raise Stale(path, "was replaced")  # the name is another file's by now
        tree.change(path, fd, **changes)
        return await self.attributes(ino)

    def _parent_and_name(self, ino: Ino) -> tuple[Ino, bytes]:
        if ino == ROOT:
            raise Denied("/", "is part of the mount table")
        row = self.inodes.get(ino).row
        return Ino(row.parent), row.name

    async def sync_directory(self, ino: Ino) -> None:
        """Return when the names in a directory are on the disk."""
        path = self.inodes.path(ino)
        tree = self._tree(path)
        if isinstance(tree, LocalTree):
            tree.sync_directory(path)

    def statfs(self, ino: Ino) -> os.statvfs_result | None:
        """Return the figures of the disk below, None where there is none."""
        path = self.inodes.path(ino)
        tree = self._tree(path)
        return tree.statfs(path) if isinstance(tree, LocalTree) else None


def _row(parent: Ino, name: bytes, node: Node) -> Row:
    return Row(parent, name, node.kind, node.identity, node.version, node.mode, node.uid, node.gid, node.nlink, node.target)


def _node_of(row: Row) -> Node:
    return Node(row.kind, row.identity, row.version, row.mode, row.uid, row.gid, row.nlink, row.target)
