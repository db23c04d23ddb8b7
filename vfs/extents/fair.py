"""How a line is shared by weight: whose turn it is.

Pure: no I/O, no clock; time is an argument. Nobody starves: every flow's claims move up with each byte that the others get,
so one of weight w among flows of weight W in all gets w / W of the line at least, however much the others ask for.

Source: self-clocked fair queueing (Golestani 1994): it needs no knowledge of the line's rate, which nobody knows, and in the
order of finish a small claim of a heavy flow never waits behind a large one of a light flow that is not owed anything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

FLOWS_MAX = 10_000
"""Flows that are remembered; those that have nothing ahead of the others are forgotten first."""


class Priority(enum.IntEnum):
    """Who waits for bytes: of equal claims the smaller number goes first.

    URGENT and PREDICTIVE are copies between sites: for an evaluation that can't wait, and for one that is expected.
    """

    FOREGROUND = 0
    URGENT = 1
    PREFETCH = 2
    PREDICTIVE = 3
    BACKGROUND = 4


@dataclass(frozen=True, slots=True)
class Flow:
    """Whose claims they are.

    Attributes:
        name: the flows of one kind share what that kind gets.
        weight: of this flow among those of its kind.
        group, share: all flows of the group together hold this share of the whole at most, or one claim.
    """

    name: str = ""
    weight: float = 1.0
    group: str = ""
    share: float = 1.0


NOBODYS = Flow()
WEIGHTS: Mapping[Priority, float] = {
    Priority.FOREGROUND: 64.0,
    Priority.URGENT: 16.0,
    Priority.PREFETCH: 8.0,
    Priority.PREDICTIVE: 4.0,
    Priority.BACKGROUND: 1.0,
}
"""What each kind gets of what all of them want, in proportion. 16 : 1 leaves an urgent copy 94 % of a line on which
background goes on; no kind gets nothing, for a copy that never ends is never there."""


class FairOrder:
    """Stamps claims with the virtual time at which they end; the smallest stamp is next.

    Invariant: a flow's stamp is what the claim costs it after its last one, or after now where that is later.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._last: dict[str, float] = {}

    def stamp(self, flow: str, cost: float, weight: float) -> float:
        """Return the stamp of a claim.

        Args:
            flow: whose claims follow each other.
            cost: in the unit that is shared; > 0.
            weight: of the flow, in proportion to which it is served; > 0.
        """
        end = self._last[flow] = max(self._now, self._last.get(flow, 0.0)) + cost / weight
        if len(self._last) > FLOWS_MAX:
            self._last = {each: stamp for each, stamp in self._last.items() if stamp > self._now}
        return end

    def served(self, stamp: float) -> None:
        """Note that the claim with this stamp was granted: nobody who comes later ends before it."""
        self._now = max(self._now, stamp)
