"""The order that the readers of a file follow, and what comes next in it.

Pure: no I/O, no clock.

Every order is scored at each wanted member: was one of its predecessors in that order among the last few? Looking for a
predecessor among several, not at the very last, is what tells interleaved readers from a reader without order.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from vfs.checkpoints.patterns import Order, Patterns, ranks

_RECENT_MAX = 32
"""Wanted members among which a predecessor is looked for: 16 readers side by side, two of each."""
_REACH_MAX = 8
"""Predecessors looked for: threads that share a list finish its entries in nearly its order."""
_STEPS_MAX = 512
"""Members looked at to find them: most of a layout may be of patterns that nobody wants."""
_JUDGED = 32
"""Jumps before a reader is called lost: 16 threads that begin at 16 places jump 16 times."""
_LOST = 0.3
_DOUBT = 0.35
"""Trust at least until half of these jumps: as many threads that begin may be as many jumps that no order explains."""
_NEAR = 64
"""Members ahead of a reader that may wait for it while others get on faster."""
_DECAY = 0.95
_PRIOR = {Order.OFFSET: 0.04, Order.NAME: 0.03, Order.LAYER: 0.02, Order.PATTERN: 0.01}
"""Which order is believed as long as the reads fit several."""
_PLANNED_PRIOR = 2.0
"""Of the order of names in DCP files: torch sorts the names of what it loads (2.13, state_dict_loader.py), in one process."""
_PLANNED_AGAINST = 0.25
"""What a step counts there for another order: torch reads the end of a tensor first, and what spills beyond it into the next
one looks like the order of the file."""


class _Line(NamedTuple):
    """One order, followed in one direction.

    Attributes:
        order: None for the one that was learned.
        weight: of what speaks for it.
    """

    order: Order | None
    step: int
    members: Sequence[int]
    rank: Sequence[int]
    weight: float = 1.0


class Follow:
    """What the readers of one file have done so far.

    Attributes:
        jumps: outcomes of the last reads that did not continue the one before, or have done so for long: whether an order
            explains them.
        previous: the wanted member before the last one.
    """

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        size = len(patterns.of)
        self._recent: deque[int] = deque(maxlen=max(4, min(_RECENT_MAX, size // 24)))
        self._reach = max(2, min(_REACH_MAX, size // 64))
        self._lines: list[_Line] = []
        self._scores: list[float] = []
        planned = Order.NAME if patterns.layout.format == "dcp" else None
        for order in Order:
            members, rank = patterns.sequence(order)
            weight = 1.0 if planned is None else _PLANNED_AGAINST
            if order is planned:
                self._add(_Line(order, 1, members, rank), _PLANNED_PRIOR)
            else:
                self._add(_Line(order, 1, members, rank, weight), _PRIOR[order])
            self._add(_Line(order, -1, members, rank, weight), _PRIOR[order] / 10)
        self._best = 0
        self._taught: Sequence[int] = ()
        self._continued = 0
        self.jumps: deque[bool] = deque(maxlen=48)
        self.previous: int | None = None

    def _add(self, line: _Line, prior: float) -> None:
        self._lines.append(line)
        self._scores.append(prior)

    def teach(self, members: list[int]) -> None:
        """Follow an order from an earlier load until another one fits better."""
        if self._taught is members:
            return
        self._taught = members
        rank: array[int] = ranks(members, len(self._patterns.of))
        if self._lines[-1].order is None:
            self._lines[-1] = _Line(None, 1, members, rank)
        else:
            self._add(_Line(None, 1, members, rank), 1.0)
        self._best = max(range(len(self._scores)), key=self._scores.__getitem__)

    @property
    def is_known_order(self) -> bool:
        """Return whether the readers follow the order that was learned, as far as one can tell."""
        return not self._taught or self._lines[self._best].order is None

    @property
    def trust(self) -> float:
        """Return 0 to 1: a quarter at first, more with every step that an order explains."""
        if not self.jumps:
            return (1 + self._continued) / (4 + self._continued)
        share = (1 + sum(self.jumps)) / (2 + len(self.jumps))
        return max(share, _DOUBT) if len(self.jumps) < _JUDGED // 2 else share

    @property
    def is_lost(self) -> bool:
        """Return whether no order explains where the readers go."""
        return len(self.jumps) >= _JUDGED and self.trust < _LOST

    def order(self) -> tuple[Order, bool]:
        """Return the order that fits best, of those that have a name, and whether it is followed backwards."""
        line = self._named()
        assert line.order is not None
        return line.order, line.step < 0

    def _named(self) -> _Line:
        named = [index for index, line in enumerate(self._lines) if line.order is not None]
        return self._lines[max(named, key=self._scores.__getitem__)]

    def observe(self, member: int, believed: set[int], *, jumped: bool, is_first: bool, is_along: bool = False) -> bool:
        """Take in a wanted member; returns whether what comes next has to be laid out anew.

        Args:
            believed: patterns whose members the readers take; steps over others are none.
            jumped: the read did not continue the one before.
            is_first: nobody had read this pattern before: where it begins says nothing about the order.
            is_along: it came with a read that brought others too, and may lie further from the last one than is looked.
        """
        self.previous = self._recent[-1] if self._recent else None
        if member in self._recent:
            return False
        was, explained = self._best, False
        if self._recent:
            ages = {each: age for age, each in enumerate(reversed(self._recent), 1)}
            points = [self._points(line, member, ages, believed) for line in self._lines]
            scored = zip(self._lines, self._scores, points, strict=True)
            self._scores = [score * _DECAY + line.weight * point for line, score, point in scored]
            self._best = max(range(len(self._scores)), key=self._scores.__getitem__)
            explained = points[self._best] > 0
            if jumped and (explained or not is_first):
                self.jumps.append(explained)
        self._recent.append(member)
        return self._best != was or not (explained or is_along)

    def is_ahead(self, member: int) -> bool:
        """Return whether most of the last wanted members lie before this one in the order that is followed."""
        line = self._lines[self._best]
        at = line.step * line.rank[member]
        distances = [at - line.step * line.rank[each] for each in self._recent]
        return 2 * sum(distance > 0 for distance in distances) > len(distances)

    def is_near(self, member: int) -> bool:
        """Return whether one of several readers is about to come to this member."""
        line = self._lines[self._best]
        at = line.step * line.rank[member]
        return any(0 < at - line.step * line.rank[each] <= _NEAR for each in self._recent)

    def runs_on(self) -> None:
        """Note that a reader goes on without a hole, for long already: no order explains more."""
        self._continued += 1
        if self.jumps:
            self.jumps.append(True)

    def _points(self, line: _Line, member: int, ages: dict[int, int], believed: set[int]) -> float:
        """Return 1 if the member's predecessor is the one that was read last, less for those before either, 0 for none.

        One that was read longer ago counts half at least: readers side by side all read before one of them goes on.
        """
        for distance, each in enumerate(self._walk(line, line.rank[member], -line.step, believed), 1):
            if each in ages:
                return (1 + 1 / ages[each]) / 2 / distance
            if distance == self._reach:
                break
        return 0.0

    def _walk(self, line: _Line, rank: int, step: int, believed: set[int] | None, steps: int = _STEPS_MAX) -> Iterator[int]:
        """Yield the believed members beyond a rank; None: all."""
        if rank < 0:
            return
        of, members = self._patterns.of, line.members
        stop = rank + step * (steps + 1)
        for at in range(rank + step, min(stop, len(members)) if step > 0 else max(stop, -1), step):
            if believed is None or of[members[at]] in believed:
                yield members[at]

    def ahead(self, believed: set[int] | None) -> Iterator[int]:
        """Return the members that come next, nearest first, turn by turn for readers at several places.

        Args:
            believed: patterns whose members count; None: all that were learned, in that order.

        As long as no direction is established, what lies behind comes after what lies ahead.
        """
        line = self._lines[self._best] if believed is None else self._named()
        if not self._recent:
            return iter(line.members if believed is None else ())
        heads = self._heads(line, believed)
        recent = frozenset(self._recent)  # as it is now: the sections are drawn from later
        sections = [self._section(line, head, believed, recent) for head in heads]
        return self._turns(sections, line, heads, believed)

    def _heads(self, line: _Line, believed: set[int] | None) -> list[int]:
        """Return the members, the last one first, after which none of the recent ones comes soon: where readers are."""
        recent = set(self._recent)
        heads = []
        for member in reversed(self._recent):
            walk = self._walk(line, line.rank[member], line.step, believed)
            if not any(each in recent for _, each in zip(range(self._reach), walk, strict=False)):
                heads.append(member)
        return heads

    def _section(self, line: _Line, head: int, believed: set[int] | None, recent: frozenset[int]) -> Iterator[int]:
        for member in self._walk(line, line.rank[head], line.step, believed, len(line.members)):
            if member in recent:
                return
            yield member

    def _turns(
        self, sections: list[Iterator[int]], line: _Line, heads: list[int], believed: set[int] | None
    ) -> Iterator[int]:
        for turn in zip_longest(*sections):
            yield from (member for member in turn if member is not None)
        if heads and sum(self.jumps) + self._continued < 3:
            yield from self._walk(line, line.rank[heads[-1]], -line.step, believed, len(line.members))
