"""Shares of a line by weight, with a simulated clock: `vfs/extents/fair.py`."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.extents.fair import WEIGHTS, FairOrder, Priority, TokenBucket

MIB = 1 << 20


def served(flows: dict[str, tuple[float, list[float]]], until: float) -> Counter[str]:
    """Return what each of flows that always want more was served when the line had carried `until` in all.

    Args:
        flows: by name, weight and the costs of its claims, over and over.
    """
    order, line = FairOrder(), list[tuple[float, str, int, float]]()
    for name, (weight, costs) in flows.items():
        heapq.heappush(line, (order.stamp(name, costs[0], weight), name, 0, costs[0]))
    found: Counter[str] = Counter()
    while found.total() < until:
        stamp, name, index, cost = heapq.heappop(line)
        order.served(stamp)
        found[name] += cost  # type: ignore[assignment]
        weight, costs = flows[name]
        following = costs[(index + 1) % len(costs)]
        heapq.heappush(line, (order.stamp(name, following, weight), name, index + 1, following))
    return found


weights = st.floats(1, 64)
claims = st.lists(st.floats(1, 8), min_size=1, max_size=5)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.tuples(weights, claims), min_size=2, max_size=6))
def test_flows_that_always_want_more_are_served_by_weight_and_none_starves(
    flows: dict[str, tuple[float, list[float]]],
) -> None:
    whole = sum(weight for weight, _ in flows.values())
    least = min(weight for weight, _ in flows.values())
    until = 20 * 8 * whole / least
    found = served(flows, until)
    for name, (weight, _) in flows.items():
        assert found[name] >= until * weight / whole - 2 * 8 * len(flows), name


def test_an_urgent_copy_has_nearly_all_of_a_line_that_background_wants() -> None:
    flows = {kind.name: (WEIGHTS[kind], [8.0]) for kind in (Priority.URGENT, Priority.BACKGROUND)}
    found = served(flows, 8000)
    assert found["URGENT"] / 8000 == pytest.approx(16 / 17, abs=0.01)


def test_a_claim_of_a_heavy_flow_goes_before_a_light_one_that_is_owed_nothing() -> None:
    order = FairOrder()
    background = order.stamp("background", 8 * MIB, 1)
    assert order.stamp("foreground", 8 * MIB, 64) < background


def test_a_flow_that_was_silent_has_saved_nothing_up() -> None:
    order = FairOrder()
    for _ in range(100):
        order.served(order.stamp("busy", 1, 1))
    assert order.stamp("late", 1, 1) == order.stamp("busy", 1, 1)


@settings(deadline=None)
@given(
    st.floats(1e6, 1e9),
    st.lists(st.tuples(st.floats(0, 0.5), st.floats(1, 8 * MIB)), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_a_bucket_never_lets_more_through_than_rate_and_burst_and_one_claim(
    rate: float, claims: list[tuple[float, float]], burst_s: float
) -> None:
    bucket, now_s, passed = TokenBucket(rate, rate * burst_s), 0.0, 0.0
    for pause_s, amount in claims:
        now_s += pause_s
        now_s += bucket.wait_s(now_s)
        assert passed <= rate * (now_s + burst_s) * (1 + 1e-9) + 1
        bucket.take(amount, now_s)
        passed += amount


@pytest.mark.parametrize("rate", [1e6, 1.25e8])
def test_a_bucket_that_is_always_asked_passes_its_whole_rate(rate: float) -> None:
    bucket, now_s = TokenBucket(rate, rate * 0.05), 0.0
    for _ in range(1000):
        now_s += bucket.wait_s(now_s)
        bucket.take(MIB, now_s)
    assert 1000 * MIB / rate == pytest.approx(now_s, rel=0.01, abs=MIB / rate + 0.06)


def test_a_bucket_without_a_rate_never_waits() -> None:
    bucket = TokenBucket()
    for _ in range(10):
        bucket.take(1e12, 0.0)
        assert bucket.wait_s(0.0) == 0.0


def test_a_new_rate_holds_at_once_and_debts_stay() -> None:
    bucket = TokenBucket(1000, 0)
    bucket.take(1000, 0.0)
    assert bucket.wait_s(0.0) == 1.0
    bucket.set_rate(500, 0, 0.5)
    assert bucket.wait_s(0.5) == 1.0
    bucket.set_rate(math.inf, 0, 0.5)
    assert bucket.wait_s(0.5) == 0.0
