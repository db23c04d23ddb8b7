"""Shares of a line by weight, with a simulated clock: `vfs/extents/fair.py`."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.extents.fair import WEIGHTS, FairOrder, Priority

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
