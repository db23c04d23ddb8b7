"""What a store holds, in the order in which it would go: events in, victims out.

Pure: no I/O, no clock, no lock. The store calls it under its own lock.

Objects leave as a whole, those that are read once first and those that are to stay last, of either the least recently used
one, but never while they are held: a held object is open in the fs worker
or being written. When only held objects are left, the segments of theirs that were written first make room, except in
sealed objects: these may be served in passthrough, where a hole would be read as zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from vfs.model import ObjectKey

Keep = Literal["stream", "normal", "keep"]
ORDER: tuple[Keep, ...] = ("stream", "normal", "keep")
"""Which objects go first."""


@dataclass(slots=True)
class Record:
    """One object.

    Attributes:
        used: bytes on the disk, as stat counts blocks; > 0 only for what was counted.
        holds: who needs it to stay; 0 exactly for the objects that `Books.idle` tells.
        sealed: it was complete and verified at some time; segments are never taken from it.
        keep: what the policy makes of it; None: left by an earlier run, and not asked yet. It counts as normal.
        segments: segment → when it was written, oldest first; None as long as nobody has opened the files.
    """

    used: int
    holds: int = 0
    sealed: bool = False
    segments: dict[int, int] | None = None
    keep: Keep | None = None


class Books:
    """The accounts of one store.

    Attributes:
        cap: bytes; `used + assumed + reserved` stays at or below it as long as nobody else writes.
        used: sum of all records.
        assumed: bytes that leftovers not looked at yet may take.
        reserved: bytes promised to writes in flight.
        held: the others.
    """

    def __init__(self, cap: int, assumed: int = 0) -> None:
        self.cap = cap
        self.used = 0
        self.assumed = assumed
        self.reserved = 0
        self._idle: dict[Keep, OrderedDict[ObjectKey, Record]] = {keep: OrderedDict() for keep in ORDER}
        self.held: dict[ObjectKey, Record] = {}
        self._tick = 0

    def __contains__(self, key: ObjectKey) -> bool:
        return self.record(key) is not None

    def __len__(self) -> int:
        return sum(map(len, self._idle.values())) + len(self.held)

    def __iter__(self) -> Iterator[ObjectKey]:
        yield from self.idle()
        yield from self.held

    def idle(self) -> list[ObjectKey]:
        """Return the objects that may go, the next victim first."""
        return [key for keep in ORDER for key in self._idle[keep]]

    def record(self, key: ObjectKey) -> Record | None:
        """Return the object's record, or None."""
        return self.held.get(key) or next((tier[key] for tier in self._idle.values() if key in tier), None)

    def classify(self, key: ObjectKey, keep: Keep) -> None:
        """Note what the policy makes of an object that is here; nobody has used it for that."""
        record = self.record(key)
        if record is None or record.keep == keep:
            return
        if key not in self.held:
            del self._idle[record.keep or "normal"][key]
            self._idle[keep][key] = record
        record.keep = keep

    def date_leftover(self, key: ObjectKey) -> None:
        """Put an object that nobody has touched in this run before all others of its kind."""
        tier = self._idle["normal"]
        if key in tier and tier[key].segments is None:
            tier.move_to_end(key, last=False)

    def add(self, key: ObjectKey, used: int, *, oldest: bool = False) -> None:
        """Enter an object that nobody holds, as the most recently used one or as the next victim."""
        assert key not in self
        self._idle["normal"][key] = Record(used)
        if oldest:
            self._idle["normal"].move_to_end(key, last=False)
        self.used += used

    def remove(self, key: ObjectKey) -> Record:
        """Strike out an object that nobody holds; its bytes count until `freed`."""
        record = self.record(key)
        assert record is not None and not record.holds
        return self._idle[record.keep or "normal"].pop(key)

    def freed(self, used: int) -> None:
        """Note that bytes of a removed object are off the disk."""
        self.used -= used

    def hold(self, key: ObjectKey) -> Record | None:
        """Keep the object from going; None if it is not here."""
        record = self.record(key)
        if record is None:
            return None
        if not record.holds:
            self.held[key] = self.remove(key)
        record.holds += 1
        return record

    def release(self, key: ObjectKey) -> bool:
        """Undo one `hold`; returns whether it was the last, after which the object is the most recently used one."""
        record = self.held[key]
        record.holds -= 1
        if record.holds:
            return False
        del self.held[key]
        self._idle[record.keep or "normal"][key] = record
        return True

    def resize(self, key: ObjectKey, used: int) -> None:
        """Note what the object takes now."""
        record = self.record(key)
        assert record is not None
        self.used += used - record.used
        record.used = used

    def reserve(self, size: int) -> bool:
        """Promise room for a write; False: something has to go first."""
        if self.used + self.assumed + self.reserved + size > self.cap:
            return False
        self.reserved += size
        return True

    def unreserve(self, size: int) -> None:
        """Take the promise back; what was written is counted by `resize`."""
        self.reserved -= size

    def victim(self) -> ObjectKey | None:
        """Return the object that goes next, or None when all are held."""
        return next((key for keep in ORDER for key in self._idle[keep]), None)

    def wrote(self, key: ObjectKey, segments: Iterable[int]) -> None:
        """Note that these segments of a held object were written just now; a segment keeps its first date."""
        record = self.held[key]
        if record.segments is None:
            record.segments = {}
        for segment in segments:
            if segment not in record.segments:
                self._tick += 1
                record.segments[segment] = self._tick

    def found(self, key: ObjectKey, segments: Iterable[int], *, sealed: bool) -> None:
        """Note what an object brought along from an earlier run: older than all that is written in this one."""
        record = self.record(key)
        assert record is not None
        record.segments = dict.fromkeys(segments, 0) | (record.segments or {})
        record.sealed |= sealed

    def oldest_segments(self) -> list[tuple[ObjectKey, int]]:
        """Return the oldest segment of every held object that may lose one, the oldest of all first."""
        candidates = [
            (date, key, segment)
            for key, record in self.held.items()
            if record.segments and not record.sealed
            for segment, date in [next(iter(record.segments.items()))]
        ]
        return [(key, segment) for _, key, segment in sorted(candidates)]

    def punched(self, key: ObjectKey, segment: int) -> None:
        """Note that a segment holds nothing any more."""
        record = self.record(key)
        if record is not None and record.segments is not None:
            record.segments.pop(segment, None)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        idle = [record for tier in self._idle.values() for record in tier.values()]
        assert self.used == sum(record.used for record in (*idle, *self.held.values()))
        assert all(record.holds == 0 for record in idle)
        assert all(record.holds > 0 for record in self.held.values())
        assert self.reserved >= 0 and self.assumed >= 0
