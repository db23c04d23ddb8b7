"""How many readers a copy bears, by what was measured: `vfs/foresight/bearing.py`."""

from __future__ import annotations

import pytest

from vfs.foresight.bearing import KEPT_S, READER_RATE, Bearing, Loads, read, written


def served(*times: tuple[int, float, float]) -> Loads:
    """Return the loads after some readers had so many bytes a second each for some seconds, one time after another."""
    loads, now_s = Loads(), 100.0
    for readers, rate_each, seconds in times:
        loads.changed(readers, now_s)
        loads.sent(int(readers * rate_each * seconds))
        now_s += seconds
    loads.changed(0, now_s)
    return loads


@pytest.mark.parametrize(
    ("times", "bearing"),
    [
        ([], None),
        ([(1, 1e9, 0.1)], None),
        ([(1, 1e9, 10)], Bearing(1, is_limit=False)),
        ([(1, 1e9, 10), (100, READER_RATE, 10)], Bearing(100, is_limit=False)),
        ([(1, 1e9, 10), (200, READER_RATE / 2, 10)], Bearing(125, is_limit=True)),
        ([(1, 1e8, 10), (64, 1e8 / 64, 10)], Bearing(12, is_limit=True)),
        ([(1, 4e6, 10), (8, 1e6, 10)], Bearing(4, is_limit=True)),
        ([(4, 1e6, 10)], Bearing(4, is_limit=False)),
    ],
    ids=[
        "nobody read", "too short", "one alone", "all have enough", "a gigabyte a second is 125 readers",
        "a line of 100 MB/s", "a slow line: half of what one gets alone", "never alone and never crowded",
    ],
)  # fmt: skip
def test_a_copy_bears_as_many_as_still_get_enough(times: list[tuple[int, float, float]], bearing: Bearing | None) -> None:
    assert served(*times).bearing() == bearing


def test_what_was_measured_long_ago_weighs_less_and_less() -> None:
    slow, fast = (64, 1e6, 100.0), (64, 8e6, 100.0)
    loads = served((1, 1e9, 1.0), slow, *[fast] * int(8 * KEPT_S / 100))
    measured = loads.bearing()
    assert measured is not None
    assert measured.readers >= 60


@pytest.mark.parametrize(("stated", "reckoned"), [(156, 156), (8, 12)])
def test_a_lower_bound_leaves_a_larger_stated_number_and_a_limit_does_not(stated: int, reckoned: int) -> None:
    assert Bearing(12, is_limit=False).beside(stated) == reckoned
    assert Bearing(12, is_limit=True).beside(stated) == 12


@pytest.mark.parametrize("bearing", [Bearing(12, is_limit=True), Bearing(3, is_limit=False)])
def test_a_header_says_what_was_measured(bearing: Bearing) -> None:
    assert read(written(bearing)) == bearing


@pytest.mark.parametrize("text", ["", "many", "-1", "0", ">=", "1.5", "9" * 20])
def test_a_header_that_makes_no_sense_says_nothing(text: str) -> None:
    assert read(text) is None
