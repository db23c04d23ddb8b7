"""`.jobs` in inodes: names and their form from the agent, bytes from complete local files.

An inode is one content: (path, form, key). Another form of the same sample is another inode under the same name, so what a
reader has begun with is what it ends with. Handles have no state: a new worker goes on where another was killed.

Memory: an inode's row is in LMDB (`InodeTable`); of the agent's nodes `_NODES_MAX` are kept, 0.5 to 1 KB each, and of
descriptors `descriptors_max`. What is not kept is asked for again; where a content lies is in the row, so that what the
kernel knows can be read without an agent.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vfs.errors import Corrupt, NotADirectory, NotFound, Stale
from vfs.filesystem.agent import SamplesClient
from vfs.filesystem.buffered import BufferedDirectory
from vfs.filesystem.filesystem import Attributes, node_of, row_of
from vfs.filesystem.merged import MergedDirectory
from vfs.filesystem.scratch import read_at
from vfs.filesystem.tree import DIRECTORY_MODE, FILE_MODE, Buffer, Child
from vfs.filesystem.tree import Node as Found
from vfs.model import Ino, Kind, Version, can_posix_carry
from vfs.namespace.inodes import ROOT, InodeTable
from vfs.oserrors import Translated
from vfs.samples import tree, wire
from vfs.samples.model import Form
from vfs.samples.placed import Placements
from vfs.usage import Source as From
from vfs.usage import served_from

FORM, PROVENANCE = b"user.foremount.form", b"user.foremount.provenance"
FIXED_TTL_S = 3600.0
"""Of what does not change until the agent drops it, and is then taken from the kernel."""
DIRECTORY_TTL_S = 30.0
"""Of directories: once in so long a walk asks for each of them."""
_NODES_MAX = 50_000
_PRIMING = 1 << 62
"""In a directory's handle, which else is its inode's number: shows what is placed alone."""


@dataclass(slots=True)
class _Listing:
    """An open directory stream with what the agent said of its entries."""

    stream: BufferedDirectory
    nodes: dict[bytes, wire.Node]


class SampleFiles:
    """The tree of `.jobs` by inode number. Read-only.

    Args:
        owner: (uid, gid) that everything belongs to.
        descriptors_max: files kept open for reads that the page cache does not answer.

    Attributes:
        placed: changed by whoever listens to the agent.
        entered: called with each placed directory that a reader comes to for the first time.
    """

    def __init__(
        self, inodes: InodeTable, agent: SamplesClient, owner: tuple[int, int], started_ns: int, *, descriptors_max: int
    ) -> None:
        self.inodes = inodes
        self.placed = Placements()
        self._agent = agent
        self._owner = owner
        self._started_ns = started_ns
        self._descriptors_max = descriptors_max
        self._descriptors: OrderedDict[Ino, int] = OrderedDict()
        self._nodes: OrderedDict[Ino, wire.Node] = OrderedDict()
        self._listings: OrderedDict[int, _Listing] = OrderedDict()

    # Names and attributes

    async def lookup(self, parent: Ino, name: bytes, *, is_reader: bool = True) -> Attributes:
        """Decide what a name stands for from now on, and count one reference of the kernel to it.

        Args:
            is_reader: not our own process that fills the kernel's tables with what is placed: of that the agent is not asked,
                which takes a question for progress.
        """
        path = self.inodes.path(parent, name)
        node = self.placed.find(path)
        if node is None and (not is_reader or self.placed.has(path)):  # its first reader need not wait for the agent
            node = self.placed.leading(path)
        if node is None and is_reader:
            node = await self._look(path)
        if node is None:
            raise NotFound(path)
        if is_reader:
            self._enter(path)
        inode = self.inodes.remember(row_of(parent, name, found := self._found(node), file=node.file), lookups=1)
        self._keep(inode.ino, node)
        return Attributes(inode.ino, found, found.ttl_s)

    async def attributes(self, ino: Ino) -> Attributes:
        """Return the attributes of an inode, which never change."""
        if ino == ROOT:
            return Attributes(ROOT, self._directory(self._started_ns), FIXED_TTL_S)
        return Attributes(ino, node_of(self.inodes.get(ino).row), FIXED_TTL_S)

    def forget(self, counts: list[tuple[Ino, int]]) -> None:
        """Take references of the kernel back."""
        with self.inodes.batch():
            for ino, lookups in counts:
                if self.inodes.forget(ino, lookups) is not None:
                    self._nodes.pop(ino, None)
                    self._close(ino)

    async def _look(self, path: str) -> wire.Node | None:
        if not all(can_posix_carry(part) for part in path.split("/")):
            return None  # no UTF-8: it could not travel
        return (await self._agent.call(wire.Look(path), wire.Seen, path)).node

    def _enter(self, path: str) -> None:
        if self.placed.enter(path):
            self._agent.tell_nowait(wire.Entered(path))

    def _found(self, node: wire.Node) -> Found:
        if node.kind is Kind.DIRECTORY:
            return self._directory(node.mtime_ns, self._directory_ttl_s(node.path))
        identity = f"{node.form}:{node.key}"
        return Found(
            Kind.FILE, identity, Version(node.size, node.mtime_ns), FILE_MODE, *self._owner, ttl_s=self._ttl_s(node)
        )  # fmt: skip

    def _directory(self, mtime_ns: int, ttl_s: float = DIRECTORY_TTL_S) -> Found:
        return Found(Kind.DIRECTORY, "", Version(0, mtime_ns), DIRECTORY_MODE, *self._owner, nlink=2, ttl_s=ttl_s)

    def _directory_ttl_s(self, path: str) -> float:
        if not self.placed.has(path):
            return DIRECTORY_TTL_S
        return 0.0 if self.placed.is_waiting(path) else FIXED_TTL_S

    def _ttl_s(self, node: wire.Node) -> float:
        """Return how long a name may stand for this form: raw bytes only while nothing better can come."""
        if node.form is Form.TRANSFORMED or self.placed.find(node.path) == node:
            return FIXED_TTL_S
        place = tree.parse(node.path)
        return FIXED_TTL_S if place is not None and getattr(place, "raw", False) else 0.0

    def _keep(self, ino: Ino, node: wire.Node) -> None:
        self._nodes[ino] = node
        self._nodes.move_to_end(ino)
        while len(self._nodes) > _NODES_MAX:
            self._nodes.popitem(last=False)

    # Directories

    async def open_directory(self, ino: Ino, *, is_reader: bool = True) -> int:
        """Open a directory stream and return its handle: decides the form of each of its samples.

        Args:
            is_reader: as of `lookup`; to others it shows what is placed alone.
        """
        path = self.inodes.path(ino)
        if ino != ROOT and self.inodes.get(ino).row.kind is not Kind.DIRECTORY:
            raise NotADirectory(path)
        handle = ino if is_reader else ino | _PRIMING
        nodes = await self._children(path) if is_reader else self.placed.inside(path)
        named = {os.fsencode(node.path.rpartition("/")[2]): node for node in nodes}
        stream = MergedDirectory({name: self._found(node) for name, node in named.items()}, None)
        self._listings[handle] = _Listing(BufferedDirectory(stream), named)
        while len(self._listings) > self._descriptors_max:
            self._listings.popitem(last=False)  # a position is enough to go on from
        return handle

    async def _children(self, path: str) -> list[wire.Node]:
        nodes = (await self._agent.call(wire.Children(path), wire.Nodes, path)).nodes
        if nodes is None:
            raise NotFound(path)
        self._enter(path)
        return self.placed.merged(path, nodes)

    async def read_directory(self, handle: int, position: int) -> list[Child]:
        """Return entries after `position`; opens the stream again where an earlier worker had it."""
        if handle not in self._listings:
            await self.open_directory(Ino(handle & ~_PRIMING), is_reader=not handle & _PRIMING)
        return await self._listings[handle].stream.read(position)

    def remember_children(self, handle: int, children: Iterable[Child]) -> Iterator[tuple[Child, Attributes]]:
        """Yield listed entries, counting one reference of the kernel to each that is taken. Inside `inodes.batch()`."""
        nodes, parent = self._listings[handle].nodes, Ino(handle & ~_PRIMING)
        for child in children:
            node = nodes[child.name]
            inode = self.inodes.remember(row_of(parent, child.name, child.node, file=node.file), lookups=1)
            if node.kind is Kind.FILE:
                self._keep(inode.ino, node)
            yield child, Attributes(inode.ino, child.node, child.node.ttl_s)

    def release_directory(self, handle: int) -> None:
        """The kernel closed a stream."""
        self._listings.pop(handle, None)

    # Files

    async def read(self, ino: Ino, offset: int, length: int) -> Buffer:
        """Return bytes of a sample; the buffer is valid until the caller's next await."""
        fd = self._descriptors.get(ino)
        if fd is None:
            fd = await self._open(ino)
        else:
            self._descriptors.move_to_end(ino)
        served_from(From.LOCAL)
        return read_at(fd, offset, length, self.inodes.path(ino))

    async def _open(self, ino: Ino) -> int:
        """Return a descriptor of the complete file, which the agent brings where it is not here."""
        row, path = self.inodes.get(ino).row, self.inodes.path(ino)
        fd = _open_if_there(row.file) if row.file else None
        if fd is None:
            key = row.identity.partition(":")[2]
            file = (await self._agent.call(wire.Content(path, key), wire.At, path)).file
            with Translated(path):
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        # Atomic from here: no await until the caller has read.
        if os.fstat(fd).st_size != row.version.size:
            os.close(fd)
            raise Corrupt(path, f"its file has not the {row.version.size} bytes that were promised")
        self._close(ino)  # others may have been as fast
        self._descriptors[ino] = fd
        while len(self._descriptors) > self._descriptors_max:
            os.close(self._descriptors.popitem(last=False)[1])
        return fd

    def _close(self, ino: Ino) -> None:
        fd = self._descriptors.pop(ino, None)
        if fd is not None:
            os.close(fd)

    async def get_xattr(self, ino: Ino, name: bytes) -> bytes | None:
        """Return an extended attribute, None where there is none of this name."""
        if name not in self.list_xattrs(ino):
            return None
        form, _, key = self.inodes.get(ino).row.identity.partition(":")
        if name == FORM:
            return form.encode()
        node = self._nodes.get(ino) or await self._look(self.inodes.path(ino))
        if node is None or node.key != key:
            raise Stale(self.inodes.path(ino), "the agent does not know this content any more")
        return node.provenance.encode()

    def list_xattrs(self, ino: Ino) -> list[bytes]:
        """Return the names of the extended attributes: only files have any."""
        is_file = ino != ROOT and self.inodes.get(ino).row.kind is Kind.FILE
        return [FORM, PROVENANCE] if is_file else []

    # For the kernel's tables

    def known(self, path: str) -> tuple[Ino, bytes] | None:
        """Return (parent, name) of a path if the kernel has been told of it."""
        at, parent, name = ROOT, ROOT, b""
        for part in path.split("/"):
            name, parent = os.fsencode(part), at
            inode = self.inodes.child(parent, name)
            if inode is None:
                return None
            at = inode.ino
        return parent, name

    def known_inodes(self, nodes: Iterable[wire.Node]) -> list[tuple[Ino, wire.Node]]:
        """Return those samples that the kernel knows in just this form, with their inodes."""
        found = []
        for node in nodes:
            name = self.known(node.path)
            inode = None if name is None else self.inodes.child(*name)
            if inode is not None and inode.row.identity == f"{node.form}:{node.key}":
                found.append((inode.ino, node))
        return found

    def close(self) -> None:
        """Close everything that is open."""
        for ino in list(self._descriptors):
            self._close(ino)


def _open_if_there(file: str) -> int | None:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
