"""An amount that many share, foreground before prefetch before background: memory in flight, or requests at a site.

Runs on the agent's loop; starts no task. Nothing here blocks but `Budget.hold`.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class Priority(enum.IntEnum):
    """Who waits for a fetch: the smaller number goes first."""

    FOREGROUND = 0
    PREFETCH = 1
    BACKGROUND = 2


SHARES: Mapping[Priority, float] = {Priority.FOREGROUND: 1.0, Priority.PREFETCH: 0.875, Priority.BACKGROUND: 0.5}
"""What each kind may take at most: a read finds room at once though everything else is busy."""


class Ticket:
    """A claim to an amount: waiting until it is granted, then held until the `async with` block ends.

    Attributes:
        amount: what is held or waited for; `give_back` lowers it.
        priority: `raise_to` lowers the number while it waits.
    """

    __slots__ = ("_budget", "_granted", "amount", "priority")

    def __init__(self, budget: Budget, amount: int, priority: Priority) -> None:
        self._budget = budget
        self._granted: asyncio.Future[None] | None = None
        self.amount = amount
        self.priority = priority

    def raise_to(self, priority: Priority) -> None:
        """Let somebody more urgent wait too; no effect once it is granted."""
        if priority < self.priority:
            self._budget._requeue(self, priority)

    def give_back(self, amount: int) -> None:
        """Return a part of what is held."""
        amount = min(amount, self.amount)
        self.amount -= amount
        self._budget._free(self.priority, amount)

    async def __aenter__(self) -> Self:
        """Wait for the amount.

        Cancellation: nothing is held.
        """
        self._granted = asyncio.get_running_loop().create_future()
        self._budget._enqueue(self)
        try:
            await self._granted
        except asyncio.CancelledError:
            if self._granted.cancelled():
                self._budget._withdraw(self)
            else:  # granted and cancelled in the same turn of the loop
                self.give_back(self.amount)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back(self.amount)


class Budget:
    """Hands out an amount in the order of priority, and first come, first served within one.

    Attributes:
        total: the amount; may change at any time, what is held meanwhile is not taken back.
        used: sum of what is granted. `used <= total`, but after `total` was lowered.
        waiting: tickets that wait.

    Invariant: a ticket waits only if it, or one before it, does not fit below its kind's share. An amount above that share
    counts as the share, so that it can be granted at all.
    """

    def __init__(self, total: int, shares: Mapping[Priority, float] = SHARES) -> None:
        self.total = total
        self.used = 0
        self._shares = shares
        self._queues: dict[Priority, deque[Ticket]] = {priority: deque() for priority in Priority}

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def hold(self, amount: int, priority: Priority) -> Ticket:
        """Return a ticket: `async with budget.hold(…) as ticket:` waits for the amount and returns it at the end."""
        return Ticket(self, amount, priority)

    def resize(self, total: int) -> None:
        """Change the amount that there is."""
        self.total = total
        self._grant()

    def _limit(self, priority: Priority) -> int:
        return max(1, int(self.total * self._shares[priority]))

    def _enqueue(self, ticket: Ticket) -> None:
        self._queues[ticket.priority].append(ticket)
        self._grant()

    def _requeue(self, ticket: Ticket, priority: Priority) -> None:
        queue = self._queues[ticket.priority]
        if ticket in queue:
            queue.remove(ticket)
            ticket.priority = priority
            self._enqueue(ticket)

    def _withdraw(self, ticket: Ticket) -> None:
        self._queues[ticket.priority].remove(ticket)
        self._grant()

    def _free(self, priority: Priority, amount: int) -> None:
        self.used -= amount
        self._grant()

    def _grant(self) -> None:
        """Grant what fits. One that does not fit holds up all behind it: large claims would starve otherwise."""
        for priority, queue in self._queues.items():
            limit = self._limit(priority)
            while queue:
                ticket = queue[0]
                amount = min(ticket.amount, limit)
                if self.used + amount > limit:
                    return
                queue.popleft()
                ticket.amount = amount
                self.used += amount
                assert ticket._granted is not None
                ticket._granted.set_result(None)
