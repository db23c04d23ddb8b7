"""What has to be done at an origin so that it holds a staged node: desired state and observed state in, next step out.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vfs.checkpoints.commit import MARKER_NAMES
from vfs.model import LakePath, SitePath
from vfs.namespace.staged import NAMELESS, NOWHERE, Staged, StagedKind, StagedNodes, Upload, UploadState


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
    """Make the directory; `old` is where it was made before it was renamed, "" for nowhere."""

    to: SitePath
    old: SitePath


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove what is there."""

    to: SitePath
    directory: bool


Step = Send | Move | MakeDirectory | Remove


def next_step(node: Staged, to: SitePath | None, record: Upload | None) -> Step | None:
    """Return the next step for a node, None where there is nothing to do now.

    Args:
        to: where it is to be at its origin; None: it has no name.
        record: what the agent has noted of it.
    """
    if to is None or node.parent in (NOWHERE, NAMELESS):
        return None
    done = record is not None and record.state is UploadState.DONE and record.seq == node.seq
    match node.kind:
        case StagedKind.FILE:
            return _step_of_file(node, to, record if done else None)
        case StagedKind.DIRECTORY if not node.through:
            old = SitePath(record.resume.decode()) if record is not None else SitePath("")
            made = record is not None and record.state is UploadState.DONE
            return None if made and old == to else MakeDirectory(to, old if old != to else SitePath(""))
        case StagedKind.ABSENT if not done:
            return Remove(to, node.through)
        case _:
            return None


def _step_of_file(node: Staged, to: SitePath, done: Upload | None) -> Step | None:
    if node.writing:
        return None
    at = done.at if done is not None else node.at if node.settled else None
    if at is None:
        return Send(to) if node.content else None
    return None if at.path == to else Move(at.path, to)


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
