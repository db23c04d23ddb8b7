"""The model of a start-up storm: `tests/bench/storm_model.py`."""

from __future__ import annotations

import pytest

from tests.bench.storm_model import (
    PAPER_FEW,
    PAPER_MANY,
    PAPER_READERS,
    Storm,
    calibrated,
    hinted,
    paper_storm,
    served,
    simulate,
)


@pytest.mark.parametrize(
    ("arrivals", "ends"),
    [
        ([0.0], [10.0]),
        ([0.0, 0.0], [20.0, 20.0]),
        ([0.0, 5.0], [15.0, 20.0]),
        ([0.0, 100.0], [10.0, 110.0]),
        ([], []),
    ],
    ids=["alone", "together", "one after the other", "far apart", "nobody"],
)
def test_readers_of_one_copy_share_its_rate(arrivals: list[float], ends: list[float]) -> None:
    assert served(arrivals, size=100.0, rate=10.0, line=float("inf")) == pytest.approx(ends)


def test_a_reader_takes_no_more_than_its_line() -> None:
    assert served([0.0], size=100.0, rate=10.0, line=5.0) == pytest.approx([20.0])


def test_the_model_gives_the_measurements_that_it_was_calibrated_with() -> None:
    for copies, seconds in (PAPER_FEW, PAPER_MANY):
        assert simulate(paper_storm(PAPER_READERS, copies)).last_s == pytest.approx(seconds, rel=1e-6)
    assert calibrated().before_s > 0


def test_bytes_are_neither_lost_nor_made() -> None:
    found = simulate(Storm(readers=64, copies=4, hot_bytes=1e6, rate=1e6))
    assert (found.last_s, found.median_s) == pytest.approx((16.0, 16.0))


@pytest.mark.parametrize(("readers", "copies"), [(2048, 14), (20_000, 129)])
def test_hints_ask_for_as_many_copies_as_the_paper_advises(readers: int, copies: int) -> None:
    assert hinted(readers) == copies
