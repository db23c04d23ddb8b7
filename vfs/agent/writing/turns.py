"""Whose turn it is: the next step of a node, and whether others have to come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vfs.agent.writing.commits import Commits, site_path_of
from vfs.agent.writing.places import Places, places_of
from vfs.agent.writing.uploadplan import Clear, MakeDirectory, Move, Remove, Send, Step, clears_below, next_step, old_markers
from vfs.model import LakePath, SiteName
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.journal import JournalReader
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.namespace.staged import NAMELESS, Staged
from vfs.sites.writing import SiteWriter


class Turns:
    """Reads journal and catalog as they are now; keeps nothing but `places`."""

    def __init__(
        self,
        journal: JournalReader,
        mounts: MountTable,
        writers: Mapping[SiteName, SiteWriter],
        catalog: CatalogWriter,
        commits: Commits,
        places: Places,
    ) -> None:
        self._journal = journal
        self._mounts = mounts
        self._writers = writers
        self._catalog = catalog
        self._commits = commits
        self._places = places

    def place(self, node_id: int) -> None:
        """Find out anew what a node has at places that are not its own."""
        node, record = self._journal.nodes.get(node_id), self._catalog.upload(node_id)
        if node is not None and node.parent == NAMELESS:
            self._places.note(node_id, set())
            return
        path, point = self._where(node)
        own = {(point.site, point.site_path(path))} if point is not None and path is not None else set()
        self._places.note(node_id, places_of(node, record, point.site if point is not None else SiteName("")) - own)

    def next_step(self, node: Staged, path: LakePath, point: MountPoint | None) -> Step | None:
        """Return what is to be done for a node, None where that is nothing."""
        if point is None or point.site not in self._writers:
            return None
        renames = self._writers[point.site].renames
        return next_step(node, site_path_of(point, path or None), self._catalog.upload(node.id), renames=renames)

    def has_come(self, node: Staged, point: MountPoint, step: Step) -> bool:
        """Return whether a step need not wait for others."""
        others = [self._journal.nodes.get(other) for other in self._blockers(node, point, step)]
        if others:  # what waits for this one in turn may be overwritten, if it can be sent again
            again = isinstance(step, Send) and all(other is not None and other.content for other in others)
            if not again or not self.goes_round(node):
                return False
        return not self._comes_later(node, step)

    def goes_round(self, node: Staged) -> bool:
        """Return whether a node waits for itself, by way of those that it waits for."""
        return self._places.goes_round(node.id, self._in_the_way)

    def _where(self, node: Staged | None) -> tuple[LakePath | None, MountPoint | None]:
        path = self._journal.nodes.path(node) if node is not None else None
        return path, self._mounts.find(path) if path is not None else None

    def _blockers(self, node: Staged, point: MountPoint, step: Step) -> Iterable[int]:
        """Yield the nodes that have to leave a place before something comes there, or is removed there."""
        if isinstance(step, Clear):
            return ()
        found = self._places.at((point.site, step.to), below=clears_below(step, node))
        return (other for other in found if other != node.id)

    def _in_the_way(self, node_id: int) -> Iterable[int]:
        node = self._journal.nodes.get(node_id)
        path, point = self._where(node)
        if node is None or path is None or point is None:
            return ()
        step = self.next_step(node, path, point)
        return () if step is None else self._blockers(node, point, step)

    def _comes_later(self, node: Staged, step: Step) -> bool:
        """Return whether something else is first: old markers go before files come, a directory comes before what is in it.

        Of a directory it is enough, for files, that it is noted.
        """
        if isinstance(step, Remove):
            return False
        above = self._journal.nodes.get(node.parent)
        if above is not None and not above.through:
            if self._catalog.upload(above.id) is None:
                return True
            path, point = self._where(above)
            if isinstance(step, MakeDirectory) and path is not None and self.next_step(above, path, point) is not None:
                return True
        markers = old_markers(self._journal.nodes, node) if isinstance(step, Send | Move) else []
        return any(self._commits.record(marker) is None for marker in markers)
