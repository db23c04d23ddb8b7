"""Who gets how much, and in which order: `vfs/extents/budget.py`."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from vfs.extents.budget import Budget, Ticket
from vfs.extents.fair import NOBODYS, Flow, Priority

ALIKE = dict.fromkeys(Priority, 1.0)
FOREGROUND, PREFETCH, BACKGROUND = Priority.FOREGROUND, Priority.PREFETCH, Priority.BACKGROUND


class Line:
    """Claims in the order in which they were granted, each held until it is let go."""

    def __init__(self, budget: Budget) -> None:
        self.granted: list[str] = []
        self.tickets: dict[str, Ticket] = {}
        self._budget = budget
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def claim(
        self, name: str, amount: int, priority: Priority = FOREGROUND, cost: float | None = None, flow: Flow = NOBODYS
    ) -> None:
        """Claim in a task of its own; returns once it waits or holds."""
        self._ends[name] = asyncio.Event()
        self.tickets[name] = self._budget.hold(amount, priority, cost=cost, flow=flow)
        self._tasks[name] = asyncio.create_task(self._hold(name))
        await self.turn()

    async def let_go(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await self.turn()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[name]
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.tickets[name]:
            self.granted.append(name)
            await self._ends[name].wait()


async def test_what_fits_is_granted_at_once_and_the_rest_waits_for_it() -> None:
    line = Line(budget := Budget(10, ALIKE))
    await line.claim("a", 6)
    await line.claim("b", 4)
    await line.claim("c", 1)
    assert (line.granted, budget.used, budget.waiting) == (["a", "b"], 10, 1)
    await line.let_go("b")
    assert (line.granted, budget.used, budget.waiting) == (["a", "b", "c"], 7, 0)


async def test_a_large_claim_is_not_overtaken_by_small_ones_behind_it() -> None:
    line = Line(Budget(10, ALIKE))
    await line.claim("a", 6)
    await line.claim("large", 8)
    await line.claim("small", 1)
    assert line.granted == ["a"]
    await line.let_go("a")
    assert line.granted == ["a", "large", "small"]


async def test_foreground_goes_before_prefetch_before_background() -> None:
    line = Line(Budget(1, ALIKE))
    await line.claim("first", 1)
    await line.claim("background", 1, BACKGROUND)
    await line.claim("prefetch", 1, PREFETCH)
    await line.claim("foreground", 1, FOREGROUND)
    for name in ("first", "foreground", "prefetch", "background"):
        assert line.granted[-1] == name
        await line.let_go(name)


async def test_prefetch_and_background_leave_room_for_a_foreground_claim() -> None:
    line = Line(budget := Budget(16))
    await line.claim("background", 8, BACKGROUND)
    await line.claim("more background", 1, BACKGROUND)
    await line.claim("prefetch", 6, PREFETCH)
    await line.claim("more prefetch", 1, PREFETCH)
    assert line.granted == ["background", "prefetch"]
    await line.claim("foreground", 2)
    assert line.granted == ["background", "prefetch", "foreground"]
    assert budget.used == 16


async def test_a_waiting_claim_that_becomes_more_urgent_goes_first() -> None:
    line = Line(Budget(1, ALIKE))
    await line.claim("first", 1)
    await line.claim("one", 1, PREFETCH)
    await line.claim("two", 1, PREFETCH)
    line.tickets["two"].raise_to(FOREGROUND)
    line.tickets["two"].raise_to(BACKGROUND)
    await line.let_go("first")
    assert line.granted == ["first", "two"]


async def test_a_claim_above_the_total_is_granted_alone() -> None:
    line = Line(budget := Budget(10, ALIKE))
    await line.claim("a", 1)
    await line.claim("huge", 1000)
    assert line.granted == ["a"]
    await line.let_go("a")
    assert (line.granted, budget.used) == (["a", "huge"], 10)
    await line.let_go("huge")
    assert budget.used == 0


async def test_a_part_given_back_lets_the_next_one_in() -> None:
    line = Line(budget := Budget(10, ALIKE))
    await line.claim("a", 10)
    await line.claim("b", 4)
    line.tickets["a"].give_back(4)
    await line.turn()
    assert line.granted == ["a", "b"]
    line.tickets["a"].give_back(1000)
    assert budget.used == 4
    await line.let_go("a")
    assert budget.used == 4


async def test_a_cancelled_claim_lets_those_behind_it_pass() -> None:
    line = Line(budget := Budget(10, ALIKE))
    await line.claim("a", 6)
    await line.claim("large", 8)
    await line.claim("small", 1)
    await line.cancel("large")
    assert line.granted == ["a", "small"]
    await line.cancel("a")
    assert budget.used == 1


async def test_a_claim_cancelled_in_the_turn_in_which_it_is_granted_holds_nothing() -> None:
    budget = Budget(1, ALIKE)
    async with budget.hold(1, FOREGROUND):
        waiting = asyncio.create_task(budget.hold(1, FOREGROUND).__aenter__())
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used == 0


async def test_a_larger_total_lets_waiting_claims_in_and_a_smaller_one_takes_nothing_away() -> None:
    line = Line(budget := Budget(1, ALIKE))
    await line.claim("a", 1)
    await line.claim("b", 1)
    budget.resize(2)
    await line.turn()
    assert line.granted == ["a", "b"]
    budget.resize(1)
    await line.claim("c", 1)
    await line.let_go("a")
    assert line.granted == ["a", "b"]
    await line.let_go("b")
    assert line.granted == ["a", "b", "c"]


async def test_a_claim_cancelled_in_the_turn_in_which_another_is_given_back_is_passed_over() -> None:
    line = Line(budget := Budget(1, ALIKE))
    await line.claim("a", 1)
    await line.claim("b", 1)
    await line.claim("c", 1)
    line._tasks["b"].cancel()
    line.tickets["a"].give_back(1)
    await line.turn()
    assert (line.granted, budget.used, budget.waiting) == (["a", "c"], 1, 0)


async def test_a_kind_that_holds_nothing_gets_its_turn_though_the_others_fill_the_line() -> None:
    line = Line(budget := Budget(2))
    await line.claim("one", 1, cost=1000)
    await line.claim("two", 1, cost=1000)
    await line.claim("background", 1, BACKGROUND, cost=10)
    await line.claim("three", 1, cost=1000)
    await line.let_go("one")
    assert (line.granted[-1], budget.used) == ("background", 2)


async def test_urgent_copies_have_their_weight_of_a_line_that_background_wants_too() -> None:
    line = Line(Budget(1, ALIKE))
    await line.claim("first", 1)
    for index in range(40):
        await line.claim(f"background {index}", 1, BACKGROUND, cost=8)
        await line.claim(f"urgent {index}", 1, Priority.URGENT, cost=8)
    for _ in range(34):
        await line.let_go(line.granted[-1])
    assert sum(name.startswith("urgent") for name in line.granted) == 32


async def test_a_group_that_holds_its_share_lets_others_pass_and_never_holds_none() -> None:
    line = Line(budget := Budget(8, ALIKE))
    copies = Flow("copies", group="copies", share=0.25)
    for index in range(4):
        await line.claim(f"copy {index}", 1, flow=copies)
    await line.claim("other", 1)
    assert (line.granted, budget.waiting) == (["copy 0", "copy 1", "other"], 2)
    await line.let_go("copy 0")
    assert line.granted[-1] == "copy 2"
    budget.resize(1)
    for name in ("other", "copy 1", "copy 2"):
        await line.let_go(name)
    assert line.granted[-1] == "copy 3", "a quarter of one claim is one claim"
