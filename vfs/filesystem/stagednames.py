"""Which names a writable remote tree has: the staged nodes' first, and what they do not say, the origin says.

In a directory that was made here and is not at the origin there is nothing to ask: saving into it costs no round trip.
"""

from __future__ import annotations

import logging
import stat
from dataclasses import dataclass

import trio

from vfs.errors import DeadlineExceeded, NotADirectory, NotFound, Unavailable
from vfs.filesystem.remote import RemoteTree
from vfs.filesystem.stagedfiles import StagedDirectory
from vfs.filesystem.staging import StagingArea
from vfs.filesystem.tree import Directory, Node
from vfs.model import Kind, LakePath, Version, can_posix_carry, split
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import NOWHERE, Change, Drop, Staged, StagedKind

log = logging.getLogger(__name__)
TTL_S = 1.0
PREFIX = "staged:"
"""Of the identities of staged files and symlinks; directories have one identity, staged or not."""
_PRESENT_S = 2.0
"""How long a writer waits to learn whether the origin has a directory that was made here. It goes on without an answer."""
_AWAY_S = 10.0
_TYPE_BITS = {StagedKind.FILE: stat.S_IFREG, StagedKind.DIRECTORY: stat.S_IFDIR, StagedKind.SYMLINK: stat.S_IFLNK}


@dataclass(frozen=True, slots=True)
class Place:
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


class StagedNames:
    """The names below one writable mount point."""

    def __init__(self, point: MountPoint, remote: RemoteTree, area: StagingArea, *, owner: tuple[int, int]) -> None:
        self._point = point
        self._remote = remote
        self._area = area
        self._owner = owner
        self._away_until_s = 0.0
        if area.nodes.child(NOWHERE, point.prefix) is None:
            area.commit([self._through(area.next_id(), NOWHERE, point.prefix)])

    def _through(self, node_id: int, parent: int, name: str) -> Staged:
        return Staged(
            id=node_id, parent=parent, name=name, kind=StagedKind.DIRECTORY, through=True, mtime_ns=self._area.now_ns(),
            uid=self._owner[0], gid=self._owner[1],
        )  # fmt: skip

    def is_fixed(self, identity: str) -> bool:
        """Return whether it is the identity of what the origin has."""
        return not identity.startswith(PREFIX)

    def walk(self, path: LakePath) -> Place:
        """Return what the nodes say of a path."""
        nodes, node = self._area.nodes, self._area.nodes.child(NOWHERE, self._point.prefix)
        assert node is not None, "made with the tree"
        below = self._point.below(path)
        names = below.split("/") if below else []
        place = Place(node, node)
        for depth, name in enumerate(names, 1):
            child = nodes.child(node.id, name)
            place = Place(child, node)
            if child is None or depth == len(names):
                break
            if child.kind is not StagedKind.DIRECTORY:
                return Place(None, node, gone=True)
            node = child
        return place

    async def lookup(self, path: LakePath) -> Node:
        """Return what has a name: `Tree.lookup`."""
        if not can_posix_carry(split(path)[1]) and path:
            raise NotFound(path, "no origin can hold a name that is not UTF-8")
        place = self.walk(path)
        if place.is_absent:
            raise NotFound(path)
        node = place.node
        if node is None:
            return await self.ask_origin(path, place)
        if node.kind is StagedKind.FILE and node.settled and not self._area.is_open(node.id):
            return await self._settled(path, node)
        return self.attributes(node)

    async def _settled(self, path: LakePath, node: Staged) -> Node:
        """Return what is there: the node still, unless the origin has moved on to another version."""
        if node.at is None or not self._area.is_in_place(node) or not self._area.shows_origin(node):
            return self.attributes(node)
        try:
            found: Node | None = await self._remote.lookup(path)
        except NotFound:
            found = None
        except (Unavailable, DeadlineExceeded):
            return self.attributes(node)
        now = self._area.nodes.get(node.id)
        if now is None or now.seq != node.seq or now.parent != node.parent or now.name != node.name:
            return await self.lookup(path)  # changed while the origin was asked
        if found is not None and found.version in (node.at.version, self._area.version_at_origin(now)):
            return self.attributes(now)
        log.info("%s: its origin has another version by now", path)
        self._area.commit([Drop(node.id, retired=True)])
        if found is None:
            raise NotFound(path)
        return found

    async def ask_origin(self, path: LakePath, place: Place) -> Node:
        """Return what the origin has at a path that no node speaks of."""
        if not place.above.through and not await self._is_at_origin(place.above):
            raise NotFound(path)
        return await self._remote.lookup(path)

    async def _is_at_origin(self, directory: Staged) -> bool:
        """Return whether the origin has a directory that was made here. Lists it: its names are then known.

        Before it has been made there, what the origin has under its name belongs to what had the name before.
        """
        path, now_s = self._area.nodes.path(directory), trio.current_time()
        if path is None or now_s < self._away_until_s or not self._area.is_in_place(directory):
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

    def attributes(self, node: Staged) -> Node:
        """Return a node's attributes; size and times of a file are those of its content here."""
        found = self._area.stat(node) if node.kind is StagedKind.FILE else None
        version = Version(node.size, node.mtime_ns) if found is None else Version(found.st_size, found.st_mtime_ns)
        mode = 0o755 if node.through and not node.mode else node.mode
        return Node(
            Kind(node.kind.value),
            "directory" if node.kind is StagedKind.DIRECTORY else f"{PREFIX}{node.id}",
            version,
            _TYPE_BITS[node.kind] | stat.S_IMODE(mode),
            node.uid,
            node.gid,
            target=node.target,
            blocks=None if found is None else found.st_blocks,
            ttl_s=TTL_S,
        )

    def by_identity(self, identity: str) -> Staged | None:
        """Return the node of a staged file or symlink, None where it is gone or the identity is none of these."""
        return None if self.is_fixed(identity) else self._area.nodes.get(int(identity[len(PREFIX) :]))

    async def open_directory(self, path: LakePath) -> Directory:
        """Open a directory: staged names and the origin's."""
        place = self.walk(path)
        if place.is_absent:
            raise NotFound(path)
        node = place.node
        if node is None:
            if not place.above.through and not await self._is_at_origin(place.above):
                raise NotFound(path)
            return await self._remote.open_directory(path)
        if node.kind is not StagedKind.DIRECTORY:
            raise NotADirectory(path)
        base = await self.base(path, node)
        children = self._area.nodes.children(node.id)
        shown = {child.name.encode(): self.attributes(child) for child in children if child.kind is not StagedKind.ABSENT}
        return StagedDirectory(shown, {child.name.encode() for child in children}, base)

    async def base(self, path: LakePath, node: Staged) -> Directory | None:
        """Return the origin's directory below a staged one, None where it has none."""
        if not node.through and not await self._is_at_origin(node):
            return None
        try:
            return await self._remote.open_directory(path)
        except (NotFound, NotADirectory):
            return None

    async def origin_node(self, path: LakePath) -> Node | None:
        """Return what the origin shows at a path, None where it is hidden or nothing."""
        place = self.walk(path)
        if place.node is not None or place.gone:
            return None
        try:
            return await self.ask_origin(path, place)
        except NotFound:
            return None

    def directory(self, path: LakePath) -> tuple[Staged, list[Change]]:
        """Return a directory's node, and the changes that make it and those above, where the origin's alone was there."""
        place = self.walk(path)
        if place.is_absent:
            raise NotFound(path)
        if place.node is not None:
            if place.node.kind is not StagedKind.DIRECTORY:
                raise NotADirectory(path)
            return place.node, []
        parent, changes = self.directory(LakePath(split(path)[0]))
        made = self._through(self._area.next_id(), parent.id, split(path)[1])
        return made, [*changes, made]

    def may_show(self, node: Staged, path: LakePath) -> bool:
        """Return whether the origin has, or is getting, something under a node's name that would show without it."""
        return node.at is not None or node.hides is not None or self._area.is_known_to_origin(node.id, path)
