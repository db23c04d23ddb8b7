"""Bytes pass at the rate that is stated, the more urgent first; time stands still unless it is told to move."""

from __future__ import annotations

import asyncio
import math

from vfs.clock import FakeClock
from vfs.extents.fair import Priority
from vfs.extents.throttle import Throttle, Throttles
from vfs.model import SiteName

RATE = 1e6


class World:
    """A throttle, and the names of those who have passed in order."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.throttle = Throttle(self.clock)
        self.rate = RATE
        self.passed: list[str] = []

    def claim(self, name: str, size: int, priority: list[Priority]) -> asyncio.Task[None]:
        """Begin to wait; `priority` holds one, which may be replaced."""

        async def wait() -> None:
            await self.throttle.passed(size, lambda: self.rate, lambda: priority[0])
            self.passed.append(name)

        return asyncio.create_task(wait())

    async def until(self, count: int) -> None:
        while len(self.passed) < count:
            await asyncio.sleep(0)


async def test_claim_goes_at_once_and_what_follows_waits_until_it_is_paid_for() -> None:
    world = World()
    first, second = (world.claim(name, 1000, [Priority.FOREGROUND]) for name in ("first", "second"))
    await first
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.passed == ["first"]
    world.clock.advance(1000 / RATE)
    await second


async def test_claim_that_another_rate_bounds_from_now_on_leaves_and_pays_nothing() -> None:
    throttle = Throttle(FakeClock())
    assert await throttle.passed(1000, lambda: RATE, lambda: Priority.FOREGROUND)
    stated: list[float | None] = [RATE]
    waiting = asyncio.create_task(throttle.passed(10**9, lambda: stated[0], lambda: Priority.FOREGROUND))
    await asyncio.sleep(0)
    stated[0] = None
    assert not await waiting
    assert await throttle.passed(0, lambda: math.inf, lambda: Priority.PREFETCH)


async def test_claim_whose_rule_is_another_one_meanwhile_waits_at_that_ones_throttle_or_goes_where_there_is_none() -> None:
    clock, site = FakeClock(), SiteName("far")
    throttles, bound, waits = Throttles(clock), [("slow", RATE)], [0]

    def wait() -> None:
        waits[0] += 1

    def claim(size: int) -> asyncio.Task[Throttle | None]:
        passing = throttles.passed(site, size, lambda: bound[0], lambda: Priority.BACKGROUND, wait)
        return asyncio.create_task(passing)

    slow = await claim(10**9)
    assert slow is not None
    second = claim(1000)
    await asyncio.sleep(0)
    bound[0] = ("fast", RATE)
    fast = await second
    assert fast is not None
    assert fast is not slow, "the other rule owes nothing"
    bound[0] = ("slow", RATE)
    third = claim(1000)
    await asyncio.sleep(0)
    bound[0] = ("nobody's", math.inf)
    assert await third is None
    assert waits == [4]


async def test_reader_passes_before_prefetches_that_came_earlier_and_those_that_he_joins_do_too() -> None:
    world = World()
    joined = [Priority.PREFETCH]
    await world.claim("debt", 1000, [Priority.FOREGROUND])
    tasks = [
        world.claim("prefetch", 1000, [Priority.PREFETCH]),
        world.claim("joined", 1000, joined),
        world.claim("reader", 1000, [Priority.FOREGROUND]),
    ]
    await asyncio.sleep(0)
    joined[0] = Priority.FOREGROUND
    for count in (2, 3, 4):
        world.clock.advance(1000 / RATE)
        await world.until(count)
    await asyncio.gather(*tasks)
    assert world.passed == ["debt", "joined", "reader", "prefetch"]


async def test_rate_that_is_raised_holds_for_those_who_wait() -> None:
    world = World()
    world.rate = 1.0
    await world.claim("debt", 1000, [Priority.FOREGROUND])
    waiting = world.claim("waiting", 1000, [Priority.FOREGROUND])
    await asyncio.sleep(0)
    world.rate = math.inf
    await waiting


async def test_who_gives_up_leaves_its_turn_to_the_next() -> None:
    world = World()
    await world.claim("debt", 1000, [Priority.FOREGROUND])
    given_up = world.claim("given up", 1000, [Priority.FOREGROUND])
    other = world.claim("other", 1000, [Priority.FOREGROUND])
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    world.clock.advance(1000 / RATE)
    await other
    assert world.passed == ["debt", "other"]


async def test_bytes_that_go_along_are_paid_for_by_what_follows() -> None:
    world = World()
    await world.claim("first", 1000, [Priority.FOREGROUND])
    world.throttle.charge(1000)
    second = world.claim("second", 1, [Priority.FOREGROUND])
    world.clock.advance(1000 / RATE)
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.passed == ["first"]
    world.clock.advance(1000 / RATE)
    await second
