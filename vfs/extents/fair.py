"""How a line is shared by weight: whose turn it is, and how many bytes a second there are.

Pure: no I/O, no clock; time is an argument. Nobody starves: every flow's claims move up with each byte that the others get,
so one of weight w among flows of weight W in all gets w / W of the line at least, however much the others ask for.

Source: self-clocked fair queueing (Golestani 1994): it needs no knowledge of the line's rate, which nobody knows, and in the
order of finish a small claim of a heavy flow never waits behind a large one of a light flow that is not owed anything. The
token bucket bounds the whole where an admin states a rate.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

FLOWS_MAX = 10_000
"""Flows that are remembered; those that have nothing ahead of the others are forgotten first."""

BURST_S = 0.05
"""How much of its rate a line that was silent lets through at once: a tenth of what people notice."""


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


class TokenBucket:
    """Bytes that may pass: `rate` a second, and `burst` at once after silence.

    A claim is granted whole as soon as anything is left, and what follows waits until it is paid for: a request can't be cut,
    and one that is larger than the burst must pass too.

    Invariant: `_level <= burst`.
    """

    def __init__(self, rate: float = math.inf, burst: float = 0.0) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._filled_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Return how long the next claim has to wait; 0: it may go."""
        self._fill(now_s)
        return 0.0 if self._level >= 0 else -self._level / self.rate

    def take(self, amount: float, now_s: float) -> None:
        """Pay for a claim that goes now."""
        self._fill(now_s)
        if math.isfinite(self.rate):
            self._level -= amount

    def set_rate(self, rate: float, burst: float, now_s: float) -> None:
        """Change what passes from now on; debts stay."""
        self._fill(now_s)
        self.rate, self.burst = rate, burst
        self._level = min(self._level, burst)

    def _fill(self, now_s: float) -> None:
        if math.isinf(self.rate):
            self._level = self.burst
        elif math.isfinite(self._filled_s):
            self._level = min(self.burst, self._level + self.rate * max(0.0, now_s - self._filled_s))
        self._filled_s = max(self._filled_s, now_s)
