"""What has to be done at an origin so that it holds a staged node: desired state and observed state in, next step out.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vfs.agent.writing.places import Place, Resume, left_by, resume_of
from vfs.checkpoints.commit import MARKER_NAMES
from vfs.model import LakePath, SiteName, SitePath, Version
from vfs.namespace.staged import NAMELESS, NOWHERE, At, Staged, StagedKind, StagedNodes, Upload, UploadState
from vfs.sites.writing import Upload as UploadOnItsWay


@dataclass(frozen=True, slots=True)
class Send:
    """Bring the content to the origin."""

    to: SitePath


@dataclass(frozen=True, slots=True)
class Move:
    """The origin has the content under another name."""

    source: SitePath
    to: SitePath


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make the directory."""

    to: SitePath


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove what is there."""

    to: SitePath
    directory: bool


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove what is there of this node, unless another is to be there.

    Attributes:
        at: of a version without time and ETag only the size is known.
        begun: what was sent and not finished.
    """

    site: SiteName
    at: At
    begun: UploadOnItsWay | None = None

    @property
    def to(self) -> SitePath:
        """Where."""
        return self.at.path


Step = Send | Move | MakeDirectory | Remove | Clear


def next_step(node: Staged, to: SitePath | None, record: Upload | None, *, renames: bool = True) -> Step | None:
    """Return the next step for a node, None where there is nothing to do now.

    Args:
        to: where it is to be at its origin; None: it has no name.
        record: what the agent has noted of it.
        renames: the origin can rename.
    """
    if to is None or node.parent in (NOWHERE, NAMELESS):
        return None
    done = record is not None and record.state is UploadState.DONE and record.seq == node.seq
    match node.kind:
        case StagedKind.FILE:
            return _step_of_file(node, to, record, done=done, renames=renames)
        case StagedKind.DIRECTORY if not node.through:
            made = record is not None and done and record.at is not None and record.at.path == to
            return None if made else MakeDirectory(to)
        case StagedKind.ABSENT if not done:
            return Remove(to, node.through)
        case _:
            return None


def _step_of_file(node: Staged, to: SitePath, record: Upload | None, *, done: bool, renames: bool) -> Step | None:
    begun = resume_of(record)
    if begun is not None and begun.upload.path != to:
        return _undo(begun)
    if node.writing:
        return None
    at = record.at if record is not None and done else node.at if record is None and node.settled else None
    if at is None:
        return Send(to) if node.content else None
    if record is not None and record.moving:
        return Move(at.path, record.moving)
    if at.path != to:
        return Move(at.path, to) if renames or not node.content else Send(to)
    return Clear(record.site, record.left[0]) if record is not None and record.left else None


def next_clearing(record: Upload) -> Clear | None:
    """Return the next step for a node that is gone, None where nothing of it is left."""
    begun = resume_of(record)
    if begun is not None:
        return _undo(begun)
    left = left_by(record)
    return Clear(record.site, left[-1]) if left else None


def _undo(begun: Resume) -> Clear:
    return Clear(begun.site, At(begun.upload.path, Version(begun.upload.size)), begun.upload)


def places_of_step(step: Step, site: SiteName) -> list[Place]:
    """Return where nothing else may be done meanwhile."""
    match step:
        case Move(source, to):
            return [(site, source), (site, to)]
        case Clear():
            return [(step.site, step.to)]
        case _:
            return [(site, step.to)]


def clears_below(step: Step, node: Staged) -> bool:
    """Return whether a step removes the directory of that name, and so waits for what is to leave it."""
    match step:
        case Remove(_, directory):
            return directory
        case MakeDirectory() | Send() | Move():
            return node.hides is StagedKind.DIRECTORY
        case _:
            return False


def old_markers(nodes: StagedNodes, node: Staged) -> list[Staged]:
    """Return the markers beside a file that are to go from the origin: they go before what they covered is replaced."""
    beside = [nodes.child(node.parent, name) for name in MARKER_NAMES]
    return [marker for marker in beside if marker is not None and marker.kind is StagedKind.ABSENT]


def all_below(nodes: StagedNodes, node: Staged) -> Iterator[Staged]:
    """Yield the nodes below a directory's node: their paths change when it is renamed."""
    rest = [node.id]
    while rest:
        for child in nodes.children(rest.pop()):
            yield child
            rest.append(child.id)


def node_at(nodes: StagedNodes, prefix: LakePath, path: LakePath) -> Staged | None:
    """Return the node of a path below a mount's prefix, None where nothing is staged there."""
    node = nodes.child(NOWHERE, prefix)
    for name in path[len(prefix) :].strip("/").split("/"):
        if node is None or not name:
            return node
        node = nodes.child(node.id, name)
    return node


def files_below(nodes: StagedNodes, node: Staged | None, path: LakePath) -> Iterator[tuple[LakePath, Staged]]:
    """Yield the staged files below a directory's node, with their paths."""
    rest = [] if node is None else [(path, node)]
    while rest:
        above, directory = rest.pop()
        for child in nodes.children(directory.id):
            below = LakePath(f"{above}/{child.name}" if above else child.name)
            if child.kind is StagedKind.FILE:
                yield below, child
            elif child.kind is StagedKind.DIRECTORY:
                rest.append((below, child))


def order(node: Staged) -> tuple[int, int, str]:
    """Return the key by which uploads are begun: removals and directories, then files as they were completed."""
    return int(node.kind is StagedKind.FILE), node.written_ns, node.name
