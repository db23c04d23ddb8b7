"""An amount that many share by weight, the more urgent first: memory in flight, or requests at a site.

Runs on the agent's loop; starts no task. Nothing here blocks but `Budget.hold`. Who is next is decided in `fair.py`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from vfs.extents.fair import NOBODYS, WEIGHTS, FairOrder, Flow, Priority

SHARES: Mapping[Priority, float] = {
    Priority.FOREGROUND: 1.0,
    Priority.URGENT: 0.875,
    Priority.PREFETCH: 0.875,
    Priority.PREDICTIVE: 0.5,
    Priority.BACKGROUND: 0.5,
}
"""Up to how full it may be for each kind: a read finds room at once though everything else is busy."""


class Ticket:
    """A claim to an amount: waiting until it is granted, then held until the `async with` block ends.

    Attributes:
        amount: what is held or waited for; `give_back` lowers it.
        cost: what it costs its flow, in the unit of the other claims' costs.
        priority: `raise_to` lowers the number while it waits.
    """

    __slots__ = ("_budget", "_granted", "amount", "cost", "flow", "priority", "stamp")

    def __init__(self, budget: Budget, amount: int, priority: Priority, cost: float, flow: Flow) -> None:
        self._budget = budget
        self._granted: asyncio.Future[None] | None = None
        self.amount = amount
        self.cost = cost
        self.flow = flow
        self.priority = priority
        self.stamp = 0.0

    @property
    def is_given_up(self) -> bool:
        """Return whether who waited for it was cancelled."""
        return self._granted is not None and self._granted.cancelled()

    def raise_to(self, priority: Priority) -> None:
        """Let somebody more urgent wait too; no effect once it is granted."""
        if priority < self.priority:
            self._budget._requeue(self, priority)

    def give_back(self, amount: int) -> None:
        """Return a part of what is held."""
        amount = min(amount, self.amount)
        self.amount -= amount
        self._budget._free(self, amount)

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
    """Hands out an amount by weight, and first come, first served within one flow.

    Attributes:
        total: the amount; may change at any time, what is held meanwhile is not taken back.
        used: sum of what is granted. `used <= total`, but after `total` was lowered.
        waiting: tickets that wait.

    Invariant: a ticket waits only if it, or one before it, does not fit, or its group holds its share. It does not fit where
    the whole would be too full, or fuller than its kind's share, but for a kind whose turn it is and that holds nothing. What
    is more than the share counts as the share, so that it can be granted at all.
    """

    def __init__(
        self,
        total: int,
        shares: Mapping[Priority, float] = SHARES,
        weights: Mapping[Priority, float] = WEIGHTS,
    ) -> None:
        self.total = total
        self.used = 0
        self._shares = shares
        self._weights = weights
        self._order = FairOrder()
        self._serial = itertools.count()
        self._queues: dict[tuple[Priority, str], list[tuple[float, int, Ticket]]] = {}
        self._held = dict.fromkeys(Priority, 0)
        self._held_by_group: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def hold(self, amount: int, priority: Priority, *, cost: float | None = None, flow: Flow = NOBODYS) -> Ticket:
        """Return a ticket: `async with budget.hold(…) as ticket:` waits for the amount and returns it at the end.

        Args:
            cost: what it counts as against others; None: the amount.
        """
        return Ticket(self, amount, priority, max(1, amount if cost is None else cost), flow)

    def resize(self, total: int) -> None:
        """Change the amount that there is."""
        self.total = total
        self._grant()

    def _limit(self, priority: Priority) -> int:
        return max(1, int(self.total * self._shares[priority]))

    def _enqueue(self, ticket: Ticket) -> None:
        weight = self._weights[ticket.priority] * ticket.flow.weight
        ticket.stamp = self._order.stamp(f"{ticket.priority}{ticket.flow.name}", ticket.cost, weight)
        queue = self._queues.setdefault((ticket.priority, ticket.flow.group), [])
        heapq.heappush(queue, (ticket.stamp, next(self._serial), ticket))
        self._grant()

    def _requeue(self, ticket: Ticket, priority: Priority) -> None:
        if self._drop(ticket):
            ticket.priority = priority
            self._enqueue(ticket)

    def _withdraw(self, ticket: Ticket) -> None:
        self._drop(ticket)
        self._grant()

    def _drop(self, ticket: Ticket) -> bool:
        key = ticket.priority, ticket.flow.group
        queue = self._queues.get(key, [])
        kept = [each for each in queue if each[2] is not ticket]
        if len(kept) == len(queue):
            return False
        heapq.heapify(kept)
        self._queues[key] = kept
        return True

    def _free(self, ticket: Ticket, amount: int) -> None:
        self.used -= amount
        self._held[ticket.priority] -= amount
        self._held_by_group[ticket.flow.group] -= amount
        self._grant()

    def _grant(self) -> None:
        """Grant what fits. One that does not fit the whole holds up all behind it: large claims would starve otherwise."""
        while (ticket := self._next()) is not None:
            heapq.heappop(self._queues[ticket.priority, ticket.flow.group])
            self._order.served(ticket.stamp)
            self.used += ticket.amount
            self._held[ticket.priority] += ticket.amount
            self._held_by_group[ticket.flow.group] += ticket.amount
            assert ticket._granted is not None
            ticket._granted.set_result(None)

    def _next(self) -> Ticket | None:
        """Return the ticket whose turn it is, with the amount that it will get, where it fits."""
        for queue in self._queues.values():
            while queue and queue[0][2].is_given_up:  # cancelled, and its task has not had its turn since
                heapq.heappop(queue)
        heads = sorted((queue[0][0], key) for key, queue in self._queues.items() if queue)
        free = ((key[0], ticket) for _, key in heads if not self._has_its_share(ticket := self._queues[key][0][2]))
        for place, (priority, ticket) in enumerate(free):
            limit = self._limit(priority)
            amount = min(ticket.amount, limit)
            # whose turn it is, and holds nothing, gets it however full the others keep it: else it would never come
            room = (limit if place or self._held[priority] else self.total) - self.used
            if amount <= room or (not self.used and limit >= self.total):
                ticket.amount = amount
                return ticket
            if amount > self.total - self.used:
                return None
        return None

    def _has_its_share(self, ticket: Ticket) -> bool:
        """Return whether a ticket's group holds so much that those behind it go first."""
        held = self._held_by_group[ticket.flow.group]
        return ticket.flow.share < 1.0 and held > 0 and held + ticket.amount > self.total * ticket.flow.share
