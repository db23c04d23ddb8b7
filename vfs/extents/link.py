"""How a site's line behaves, and how many requests it bears: events in, a window out.

Pure: no I/O, no clock; every event says when it happened.

At first the window grows by one with each request that ends, twice as large after each round trip, until more requests bring
no more bytes, or a first byte waits twice as long behind others as the line is long. From then on it follows the line: twice
what bandwidth and time to first byte hold, in requests of the size that is usual. Every request more would only queue, and
what a reader waits for behind it. A site that asks for fewer requests halves a ceiling above the window, which then rises
again by one with every look.

Source: the estimators are those of BBR (Cardwell et al. 2016), a maximum of the delivery rate and a minimum of the delay,
over requests in place of packets. The start is TCP's, with the delay that ends HyStart (Ha and Rhee 2008), the ceiling its
additive increase and multiplicative decrease.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from vfs.extents.coalesce import Knobs, Pace
from vfs.model import SiteName

LOOK_S_MIN = 0.1
"""Between two looks at the rate at least; else two times to first byte, after which a larger window shows."""
RATES_KEPT = 10
DELAYS_KEPT = 128
HELD = 2.0
"""Of what the line holds: once, and a half since requests end in lumps; the rest is for reads that wait (`requests.py`)."""
FILLING = 3.0
"""The same while the rate still grows: as far as it may have grown since it was looked at, so that it is seen to grow."""
GROWTH = 1.25
"""Of the rate from one look at a full window to the next, below which a larger window brings nothing."""
QUEUED = 3.0
"""A first byte after so many unloaded delays: twice as many requests wait in the line as it carries."""
DELAY_DRIFT = 1.0003
"""How the unloaded delay rises with each look unless it is seen again: while our own requests queue nobody sees it, and a
window that believed the loaded delay would grow without end. 0.3 % a second follows a route that has become longer."""
HEDGE_SAMPLES_MIN = 20
"""Delays that have to be known before a percentile of them says something."""
FAILING_AFTER = 3
"""Failures in a row after which a site is asked only when no other is left."""
FAILING_REST_S = 30.0
"""After which one request tries a failing site again: a site that is back is found, and one that is not costs little."""
TRICKLE = 20
"""A request is given up when it gets less than this part of its share of the line."""


class Bounds(msgspec.Struct, frozen=True):
    """Between what a link's window and guesses stay.

    Attributes:
        window_min, window_start, window_max: requests in flight. The start holds 1 Gbit/s over 100 ms from the first read
            on.
        ttfb_s, bytes_per_s: believed before anything is measured.
        stall_s: the least time that a request is given.
        trickle_bytes_per_s: a rate at which a request has failed on any line.
    """

    window_min: int = 2
    window_start: int = 16
    window_max: int = 64
    ttfb_s: float = 0.05
    bytes_per_s: float = 100e6
    stall_s: float = 10.0
    trickle_bytes_per_s: float = 32e3


class Seen(msgspec.Struct, frozen=True):
    """A link's state as `status` and `explain` show it."""

    window: int
    in_flight: int
    ttfb_s: float
    ttfb_s_p95: float | None
    bytes_per_s: float
    request_bytes: float
    failures_in_a_row: int


class LineFacts(msgspec.Struct, frozen=True):
    """What is known of a site's line and how requests are formed for it, as `explain` and `status` show it."""

    site: SiteName
    seen: Seen
    knobs: Knobs
    waiting: int


class Link:
    """One site's line.

    Attributes:
        window: requests that may be in flight, `bounds.window_min` to `bounds.window_max`.
        in_flight: requests that were sent and have not ended.

    Invariants: `_ceiling >= bounds.window_min`; `_rates` holds only looks at a full window, or rates above all it held.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.window = bounds.window_start
        self.in_flight = 0
        self._bounds = bounds
        self._ceiling = float(bounds.window_max)
        self._delays: deque[float] = deque(maxlen=DELAYS_KEPT)
        self._delay_min: float | None = None
        self._hint_s: float | None = None
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._request_bytes = 0.0
        self._failures = 0
        self._tried_s = self._failed_s = -math.inf
        self._look_began_s: float | None = None
        self._look_bytes = 0
        self._look_full = False
        self._was_full = False
        self._backed_off_s = -math.inf
        self._is_filling = True

    # Events

    def sent(self, now_s: float, *, more_wait: bool = False) -> None:
        """A request was sent.

        Args:
            more_wait: others wait for their turn, so the line carries as much as the window lets it.
        """
        if not self.in_flight:
            self._look_began_s = None
        self.in_flight += 1
        self._tried_s = now_s
        self._look_full |= more_wait or self.in_flight >= self.window

    def first_byte(self, after_s: float) -> None:
        """A request got its first byte `after_s` after it was sent."""
        self._delays.append(after_s)
        self._delay_min = min(after_s, self._delay_min or after_s)
        self._is_filling &= after_s <= QUEUED * self._delay_min

    def hinted(self, after_s: float) -> None:
        """A question that brought no bytes was answered `after_s` after it was sent: a guess until a request tells more."""
        if self._delay_min is None:
            self._hint_s = after_s

    def received(self, now_s: float, count: int) -> None:
        """Bytes came."""
        began_s = self._look_began_s
        if began_s is None:  # the way of the first request is no time at which the line was used
            self._begin_look(began_s := now_s)
        self._look_bytes += count
        if now_s - began_s >= max(LOOK_S_MIN, 2 * self.ttfb_s):
            self._look(now_s)

    def ended(self, length: int, *, sent_s: float) -> None:
        """A request for `length` bytes, sent at `sent_s`, has ended well.

        What was sent before a failing site had its rest proves nothing: it may serve small requests and choke on others.
        """
        self.in_flight -= 1
        if self._failures < FAILING_AFTER or sent_s >= self._failed_s + FAILING_REST_S:
            self._failures = 0
        self._request_bytes += (length - self._request_bytes) * (0.1 if self._request_bytes else 1.0)
        if self._is_filling:
            self.window = int(max(self.window, min(self.window + 1, self._ceiling, self._requests_holding(FILLING))))

    def cancelled(self) -> None:
        """A request was given up by us."""
        self.in_flight -= 1

    def failed(self, now_s: float, *, throttled: bool, stalled: bool = False) -> None:
        """A request failed for a reason that may pass.

        Args:
            throttled: the site asks for fewer requests.
            stalled: it went silent: who waits for two more of these waits for half a minute.
        """
        self.in_flight -= 1
        self._failures += FAILING_AFTER if stalled else 1
        self._failed_s = self._tried_s = now_s
        if now_s - self._backed_off_s < self.ttfb_s:
            return  # the requests of one window fail together: one reason, one answer
        self._backed_off_s = now_s
        self._is_filling = False
        self._ceiling = max(self._bounds.window_min, self.window * (0.5 if throttled else 0.8))
        self._follow()

    # What follows from them

    @property
    def ttfb_s(self) -> float:
        """Return the time to first byte of the unloaded line."""
        if self._delay_min is not None:
            return self._delay_min
        return self._bounds.ttfb_s if self._hint_s is None else self._hint_s

    @property
    def bytes_per_s(self) -> float:
        """Return what the line carries when it is full; before it was, no less than was believed at first."""
        rate = max(self._rates, default=0.0)
        return rate if self._was_full else max(rate, self._bounds.bytes_per_s)

    def is_failing(self, now_s: float) -> bool:
        """Return whether its last requests failed, and the last one was not so long ago that another may try."""
        return self._failures >= FAILING_AFTER and now_s - self._tried_s < FAILING_REST_S

    def expected_s(self, length: int) -> float | None:
        """Return when a request for `length` bytes, sent now, would be answered; None: nothing was measured."""
        if self._delay_min is None and self._hint_s is None:
            return None
        return self.ttfb_s * (1 + self.in_flight / self.window) + length / self.bytes_per_s

    @property
    def pace(self) -> Pace:
        return Pace(self.ttfb_s, self.bytes_per_s, self.window)

    @property
    def hedge_after_s(self) -> float | None:
        """Return when a request is late enough to be sent to another replica too: the p95 of the delay; None: unknown."""
        return self._percentile(0.95) if len(self._delays) >= HEDGE_SAMPLES_MIN else None

    def deadline_s(self, length: int) -> float:
        """Return how long a request for `length` bytes may take altogether before it has failed."""
        slow = max(self._bounds.trickle_bytes_per_s, self.bytes_per_s / self.window / TRICKLE)
        return self._bounds.stall_s + length / slow

    def seen(self) -> Seen:
        """Return the state for people."""
        return Seen(
            self.window,
            self.in_flight,
            self.ttfb_s,
            self.hedge_after_s,
            self.bytes_per_s,
            self._request_bytes,
            self._failures,
        )

    def _percentile(self, share: float) -> float:
        ordered = sorted(self._delays)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def _begin_look(self, now_s: float) -> None:
        self._look_began_s = now_s
        self._look_bytes = 0
        self._look_full = self.in_flight >= self.window

    def _look(self, now_s: float) -> None:
        assert self._look_began_s is not None
        rate = self._look_bytes / (now_s - self._look_began_s)
        self._is_filling &= not (self._look_full and self._rates and rate < GROWTH * max(self._rates))
        self._was_full |= self._look_full
        if self._look_full or rate > max(self._rates, default=0.0):
            self._rates.append(rate)
        self._ceiling = min(self._bounds.window_max, self._ceiling + 1)
        if self._delay_min is not None:
            self._delay_min *= DELAY_DRIFT
        self._begin_look(now_s)
        self._follow()

    def _follow(self) -> None:
        """Let the window follow the estimates; before there are any it stays where it is, below the ceiling."""
        wanted = float(self.window)
        if not self._is_filling and self._rates and self._delay_min and self._request_bytes:
            wanted = self._requests_holding(HELD)
        self.window = int(max(self._bounds.window_min, min(wanted, self._ceiling, self._bounds.window_max)))

    def _requests_holding(self, times: float) -> float:
        """Return how many requests of the usual size hold so many times what the line holds."""
        return 1 + math.ceil(times * self.bytes_per_s * self.ttfb_s / self._request_bytes)
