"""How far the ranks of a job are on this host, and what follows from it: which groups to prepare, which are over.

Pure: no I/O, no clock. State: what was opened or told in, groups out.
"""

from __future__ import annotations

Group = tuple[int, int]
"""(step, rank)"""


class Progress:
    """The ranks of one job.

    Invariant: `ranks` has the step that each rank reads now or next, and it only grows.

    Attributes:
        told: the step that the job said it is about to read, -1: none.
        reading: the latest step that a rank has come to, -1: none.
    """

    def __init__(self, *, ahead: int, behind: int) -> None:
        self.ranks: dict[int, int] = {}
        self.told = self.reading = -1
        self._ahead = ahead
        self._behind = behind

    @property
    def step(self) -> int:
        """Return the step that is being read, -1 before the first."""
        return max(self.ranks.values(), default=self.told)

    @property
    def consumed(self) -> int:
        """Return the step that is being read; before the one that was told is read, the step before it."""
        return max(self.reading, self.told - 1)

    def reach(self, step: int, rank: int) -> bool:
        """A rank reads in this step; return whether that is news."""
        news = step > self.reading
        self.reading = max(self.reading, step)
        return self._advance(step, rank) or news

    def _advance(self, step: int, rank: int) -> bool:
        if step <= self.ranks.get(rank, -1):
            return False
        self.ranks[rank] = step
        return True

    def tell(self, step: int, ranks: tuple[int, ...] = ()) -> bool:
        """The job says that it is about to read this step with these ranks on this host; return whether that is news."""
        news = step > self.told
        self.told = max(self.told, step)
        for rank in ranks or tuple(self.ranks):
            news = self._advance(step, rank) or news
        return news

    def wanted(self) -> list[Group]:
        """Return the groups that are read now or soon, in the order of their steps."""
        return sorted((step, rank) for rank, at in self.ranks.items() for step in range(max(at, 0), at + self._ahead + 1))

    def is_over(self, step: int, rank: int) -> bool:
        """Return whether a group is so far behind that nothing is prepared for it any more."""
        return step < self.ranks.get(rank, step) - self._behind
