"""An amount that many share by weight, the more urgent first: memory in flight, or requests at a site.

Runs on the agent's loop; starts no task. Nothing here blocks but `Budget.hold`. Who is next is decided in `fair.py`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from vfs.extents.fair import WEIGHTS, FairOrder, Priority, TokenBucket

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

    __slots__ = ("_budget", "_granted", "amount", "cost", "flow", "priority", "stamp", "weight")

    def __init__(self, budget: Budget, amount: int, priority: Priority, cost: float, flow: str, weight: float) -> None:
        self._budget = budget
        self._granted: asyncio.Future[None] | None = None
        self.amount = amount
        self.cost = cost
        self.flow = flow
        self.priority = priority
        self.stamp = 0.0
        self.weight = weight

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
    """Hands out an amount by weight, and first come, first served within one flow.

    Attributes:
        total: the amount; may change at any time, what is held meanwhile is not taken back.
        used: sum of what is granted. `used <= total`, but after `total` was lowered.
        waiting: tickets that wait.

    Args:
        bucket: what a claim's cost is paid from, in bytes; None: as much as fits.

    Invariant: a ticket waits only if it, or one before it, does not fit, or the bucket is empty. It does not fit where the
    whole would be too full, or fuller than its kind's share, but for a kind whose turn it is and that holds nothing. What is
    more than the share counts as the share, so that it can be granted at all.
    """

    def __init__(
        self,
        total: int,
        shares: Mapping[Priority, float] = SHARES,
        weights: Mapping[Priority, float] = WEIGHTS,
        bucket: TokenBucket | None = None,
    ) -> None:
        self.total = total
        self.used = 0
        self._shares = shares
        self._weights = weights
        self._bucket = bucket
        self._order = FairOrder()
        self._serial = itertools.count()
        self._queues: dict[Priority, list[tuple[float, int, Ticket]]] = {priority: [] for priority in Priority}
        self._held = dict.fromkeys(Priority, 0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def hold(
        self, amount: int, priority: Priority, *, cost: float | None = None, flow: str = "", weight: float = 1.0
    ) -> Ticket:
        """Return a ticket: `async with budget.hold(…) as ticket:` waits for the amount and returns it at the end.

        Args:
            cost: what it counts as against others; None: the amount.
            flow: whose it is: the flows of one kind share what that kind gets.
            weight: of this flow among those of its kind.
        """
        return Ticket(self, amount, priority, max(1, amount if cost is None else cost), flow, weight)

    def resize(self, total: int) -> None:
        """Change the amount that there is."""
        self.total = total
        self._grant()

    def _limit(self, priority: Priority) -> int:
        return max(1, int(self.total * self._shares[priority]))

    def _enqueue(self, ticket: Ticket) -> None:
        weight = self._weights[ticket.priority] * ticket.weight
        ticket.stamp = self._order.stamp(f"{ticket.priority}{ticket.flow}", ticket.cost, weight)
        heapq.heappush(self._queues[ticket.priority], (ticket.stamp, next(self._serial), ticket))
        self._grant()

    def _requeue(self, ticket: Ticket, priority: Priority) -> None:
        if self._drop(ticket):
            ticket.priority = priority
            self._enqueue(ticket)

    def _withdraw(self, ticket: Ticket) -> None:
        self._drop(ticket)
        self._grant()

    def _drop(self, ticket: Ticket) -> bool:
        queue = self._queues[ticket.priority]
        kept = [each for each in queue if each[2] is not ticket]
        if len(kept) == len(queue):
            return False
        heapq.heapify(kept)
        self._queues[ticket.priority] = kept
        return True

    def _free(self, priority: Priority, amount: int) -> None:
        self.used -= amount
        self._held[priority] -= amount
        self._grant()

    def _grant(self) -> None:
        """Grant what fits. One that does not fit the whole holds up all behind it: large claims would starve otherwise."""
        while (ticket := self._next()) is not None and self._may_pay(ticket):
            heapq.heappop(self._queues[ticket.priority])
            self._order.served(ticket.stamp)
            self.used += ticket.amount
            self._held[ticket.priority] += ticket.amount
            assert ticket._granted is not None
            ticket._granted.set_result(None)

    def _next(self) -> Ticket | None:
        """Return the ticket whose turn it is, with the amount that it will get, where it fits."""
        for queue in self._queues.values():
            while queue and queue[0][2].is_given_up:  # cancelled, and its task has not had its turn since
                heapq.heappop(queue)
        heads = sorted((queue[0][0], priority) for priority, queue in self._queues.items() if queue)
        for place, (_, priority) in enumerate(heads):
            ticket, limit = self._queues[priority][0][2], self._limit(priority)
            amount = min(ticket.amount, limit)
            # whose turn it is, and holds nothing, gets it however full the others keep it: else it would never come
            room = (limit if place or self._held[priority] else self.total) - self.used
            if amount <= room or (not self.used and limit >= self.total):
                ticket.amount = amount
                return ticket
            if amount > self.total - self.used:
                return None
        return None

    def _may_pay(self, ticket: Ticket) -> bool:
        """Take the cost from the bucket; where it is empty, come back when it is not."""
        if self._bucket is None:
            return True
        loop = asyncio.get_running_loop()
        wait_s = self._bucket.wait_s(loop.time())
        if wait_s > 0 and math.isfinite(wait_s):
            if self._timer is None or self._timer.cancelled():
                self._timer = loop.call_later(wait_s, self._paid)
            return False
        self._bucket.take(ticket.cost, loop.time())
        return True

    def _paid(self) -> None:
        self._timer = None
        self._grant()
