"""Lets bytes pass at a rate that an admin states and may change at any time, the more urgent first.

Runs on the agent's loop; starts no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable

from vfs.clock import Clock
from vfs.extents.fair import Priority
from vfs.model import SiteName
from vfs.rates import BURST_S, TokenBucket

LOOK_S = 0.5
"""Between two looks at the rate while a claim waits: one that was raised meanwhile holds for it too."""


class Throttle:
    """One rate, shared by all that pass here.

    Invariant: of those who wait the most urgent goes first, of equal ones who came first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bucket = TokenBucket()
        self._serial = itertools.count()
        self._waiting: list[tuple[Callable[[], Priority], int]] = []
        self._changed = asyncio.Event()

    async def passed(self, size: int, rate: Callable[[], float | None], priority: Callable[[], Priority]) -> bool:
        """Return True when `size` bytes may go, False once they need not pass here any more.

        Args:
            rate: bytes per second as it is stated now; None: another rate bounds them.
            priority: of who waits, which may rise meanwhile.
        Cancellation: nothing has passed.
        """
        claim = (priority, next(self._serial))
        self._waiting.append(claim)
        try:
            while (stated := rate()) is not None:
                wait_s, changed = self._wait_s(claim, stated), self._changed
                if not wait_s:
                    self.charge(size)
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await changed.wait()
            return False
        finally:
            self._waiting.remove(claim)
            self._changed.set()
            self._changed = asyncio.Event()

    def charge(self, size: int) -> None:
        """Count bytes that go along with what has passed: what follows waits for them."""
        self._bucket.take(size, self._clock.monotonic_s())

    def _wait_s(self, claim: tuple[Callable[[], Priority], int], rate: float) -> float:
        """Return how long to wait before looking again; 0: it may go."""
        now_s = self._clock.monotonic_s()
        self._bucket.set_rate(rate, rate * BURST_S, now_s)
        if min(self._waiting, key=lambda each: (each[0](), each[1])) is not claim:
            return LOOK_S
        return min(self._bucket.wait_s(now_s), LOOK_S)


class Throttles:
    """A throttle for each rule at each site: all that one rule bounds there shares its rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: dict[tuple[SiteName, str], Throttle] = {}

    async def passed(
        self,
        site: SiteName,
        size: int,
        bound: Callable[[], tuple[str, float]],
        priority: Callable[[], Priority],
        on_wait: Callable[[], None] = lambda: None,
    ) -> Throttle | None:
        """Return when `size` bytes may go: by which throttle, None where nothing bounds them.

        Args:
            bound: which rule bounds them now, and to how many bytes a second; another one may come into force meanwhile.
            priority: as of `Throttle.passed`.
            on_wait: called before each wait.
        Cancellation: nothing has passed.
        """
        while True:
            rule, rate = bound()
            if math.isinf(rate):
                return None
            throttle = self._of.setdefault((site, rule), Throttle(self._clock))
            on_wait()

            def rate_now(rule: str = rule) -> float | None:
                now_by, now = bound()
                return now if now_by == rule else None

            if await throttle.passed(size, rate_now, priority):
                return throttle
