"""What is known about the reading of one object, and what it says to fetch ahead.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vfs.checkpoints.learned import Learned
from vfs.extents.layout import Identity
from vfs.extents.predict import Prediction
from vfs.extents.readahead import Readahead
from vfs.extents.spans import Spans
from vfs.extents.whole import Whole
from vfs.model import LakePath

Range = tuple[int, int]
"""(offset, length)."""

_TOLD_MAX = 100_000
"""Ranges kept for a worker that opens the object later."""


@dataclass(slots=True)
class Reading:
    """One object.

    Attributes:
        ahead_bytes: fetched and not yet read at most.
        streams: predicts until the layout is known, and where there is none.
        whole: predicts where all of it will be read; None: the policy does not say so. `seen` is what was read then.
        prediction: predicts by members; None where there is no layout (yet).
        has_layout: its name promises one.
        is_open: a worker has it open. Else it is a shard that is expected to be opened.
        reading_layout: its task is under way; `early` keeps the reads meanwhile.
        taught_count: patterns that the reader of the shard before it was known to want, when it was told last.
        told: ranges that will be read, as far as they were fetched ahead.
    """

    identity: Identity
    path: LakePath
    ahead_bytes: int
    streams: Readahead
    whole: Whole | None
    has_layout: bool
    prediction: Prediction | None = None
    is_open: bool = False
    reading_layout: bool = False
    taught_count: int = 0
    early: list[Range] = field(default_factory=list)
    told: list[Range] = field(default_factory=list)
    seen: Spans = field(default_factory=Spans)

    @property
    def unread_bytes(self) -> int:
        """Return what was fetched ahead and not read; when the object is closed, what never was."""
        if self.whole is not None:
            return max(0, self.whole.prefetched_bytes - self.seen.total)
        return self.streams.unread_bytes + (self.prediction.unread_bytes if self.prediction is not None else 0)

    @property
    def members(self) -> Prediction | None:
        """Return the prediction by members where there is one that has not given up."""
        return None if self.prediction is None or self.prediction.is_off else self.prediction

    def read(self, offset: int, length: int, room_bytes: int) -> list[Range]:
        """Note a read; return what to fetch ahead now.

        Args:
            room_bytes: what the line takes now; counts where members predict.
        """
        if self.whole is not None:
            self.seen.add(offset, min(offset + length, self.identity.version.size))
            return self.whole.read(length)
        if self.members is not None:
            return self.members.read(offset, length, limit_bytes=self.ahead_bytes, room_bytes=room_bytes)
        return [] if self.reading_layout else self.streams.read(offset, length)

    def teach(self, believed: Learned) -> None:
        """Let a shard that nobody has open know what the reader of the one before it wants, if it wants more by now."""
        if self.members is not None and len(believed.patterns) > self.taught_count:
            self.taught_count = len(believed.patterns)
            self.members.teach(believed)

    def expected(self, ahead: Sequence[Range], least_bytes: int) -> list[Range]:
        """Return what of ranges that are fetched now will be read: members without what the kernel reads around them.

        Of short runs nothing: what is expected goes into the page cache, where nobody sees how far a run is read, and so how
        long the next one will be.
        """
        if self.members is not None:
            taken: Sequence[Range] = self.members.taken()
        else:
            taken = ahead if self.whole is not None or self.streams.runs_long else ()
        found = [each for each in taken if each[1] >= least_bytes]
        self.told += found[: max(0, _TOLD_MAX - len(self.told))]
        return found

    def facts(self) -> dict[str, Any]:
        """Return how it is predicted, for `explain`."""
        facts: dict[str, Any] = {"ahead_bytes_max": self.ahead_bytes}
        if self.whole is not None:
            facts |= {"by": "policy: whole", "prefetched_bytes": self.whole.prefetched_bytes}
        elif self.members is not None:
            facts |= {"by": "members", **self.members.explain()}
        else:
            streams = self.streams
            facts |= {"by": "streams", "window": streams.window, "prefetched_bytes": streams.prefetched_bytes}
        return facts | {"unread_bytes": self.unread_bytes}
