"""How much may pass in a second, of bytes or of requests.

Pure: no I/O, no clock; time is an argument.
"""

from __future__ import annotations

import math
from collections import OrderedDict

BURST_S = 0.05
"""How much of its rate a line that was silent lets through at once: a tenth of what people notice."""
_MOMENT_S = 1e-9
"""What is due sooner may go: a clock that is a float would never get there."""
_CALLERS_MAX = 10_000


class TokenBucket:
    """What may pass: `rate` a second, and `burst` at once after silence.

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
        wait_s = max(0.0, -self._level / self.rate)
        return wait_s if wait_s > _MOMENT_S else 0.0

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


class Callers:
    """A bucket of requests for each caller, the least recent of too many forgotten.

    Args:
        rate, burst: requests a second, and at once.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait_s(self, caller: str, now_s: float) -> float:
        """Take one request of this caller and return 0, or return when to come again, in seconds."""
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = TokenBucket(self._rate, self._burst - 1)  # one passes where nothing is left
            if len(self._buckets) > _CALLERS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        if wait_s := bucket.wait_s(now_s):
            return wait_s
        bucket.take(1, now_s)
        return 0.0
