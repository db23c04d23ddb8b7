"""What people see of foresight: evaluations on a time line, copies by rack, and how many mounts read from each copy when.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from vfs.foresight.model import JobName, LedgerEntry, Phase, ReplicaId, ReplicaRecord
from vfs.model import LakePath, SiteName

T = TypeVar("T")
BUCKET_S = 5.0
BUCKETS = 60
EVALUATIONS_SHOWN = 40
PATHS_SHOWN = 20
COPIES_SHOWN = 40
UNKNOWN_RACK = "-"


class OnRack(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one path on one rack.

    Attributes:
        rack: "-" for sites that name none.
    """

    rack: str
    sites: list[SiteName]
    phases: dict[Phase, int]
    bytes: int


class OnMap(msgspec.Struct, frozen=True, kw_only=True):
    """Where the copies of one path are."""

    path: LakePath
    job: JobName
    step: int
    racks: list[OnRack]


class HeatRow(msgspec.Struct, frozen=True, kw_only=True):
    """How many mounts have read from one copy.

    Attributes:
        readers: most at a time, in each of the last `BUCKETS` pieces of time, the present one last.
    """

    replica: ReplicaId
    path: LakePath
    site: SiteName
    rack: str
    readers: list[int]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        evaluations: newest first.
        racks: that have copies.
        map: newest first.
        heat: of copies that were read from lately, those with the most readers first.
        bucket_s: seconds of each number in `heat`.
    """

    leader: str = ""
    evaluations: list[LedgerEntry] = []
    racks: list[str] = []
    map: list[OnMap] = []
    heat: list[HeatRow] = []
    bucket_s: float = BUCKET_S


class Heat:
    """Counts readers over time.

    Invariant: `_peaks` holds `BUCKETS` pieces of time at most, ascending, without some in which nobody read.
    """

    def __init__(self) -> None:
        self._readers: dict[ReplicaId, set[str]] = {}
        self._peaks: deque[tuple[int, Counter[ReplicaId]]] = deque(maxlen=BUCKETS)

    def begins(self, replica: ReplicaId, mount: str, now_s: float) -> None:
        """A mount begins to read from a copy."""
        self._advance(now_s)
        self._readers.setdefault(replica, set()).add(mount)
        self._advance(now_s)

    def ends(self, replica: ReplicaId, mount: str, now_s: float) -> None:
        """It reads from it no more."""
        self._advance(now_s)
        readers = self._readers.get(replica, set())
        readers.discard(mount)
        if not readers:
            self._readers.pop(replica, None)

    def nobody(self, now_s: float) -> None:
        """Who reads is told anew."""
        self._advance(now_s)
        self._readers.clear()

    def over_time(self, now_s: float) -> dict[ReplicaId, list[int]]:
        """Return the most readers at a time of each copy, the oldest piece of time first."""
        self._advance(now_s)
        last = int(now_s // BUCKET_S)
        peaks = {bucket: counts for bucket, counts in self._peaks if bucket > last - BUCKETS}
        replicas = dict.fromkeys(replica for counts in peaks.values() for replica in counts)
        buckets = range(last - BUCKETS + 1, last + 1)
        return {each: [peaks[bucket][each] if bucket in peaks else 0 for bucket in buckets] for each in replicas}

    def _advance(self, now_s: float) -> None:
        """Let those who read now count in each piece of time until the present one."""
        bucket = int(now_s // BUCKET_S)
        counts = Counter({replica: len(mounts) for replica, mounts in self._readers.items()})
        first = self._peaks[-1][0] + 1 if self._peaks and counts else bucket
        for each in range(max(first, bucket - BUCKETS + 1), bucket):
            self._peaks.append((each, counts))
        if self._peaks and self._peaks[-1][0] == bucket:
            self._peaks[-1] = bucket, self._peaks[-1][1] | counts
        else:
            self._peaks.append((bucket, counts))


class Latest(Generic[T]):
    """The records that were changed last: as many as are shown, whatever there is."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._records: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, record: T) -> None:
        self._records[key] = record
        self._records.move_to_end(key)
        if len(self._records) > self._kept_max:
            self._records.popitem(last=False)

    def remove(self, key: str) -> None:
        self._records.pop(key, None)

    def values(self) -> Iterable[T]:
        return self._records.values()


def board_of(
    leader: str,
    entries: Iterable[LedgerEntry],
    replicas: Iterable[ReplicaRecord],
    heat: Mapping[ReplicaId, list[int]],
    racks: Mapping[SiteName, str],
) -> Board:
    """Return what is shown of these records."""
    known = {each.id: each for each in replicas}
    newest = sorted(entries, key=lambda entry: -entry.made_ns)[:EVALUATIONS_SHOWN]
    rows = [
        HeatRow(
            replica=name,
            path=known[name].path,
            site=known[name].site,
            rack=racks.get(known[name].site) or UNKNOWN_RACK,
            readers=readers,
        )
        for name, readers in sorted(heat.items(), key=lambda each: (-max(each[1]), each[0]))
        if name in known
    ]
    shown = on_map(known.values(), racks)
    names = sorted({each.rack for row in shown for each in row.racks})
    return Board(leader=leader, evaluations=newest, racks=names, map=shown, heat=rows[:COPIES_SHOWN])


def on_map(replicas: Iterable[ReplicaRecord], racks: Mapping[SiteName, str]) -> list[OnMap]:
    """Return where the copies of each path are, the newest path first."""
    paths: dict[LakePath, list[ReplicaRecord]] = {}
    for each in sorted(replicas, key=lambda record: -record.made_ns):
        if each.path in paths or len(paths) < PATHS_SHOWN:
            paths.setdefault(each.path, []).append(each)
    return [
        OnMap(path=path, job=found[0].job, step=found[0].step, racks=_on_racks(found, racks)) for path, found in paths.items()
    ]


def _on_racks(replicas: list[ReplicaRecord], racks: Mapping[SiteName, str]) -> list[OnRack]:
    by_rack: dict[str, list[ReplicaRecord]] = {}
    for each in replicas:
        by_rack.setdefault(racks.get(each.site) or UNKNOWN_RACK, []).append(each)
    return [
        OnRack(
            rack=rack,
            sites=sorted({each.site for each in found}),
            phases=dict(sorted(Counter(each.phase for each in found).items())),
            bytes=sum(each.bytes for each in found),
        )
        for rack, found in sorted(by_rack.items())
    ]
