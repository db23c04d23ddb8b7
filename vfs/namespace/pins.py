"""What paths that the policy pins to a snapshot stand for.

No task of its own. Read by the fs worker for the kernel and by the agent for its own rooms; one look costs two of LMDB.
"""

from __future__ import annotations

from collections.abc import Callable

from vfs.errors import NotADirectory, NotFound, Stale
from vfs.model import Entry, Kind, LakePath, Version, split
from vfs.namespace.catalog import Catalog
from vfs.namespace.snapshots import Snapshot, held_at


class Pins:
    """Answers from snapshots.

    Args:
        named: the snapshot that a rule pins a path to, "" where none does.
    """

    def __init__(self, catalog: Catalog, named: Callable[[LakePath], str]) -> None:
        self._catalog = catalog
        self.named = named

    def snapshot(self, path: LakePath) -> Snapshot:
        """Return the snapshot that a pinned path is answered from.

        Raises:
            Stale: it is not on this host, or does not hold the prefix: nothing else is shown in its place.
        """
        name = self.named(path)
        found = self._catalog.snapshot(name)
        if found is None or not found.taken_ns:
            what = f"is pinned to the snapshot {name!r}, which is not on this host"
            raise Stale(path, what, f"take it: foremount snapshot create {name} PREFIX; or name another in the rule")
        if not found.covers(path):
            what = f"is pinned to the snapshot {name!r}, which holds /{found.prefix} only"
            raise Stale(path, what, "narrow the rule's path, or take a snapshot of a larger prefix")
        return found

    def entry(self, path: LakePath) -> Entry:
        """Return what a pinned path was.

        Raises:
            NotFound: nothing, when the snapshot was taken.
            Stale: as `snapshot`.
        """
        held = self._catalog.known(self.snapshot(path).held_at(path))
        if held is None or held.entry is None:
            raise NotFound(path)
        return held.entry

    def directory(self, path: LakePath) -> tuple[Snapshot, int]:
        """Return the snapshot that a directory is listed from, and how many names it had.

        Raises:
            NotFound, NotADirectory, Stale.
        """
        snapshot = self.snapshot(path)
        listing = self._catalog.listing(snapshot.held_at(path))
        if listing is None:
            if self.entry(path).kind is Kind.DIRECTORY:
                return snapshot, 0  # a mount point that leads to others only
            raise NotADirectory(path)
        return snapshot, listing.count

    def page(self, path: LakePath, snapshot_id: int, position: int, limit: int) -> list[Entry | None]:
        """Return up to `limit` entries of a directory from `position` on, in the order in which they were listed.

        Who has begun to read in a snapshot goes on in it, though the path be pinned to another one meanwhile.

        Raises:
            Stale: that snapshot was dropped.
        """
        held = held_at(snapshot_id, path)
        listing = self._catalog.listing(held)
        if listing is None and self._catalog.known(held) is None:
            raise Stale(path, "was pinned to a snapshot that is dropped", "read the directory again")
        return [] if listing is None else self._catalog.page(held, listing.generation, position, limit)


def root_entry(path: LakePath) -> Entry:
    """Return what a snapshot says of a directory that it was listed from."""
    return Entry(split(path)[1], Kind.DIRECTORY, Version(0))
