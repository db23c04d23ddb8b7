"""The copies that may be read now, by what they are copies of: what the controller has published, as this host has heard.

A copy is one value for a whole checkpoint: it is put in and taken out in one step, between two turns of the loop, so that
nobody is served half of it. Its proof is the digest of each file, compared where the copy lies; dates and ETags of the
destination say nothing (docs/adr/0009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.extents.placement import Copy
from vfs.foresight.model import FileCopy, Mechanism, ReplicaId, ReplicaRecord
from vfs.foresight.spread import even_order, order
from vfs.model import SiteName
from vfs.namespace.mounts import MountTable


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the readers this host is.

    Attributes:
        name: of this host.
        number, count: its number among so many; -1, 0: not known.
    """

    name: str
    number: int = -1
    count: int = 0


class Published:
    """Answers by the identity of the origin's object.

    Args:
        directories: of the sites whose files lie on this host.

    Invariant: `_of` holds exactly the copies of the files in `_replicas`, and `_identities` what they are read as.
    """

    def __init__(
        self, mounts: MountTable, fetcher: Fetcher, place: Place, directories: Mapping[SiteName, str] | None = None
    ) -> None:
        self._mounts = mounts
        self._directories = directories or {}
        self._fetcher = fetcher
        self._place = place
        self._replicas: dict[ReplicaId, dict[Identity, Copy]] = {}
        self._identities: dict[ReplicaId, set[Identity]] = {}
        self._of: dict[Identity, dict[ReplicaId, Copy]] = {}
        self._crowds: set[ReplicaId] = set()

    def put(self, replica: ReplicaRecord, files: Sequence[FileCopy]) -> None:
        """Offer a copy to all who open what it is of, and to those who have it open, from now on."""
        self.remove(replica.id)
        point = self._mounts.find(replica.path)
        if point is None:
            return
        found = {
            Identity(point.site, file.origin_at, file.origin): Copy(
                Identity(replica.site, file.at, file.version), file.ranges
            )
            for file in files
            if (replica.site, file.at) != (point.site, file.origin_at)  # copies that the origin itself keeps and chooses from
        }
        self._replicas[replica.id] = found
        self._identities[replica.id] = {copy.identity for copy in found.values()}
        if replica.mechanism is Mechanism.HOT_FILES:
            self._crowds.add(replica.id)
        for origin, copy in found.items():
            self._of.setdefault(origin, {})[replica.id] = copy
        self._fetcher.offer({origin: self.of(origin) for origin in found})

    def remove(self, replica: ReplicaId) -> None:
        """Offer a copy no more; requests to it that are under way end."""
        found = self._replicas.pop(replica, {})
        self._crowds.discard(replica)
        for origin in found:
            del self._of[origin][replica]
            if not self._of[origin]:
                del self._of[origin]
        self._fetcher.withdraw(self._identities.pop(replica, set()))

    def of(self, origin: Identity) -> list[Copy]:
        """Return the copies of an object; those made for a crowd with this host's turns."""
        found = self._of.get(origin)
        if not found:
            return []
        crowd = sorted(replica for replica in found if replica in self._crowds)
        turns = dict(zip((crowd[index] for index in self._order(origin, crowd)), range(len(crowd)), strict=True))
        return [Copy(copy.identity, copy.ranges, turns.get(replica)) for replica, copy in found.items()]

    def directory(self, copy: Identity) -> str:
        """Return the directory of this host below which a copy lies, "" where it lies elsewhere."""
        return self._directories.get(copy.site, "")

    def replicas(self) -> list[ReplicaId]:
        """Return the copies that are offered."""
        return list(self._replicas)

    def in_use(self) -> set[ReplicaId]:
        """Return the copies from which something that is open here may be read."""
        held = self._fetcher.copies_held()
        return {replica for replica, own in self._identities.items() if not own.isdisjoint(held)}

    def _order(self, origin: Identity, crowd: Sequence[str]) -> list[int]:
        if not crowd:
            return []
        subject = f"{origin.site}:{origin.path}"
        if self._place.count:
            return even_order(self._place.number, self._place.count, subject, crowd)
        return order(self._place.name, subject, crowd)
