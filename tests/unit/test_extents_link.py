"""How many requests a line bears, against simulated lines: `vfs/extents/link.py`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.link import FAILING_AFTER, FAILING_REST_S, HEDGE_SAMPLES_MIN, Bounds, Link

MIB = 1 << 20
BOUNDS = Bounds()


def run_line(link: Link, *, rtt_s: float, bytes_per_s: float, request: int, seconds: float) -> float:
    """Keep the window full over a line that serves requests in turn; return the share of the line that was used."""
    events: list[tuple[float, int, Callable[[float], None]]] = []
    number = itertools.count()
    line_free = 0.0
    moved = 0

    def send(now: float) -> None:
        nonlocal line_free
        link.sent(now)
        begins = max(now + rtt_s, line_free)
        line_free = begins + request / bytes_per_s
        heapq.heappush(events, (begins, next(number), lambda at, sent=now: link.first_byte(at - sent)))
        for quarter in (1, 2, 3, 4):
            at = begins + request / bytes_per_s * quarter / 4
            heapq.heappush(events, (at, next(number), lambda now: link.received(now, request // 4)))
        heapq.heappush(events, (line_free, next(number), end))

    def end(now: float) -> None:
        nonlocal moved
        moved += request
        link.ended(request, sent_s=0.0)
        while link.in_flight < link.window:
            send(now)

    while link.in_flight < link.window:
        send(0.0)
    half = 0
    while events[0][0] < seconds:
        now, _, event = heapq.heappop(events)
        event(now)
        if now < seconds / 2:
            half = moved
    return (moved - half) / (bytes_per_s * seconds / 2)


@pytest.mark.parametrize(
    ("rtt_s", "bytes_per_s", "length", "window"),
    [
        pytest.param(0.1, 125e6, MIB, (20, 32), id="1-gbit-100-ms"),
        pytest.param(0.1, 1.25e9, 8 * MIB, (24, 48), id="10-gbit-100-ms"),
        pytest.param(0.01, 125e6, MIB, (2, 8), id="1-gbit-10-ms"),
        pytest.param(0.2, 12.5e6, MIB, (4, 9), id="100-mbit-200-ms"),
    ],
)
def test_the_window_grows_to_what_fills_the_line_and_not_much_beyond(
    rtt_s: float, bytes_per_s: float, length: int, window: tuple[int, int]
) -> None:
    link = Link(BOUNDS)
    used = run_line(link, rtt_s=rtt_s, bytes_per_s=bytes_per_s, request=length, seconds=30)
    assert used >= 0.95
    assert window[0] <= link.window <= window[1]
    assert link.ttfb_s == pytest.approx(rtt_s, rel=0.15)
    assert link.bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)


def test_the_window_holds_three_lines_at_most_before_the_rate_was_looked_at() -> None:
    link = Link(BOUNDS)
    for _ in range(BOUNDS.window_start):
        link.sent(0.0)
    link.first_byte(0.1)
    for _ in range(100):
        link.ended(1_250_000, sent_s=0.0)
        link.sent(0.1)
    assert link.window == 1 + 24  # 3 * 0.1 s of the 100 MB/s that are believed at first


def test_the_window_never_leaves_its_bounds_on_a_line_without_end() -> None:
    link = Link(BOUNDS)
    run_line(link, rtt_s=0.2, bytes_per_s=1e11, request=MIB, seconds=20)
    assert link.window == BOUNDS.window_max


def test_a_site_that_asks_for_less_halves_the_window_and_gets_more_again_bit_by_bit() -> None:
    link = Link(BOUNDS)
    run_line(link, rtt_s=0.1, bytes_per_s=1.25e9, request=2 * MIB, seconds=20)
    before = link.window
    assert before == BOUNDS.window_max
    link.failed(20.0, throttled=True)
    assert link.window == before // 2
    link.failed(20.01, throttled=True)
    assert link.window == before // 2  # the same window's requests: one reason, one answer
    link.failed(20.2, throttled=True)
    assert link.window == before // 4
    for look in range(5):
        link.received(30.0 + look, 0)
    assert before // 4 <= link.window <= before // 4 + 6


def test_other_failures_take_a_fifth() -> None:
    link = Link(Bounds(window_start=20))
    link.sent(0.0)
    link.failed(1.0, throttled=False)
    assert link.window == 16


def test_the_window_is_never_below_its_minimum() -> None:
    link = Link(BOUNDS)
    for second in range(50):
        link.sent(float(second))
        link.failed(float(second), throttled=True)
    assert link.window == BOUNDS.window_min


def failing_link() -> Link:
    """Return a link whose requests failed at 0 s."""
    link = Link(BOUNDS)
    for _ in range(FAILING_AFTER):
        assert not link.is_failing(0.0)
        link.sent(0.0)
        link.failed(0.0, throttled=False)
    assert link.is_failing(0.0)
    return link


def test_a_failing_site_is_tried_again_by_one_request_after_a_rest_and_well_when_that_ends_well() -> None:
    link = failing_link()
    assert link.is_failing(FAILING_REST_S - 1)
    assert not link.is_failing(FAILING_REST_S)
    link.sent(FAILING_REST_S)
    assert link.is_failing(FAILING_REST_S)
    link.received(FAILING_REST_S + 1, 1)
    assert link.is_failing(FAILING_REST_S + 1)  # bytes came before it fell silent, too
    link.ended(1, sent_s=FAILING_REST_S)
    assert not link.is_failing(FAILING_REST_S + 1)


def test_a_request_from_before_the_rest_does_not_make_a_failing_site_well() -> None:
    link = failing_link()
    link.sent(1.0)
    link.ended(1, sent_s=1.0)
    assert link.is_failing(2.0)


def test_two_failures_are_forgotten_at_the_next_success() -> None:
    link = Link(BOUNDS)
    for _ in range(2):
        for _ in range(FAILING_AFTER - 1):
            link.sent(0.0)
            link.failed(0.0, throttled=False)
        link.sent(0.0)
        link.ended(1, sent_s=0.0)
    assert not link.is_failing(0.0)


def test_a_site_that_falls_silent_fails_at_once() -> None:
    link = Link(BOUNDS)
    link.sent(0.0)
    link.failed(10.0, throttled=False, stalled=True)
    assert link.is_failing(10.0)


def test_what_is_in_flight_makes_the_next_answer_later() -> None:
    link = Link(BOUNDS)
    assert link.expected_s(1000) is None
    link.hinted(0.1)
    idle_s = link.expected_s(1000)
    assert idle_s == 0.1 + 1000 / BOUNDS.bytes_per_s
    for _ in range(link.window):
        link.sent(0.0)
    assert link.expected_s(1000) == 0.1 + idle_s
    link.first_byte(0.2)
    link.hinted(0.1)
    assert link.ttfb_s == 0.2


def test_a_request_is_late_after_the_95th_percentile_of_the_delay_once_enough_are_known() -> None:
    link = Link(BOUNDS)
    for sample in range(HEDGE_SAMPLES_MIN - 1):
        link.first_byte(0.1)
        assert link.hedge_after_s is None, sample
    link.first_byte(0.5)
    assert link.hedge_after_s == 0.5
    for _ in range(20):
        link.first_byte(0.1)
    assert link.hedge_after_s == 0.1


def test_a_deadline_leaves_time_for_a_slow_line_and_not_for_a_trickle() -> None:
    link = Link(BOUNDS)
    assert link.deadline_s(0) == BOUNDS.stall_s
    run_line(link, rtt_s=0.1, bytes_per_s=125e6, request=MIB, seconds=20)
    assert BOUNDS.stall_s + 1 < link.deadline_s(8 * MIB) < BOUNDS.stall_s + 60


def test_an_idle_line_keeps_what_it_knows() -> None:
    link = Link(BOUNDS)
    run_line(link, rtt_s=0.1, bytes_per_s=125e6, request=MIB, seconds=20)
    window, rate = link.window, link.bytes_per_s
    while link.in_flight:
        link.ended(MIB, sent_s=0.0)
    for second in range(100, 130):  # one small request at a time says nothing about the line
        link.sent(float(second))
        link.first_byte(0.1)
        link.received(second + 0.3, 4096)
        link.ended(MIB, sent_s=0.0)
    assert abs(link.window - window) <= 1
    assert link.bytes_per_s == rate


def test_facts_for_people_name_what_the_window_follows_from() -> None:
    seen = Link(BOUNDS).seen()
    assert (seen.window, seen.in_flight, seen.ttfb_s_p95, seen.failures_in_a_row) == (16, 0, None, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "first", "got", "ended", "cancelled", "failed", "throttled"]), st.floats(0, 5)),
        max_size=200,
    )
)
def test_whatever_happens_the_window_stays_in_its_bounds(events: list[tuple[str, float]]) -> None:
    link, now = Link(BOUNDS), 0.0
    for event, step in events:
        now += step
        if event == "sent":
            link.sent(now)
        elif event == "first":
            link.first_byte(step)
        elif event == "got":
            link.received(now, int(step * 1e6))
        elif link.in_flight:
            match event:
                case "ended":
                    link.ended(MIB, sent_s=0.0)
                case "cancelled":
                    link.cancelled()
                case _:
                    link.failed(now, throttled=event == "throttled")
        assert BOUNDS.window_min <= link.window <= BOUNDS.window_max
        assert link.in_flight >= 0
        assert link.pace.bytes_per_s >= 0
