"""Snapshots of prefixes: which objects there were, in which versions, when one was taken.

Pure: no I/O, no clock. What a snapshot holds stands in the catalog as any listing does, below a root of its own: `held_at`
turns a lake path into the path there. No lake path holds a NUL, so the two never meet.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from vfs.model import LakePath, join, lies_in
from vfs.namespace.mounts import MountTable

ID_MIN = 1 << 21
"""Ids lie above all generations of listings: a reader that stands in a listing never goes on in a snapshot, or back."""
ID_MAX = (1 << 22) - 1


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """One snapshot.

    Attributes:
        name: as rules name it, `pinned=NAME`.
        id: tells it apart from an earlier one of this name; ID_MIN..ID_MAX.
        prefix: what it holds, with all below it.
        roots: lake paths that were listed from: the prefix, and where other sites are mounted below it.
        begun_ns: when its listing was begun, wall clock.
        taken_ns: when all was listed; 0: it is being taken or dropped and answers nothing.
        directories, files, bytes: in it.
    """

    name: str
    id: int
    prefix: LakePath
    roots: tuple[LakePath, ...]
    begun_ns: int
    taken_ns: int = 0
    directories: int = 0
    files: int = 0
    bytes: int = 0

    def covers(self, path: LakePath) -> bool:
        """Return whether the path is the prefix or lies below it."""
        return lies_in(path, self.prefix)

    def held_at(self, path: LakePath) -> LakePath:
        """Return where the catalog has what this snapshot says of a lake path."""
        return held_at(self.id, path)


def held_at(snapshot_id: int, path: LakePath) -> LakePath:
    """Return where the catalog has what a snapshot says of a lake path."""
    return LakePath(join(f"\0{snapshot_id}", path))


def roots_of(mounts: MountTable, prefix: LakePath) -> tuple[LakePath, ...]:
    """Return from where to list so that all below the prefix is found once: itself, and each mount point below it."""
    below = sorted(point.prefix for point in mounts.points if lies_in(point.prefix, prefix) and point.prefix != prefix)
    here = [prefix] if mounts.find(prefix) is not None else []
    return (*here, *below)


def next_id(taken: Iterable[Snapshot]) -> int:
    """Return an id that no snapshot has."""
    used = {snapshot.id for snapshot in taken}
    last = max(used, default=ID_MIN - 1)
    if last < ID_MAX:
        return last + 1
    return next(number for number in range(ID_MIN, ID_MAX + 1) if number not in used)
