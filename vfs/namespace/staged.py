"""What has been written on this host and is not, or not only, at its origin: the contract of fs worker and agent.

Pure: no I/O, no clock.

The fs worker states here what the lake is to be (the *desired* state), the agent makes the origins so and notes how far it
is (`Upload`, in its catalog: the *observed* state). Neither writes the other's; either may be killed at any moment and finds
out what to do by comparing the two. The worker's state is a log of `Frame`s (`journal.py`), each applied whole or not at all.

The life of a staged file:

1. *mknod*. The worker makes an empty file `content/NUMBER` in the staging directory and appends a `Staged` node for it:
   `writing`, no origin. Ids and content numbers are never used again; a rename of any directory above changes one node.
2. *open*. The kernel reads and writes the staging file itself (passthrough). Nobody sees these writes, and the handles
   outlive the worker. While `writing` the agent leaves the content alone.
3. *fsync*. The worker syncs the staging file, appends the node with `synced_ns` and syncs the log: durable on this host.
   Where the policy says `write_durability = "remote"` it also sets `writing` to false, under a new `seq`, and asks the agent
   to answer when that is at the origin (`wire.Settle`).
4. *last close*. No process has the staging file open for writing (the worker asks the kernel, by a lease): `writing` becomes
   false with the final size and modification time, under a new `seq`. Opened for writing again it is `writing` again.
5. *upload*. The agent uploads content that is not `writing` and whose `seq` it has not uploaded. It looks at size and
   modification time of the staging file before the first byte and after the last, and at the node's `seq` after: if either
   has changed, what it sent is no version of the file and it starts again. Then it verifies what the origin has, puts the
   new entry into the catalog (`Catalog.known`), and last writes `Upload(state=DONE, seq, at)`.
6. *settled*. The worker sees the record and appends the node with `at` and `settled_seq`: durable at the origin. The staging
   file may go when room is needed; from then on (`content` 0) the bytes come from the cache and the origin, like those of
   any object.
7. *retired*. When the origin's listing says the same as the node, and nobody has it open, the worker drops the node
   (`Drop(retired=True)`): the path is an object of its origin like the others. The agent deletes its records of ids that
   the journal does not hold.

Names that are to go from the origin are nodes too, of kind ABSENT: unlink and rename of what the origin has, or may have by
now, leave one. The agent deletes the object (or the empty directory) and writes `Upload(DONE)`; the worker drops the node.

The path of a node may change at any time (rename of it or of a directory above), and `at.path` then differs from where it
is to be: the agent moves the object (rename or server-side copy), or uploads it again if the content is still here, and
writes the new place under the same `seq`. It deletes nothing at a path that another node, by now, is to have. Until the
object has left, nothing else comes to its old place and nothing is removed there (`vfs/agent/writing/places.py`).

The agent notes what it is about to show at an origin, looks at the journal, and begins only if that still says so. The worker
states that a name is to go before it looks whether the origin may have it: so one of the two sees what the other has done.

Directories that were made here (`through` false) are made at origins that have directories. Those that only hold staged
entries in a directory of the origin's are `through`: there is nothing to do for them. Symlinks stay on this host.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from vfs.errors import Failure
from vfs.model import LakePath, SiteName, SitePath, Version, join

NOWHERE = 0
"""Parent of the mount points' own nodes, whose name is the whole prefix."""
NAMELESS = -1
"""Parent of files that were unlinked or replaced while open: not to be uploaded."""


class StagedKind(enum.StrEnum):
    """What a node is to be at its path."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    ABSENT = "absent"


class At(msgspec.Struct, frozen=True, array_like=True):
    """An object of the origin: where, and which version."""

    path: SitePath
    version: Version


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="node", kw_only=True):
    """One name of the lake as it is to be.

    Attributes:
        parent: id of the directory's node, NOWHERE or NAMELESS.
        name: bytes that are not UTF-8 never get here: no origin can hold them.
        seq: counts up with each change of the content; (id, seq) is one content.
        content: number of the staging file, 0 where there is none (any more).
        writing: somebody may be changing the content. `size` and `mtime_ns` hold only where nobody is.
        through: a directory of the origin's that only holds nodes; for ABSENT: what is to go is a directory.
        at: the object that the origin holds for this node, verified; None before the first upload.
        settled_seq: content of `at`; the node is durable at the origin where it equals `seq` and nobody is writing.
        written_ns, synced_ns, settled_ns: when the content became complete, durable here, durable at the origin; wall
            clock, 0: not yet.
        hides: what the origin may have at this path that is not of this node: it took the name of something that was to go.
    """

    id: int
    parent: int
    name: str
    kind: StagedKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    seq: int = 0
    content: int = 0
    writing: bool = False
    through: bool = False
    size: int = 0
    mtime_ns: int = 0
    target: str = ""
    xattrs: dict[str, bytes] = {}
    at: At | None = None
    settled_seq: int = -1
    written_ns: int = 0
    synced_ns: int = 0
    settled_ns: int = 0
    hides: StagedKind | None = None

    @property
    def settled(self) -> bool:
        """Whether the origin holds this content."""
        return self.settled_seq == self.seq and not self.writing


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The node is no more.

    Attributes:
        retired: the origin holds what it was, and goes on holding it. Else the agent stops what is under way for it and
            deletes what it has sent, unless another node is to have that path.
    """

    id: int
    retired: bool = False


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """A new mount: request numbers of the kernel start again, so those of earlier frames say nothing.

    Attributes:
        next_id: above every id and content number that was ever used.
    """

    next_id: int


Change = Staged | Drop | Begun


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Changes that hold together or not at all.

    Attributes:
        request: number of the kernel's request that they carry out, else 0. A request that the kernel sends again because a
            worker died has the same number: it is answered, not carried out twice.
    """

    changes: list[Change]
    request: int = 0


class UploadState(enum.StrEnum):
    """How far the agent is with one (id, seq)."""

    WAITING = "waiting"
    """For example for what a commit marker covers."""
    UPLOADING = "uploading"
    DONE = "done"
    FAILED = "failed"
    """The last try failed, another follows unless the node changes."""


class Upload(msgspec.Struct, frozen=True, array_like=True):
    """What the agent knows of one node. Kept in the catalog's table `uploads`, written by the agent only.

    Attributes:
        seq: the content that this is about.
        at: where the origin holds it and in which version, with DONE; of a directory where it was made. None for ABSENT.
        sent: bytes that the origin has acknowledged so far.
        failure: of the last try.
        resume: what the site's writing protocol needs to go on after a restart; its own format.
        digest: of the content (`vfs/checkpoints/manifest.py`), with DONE.
        seen_ns: when the agent first saw the node.
        hash_s: spent on reading and digesting.
        site: which origin `at`, `moving` and `left` are of.
        moving: where to a rename of `at` has begun there, "" for nowhere; it is carried to its end before anything else.
        left: where other content of the node may be: to be cleared when the origin holds this one.
    """

    seq: int
    state: UploadState
    at: At | None = None
    sent: int = 0
    failure: Failure | None = None
    begun_ns: int = 0
    done_ns: int = 0
    resume: bytes = b""
    digest: str = ""
    seen_ns: int = 0
    hash_s: float = 0.0
    site: SiteName = SiteName("")
    moving: SitePath = SitePath("")
    left: tuple[At, ...] = ()


class StagedNodes:
    """All nodes, by id and by name.

    Invariant: `_children[parent][name]` is the one node of that name; nameless nodes are in `_nodes` only.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, Staged] = {}
        self._children: dict[int, dict[str, int]] = {}
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Staged]:
        return iter(self._nodes.values())

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._nodes

    def get(self, node_id: int) -> Staged | None:
        """Return the node, None where it was dropped."""
        return self._nodes.get(node_id)

    def child(self, parent: int, name: str) -> Staged | None:
        """Return the node of a name in a directory's node."""
        found = self._children.get(parent, {}).get(name)
        return None if found is None else self._nodes[found]

    def children(self, parent: int) -> list[Staged]:
        """Return the nodes in a directory's node, ABSENT ones too."""
        return [self._nodes[found] for found in self._children.get(parent, {}).values()]

    def path(self, node: Staged) -> LakePath | None:
        """Return where the node is to be; None where it has no name."""
        names = [node.name]
        while node.parent != NOWHERE:
            parent = self._nodes.get(node.parent)
            if parent is None:  # NAMELESS
                return None
            node = parent
            names.append(node.name)
        path = ""
        for name in reversed(names):
            path = join(path, name)
        return LakePath(path)

    def apply(self, changes: Iterable[Change]) -> set[int]:
        """Carry out a frame's changes and return the ids that they are about."""
        touched = set()
        for change in changes:
            match change:
                case Staged():
                    self._unhang(change.id)
                    self._nodes[change.id] = change
                    if change.parent != NAMELESS:
                        self._children.setdefault(change.parent, {})[change.name] = change.id
                    self.next_id = max(self.next_id, change.id + 1, change.content + 1)
                    touched.add(change.id)
                case Drop(node_id):
                    self._unhang(node_id)
                    self._nodes.pop(node_id, None)
                    touched.add(node_id)
                case Begun():
                    self.next_id = max(self.next_id, change.next_id)
        return touched

    def _unhang(self, node_id: int) -> None:
        """Take a node's name away, unless another node has it by now."""
        old = self._nodes.get(node_id)
        if old is None or old.parent == NAMELESS:
            return
        names = self._children.get(old.parent, {})
        if names.get(old.name) == node_id:
            del names[old.name]
            if not names:
                del self._children[old.parent]
