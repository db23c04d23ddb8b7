"""What passes in a second, with a simulated clock: `vfs/rates.py`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.rates import Callers, TokenBucket

MIB = 1 << 20


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


def test_a_claim_is_due_when_the_time_has_passed_that_it_was_told_to_wait() -> None:
    for now_s in (0.1, 1e3 / 3, 1e6 / 7):
        bucket = TokenBucket(3e8, 0)
        bucket.take(MIB / 3, now_s)
        assert bucket.wait_s(now_s + bucket.wait_s(now_s)) == 0.0


def test_a_new_rate_holds_at_once_and_debts_stay() -> None:
    bucket = TokenBucket(1000, 0)
    bucket.take(1000, 0.0)
    assert bucket.wait_s(0.0) == 1.0
    bucket.set_rate(500, 0, 0.5)
    assert bucket.wait_s(0.5) == 1.0
    bucket.set_rate(math.inf, 0, 0.5)
    assert bucket.wait_s(0.5) == 0.0


def test_caller_has_a_burst_and_then_the_rate() -> None:
    callers = Callers(rate=2.0, burst=3.0)
    assert [callers.wait_s("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert callers.wait_s("a", 0.5) == 0.0
    assert callers.wait_s("a", 0.5) == 0.5
    assert [callers.wait_s("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_one_caller_does_not_use_up_anothers_requests() -> None:
    callers = Callers(rate=1.0, burst=1.0)
    assert callers.wait_s("a", 0.0) == 0.0
    assert callers.wait_s("a", 0.0) > 0.0
    assert callers.wait_s("b", 0.0) == 0.0
