"""Fetching all of a file ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.whole import Whole


def test_file_below_the_window_is_fetched_at_once() -> None:
    whole = Whole(1000, window_bytes=1000)
    assert whole.begin() == [(0, 1000)]
    assert whole.read(1000) == []


def test_larger_file_stays_a_window_ahead_of_what_was_read() -> None:
    whole = Whole(1000, window_bytes=400)
    assert whole.begin() == [(0, 400)]
    assert whole.read(99) == []  # less than a quarter of the window
    assert whole.read(1) == [(400, 100)]
    assert whole.read(500) == [(500, 500)]
    assert whole.read(400) == []


def test_rest_of_the_file_is_asked_for_however_small() -> None:
    whole = Whole(1001, window_bytes=1000)
    whole.begin()
    assert whole.read(10) == [(1000, 1)]


@given(st.integers(1, 10_000), st.integers(1, 2000), st.lists(st.integers(1, 500), max_size=40))
def test_what_is_handed_out_is_contiguous_and_never_further_ahead_than_the_window(
    size: int, window: int, reads: list[int]
) -> None:
    whole, end, read = Whole(size, window_bytes=window), 0, 0
    for ranges in [whole.begin(), *map(whole.read, reads)]:
        for offset, length in ranges:
            assert offset == end
            assert length > 0
            end += length
        assert end <= size
    read = sum(reads)
    assert whole.prefetched_bytes == end <= max(window, read + window)
    assert end >= min(size, read + window - window // 4)
