"""What is fetched ahead of which reads: `vfs/extents/readahead.py`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.layout import BLOCK
from vfs.extents.readahead import Readahead

KIB, MIB = 1 << 10, 1 << 20
SIZE = 1 << 30


def readahead(size: int = SIZE, window_min: int = MIB, window_max: int = 16 * MIB) -> Readahead:
    return Readahead(size, window_min=window_min, window_max=window_max)


def covered(ranges: list[tuple[int, int]]) -> set[int]:
    """Return the blocks of the ranges."""
    return {block for offset, length in ranges for block in range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)}


def run(ahead: Readahead, reads: list[tuple[int, int]]) -> tuple[int, int]:
    """Read; return (reads whose every block was prefetched before, bytes prefetched)."""
    here: set[int] = set()
    hits = 0
    for offset, length in reads:
        hits += covered([(offset, length)]) <= here
        here |= covered(ahead.read(offset, length))
    return hits, ahead.prefetched_bytes


# Sequential


def test_one_read_predicts_nothing_and_the_second_as_much_as_was_read() -> None:
    ahead = readahead()
    assert ahead.read(0, MIB) == []
    assert ahead.read(MIB, MIB) == [(2 * MIB, MIB)]


def test_a_read_of_the_first_half_of_a_file_brings_the_rest() -> None:
    assert readahead(size=256 * KIB).read(0, 128 * KIB) == [(0, 256 * KIB)]
    assert readahead(size=156_256).read(0, 128 * KIB) == [(0, 156_256)]


@pytest.mark.parametrize("read", [(0, 64 * KIB), (128 * KIB, 128 * KIB)], ids=["less than half", "the second half"])
def test_another_read_of_a_small_file_brings_itself_alone(read: tuple[int, int]) -> None:
    assert readahead(size=256 * KIB).read(*read) == []


def test_the_window_doubles_up_to_its_limit_and_never_beyond_what_was_read() -> None:
    ahead = readahead(window_max=8 * MIB)
    windows = []
    for start in range(24):
        ahead.read(start * MIB, MIB)
        windows.append(ahead.window // MIB)
    assert windows[:5] == [0, 1, 2, 4, 4]
    assert max(windows) == 8
    assert all(window <= start + 1 for start, window in enumerate(windows))


def test_reads_of_the_middle_of_what_went_along_tell_nothing_new() -> None:
    """The kernel had sent them before it had those pages."""
    step = 64 * KIB
    ahead = readahead()
    for start in range(16):
        ahead.read(start * step, step)
    ahead.read(MIB, MIB)
    window = ahead.window
    assert window > 0
    assert ahead.read(MIB + 2 * step, step) == []
    ahead.read(2 * MIB, step)
    assert ahead.read(MIB + 4 * step, step) == []
    assert ahead.window >= window
    assert ahead.facts().streams == 1


def test_a_sequential_reader_finds_nearly_everything_prefetched_and_nothing_past_the_end() -> None:
    ahead = readahead(64 * MIB)
    hits, prefetched = run(ahead, [(start * MIB, MIB) for start in range(64)])
    assert hits == 62
    assert prefetched == 62 * MIB
    assert ahead.unread_bytes == 0
    assert not ahead.is_off


def test_reads_that_the_kernel_sends_out_of_order_are_one_stream() -> None:
    ahead = readahead(64 * MIB)
    order = [start + swap for start in range(0, 64, 2) for swap in (1, 0)]
    hits, _ = run(ahead, [(start * MIB, MIB) for start in order])
    assert hits >= 56
    assert ahead.unread_bytes <= 4 * MIB


def test_a_block_read_again_and_again_predicts_nothing() -> None:
    ahead = readahead()
    assert [ahead.read(0, 4096) for _ in range(20)] == [[]] * 20


@pytest.mark.parametrize("readers", [2, 4, 8])
def test_readers_that_take_turns_on_one_handle_are_told_apart(readers: int) -> None:
    ahead = readahead()
    part = 128 * MIB
    reads = [(reader * part + step * MIB, MIB) for step in range(32) for reader in range(readers)]
    hits, _ = run(ahead, reads)
    assert hits >= readers * 26
    assert ahead.unread_bytes <= readers * 16 * MIB
    assert not ahead.is_off


def test_readers_that_take_turns_at_random_are_told_apart() -> None:
    chance = random.Random(3)
    ahead = readahead()
    at = [reader * 128 * MIB for reader in range(4)]
    reads = []
    for _ in range(160):
        reader = chance.randrange(4)
        reads.append((at[reader], MIB))
        at[reader] += MIB
    hits, _ = run(ahead, reads)
    assert hits >= 144


# Strided


@pytest.mark.parametrize("stride", [MIB, 10 * MIB, -MIB, 3 * MIB + 4096], ids=["near", "far", "backward", "crooked"])
def test_reads_at_a_constant_distance_are_predicted_and_nothing_between_them(stride: int) -> None:
    ahead = readahead()
    first = SIZE - MIB if stride < 0 else 0
    reads = [(first + step * stride, 128 * KIB) for step in range(60)]
    hits, prefetched = run(ahead, reads)
    assert hits >= 54
    assert prefetched <= 60 * 3 * BLOCK + 16 * MIB


def test_a_file_read_backward_without_holes_is_predicted() -> None:
    ahead = readahead(64 * MIB)
    hits, _ = run(ahead, [(start * MIB, MIB) for start in reversed(range(64))])
    assert hits >= 58


# Runs


def test_random_runs_of_equal_length_are_fetched_to_their_end_and_not_beyond() -> None:
    chance = random.Random(1)
    ahead = readahead()
    starts = [place * 16 * MIB for place in range(40)]
    chance.shuffle(starts)
    for start in starts[:8]:
        run(ahead, [(start + step * MIB, MIB) for step in range(4)])
    before = ahead.prefetched_bytes
    for start in starts[8:]:
        assert ahead.read(start, MIB) == [(start, 4 * MIB)]
        assert [ahead.read(start + step * MIB, MIB) for step in (1, 2, 3)] == [[], [], []]
    assert ahead.prefetched_bytes - before == 32 * 3 * MIB


def test_a_run_is_long_from_8_mib_without_a_hole_on_and_the_next_one_is_not() -> None:
    ahead = readahead()
    found = []
    for start in (*range(9), 100):
        ahead.read(start * MIB, MIB)
        found.append(ahead.runs_long)
    assert found == [False] * 7 + [True] * 2 + [False]


# Random access


def test_random_small_reads_have_no_window_and_prefetch_nothing() -> None:
    chance = random.Random(2)
    ahead = readahead()
    hits, prefetched = run(ahead, [(chance.randrange(SIZE // 4096) * 4096, 4096) for _ in range(2000)])
    assert hits <= 5
    assert prefetched <= 2 * MIB
    assert ahead.window == 0


def test_a_reader_that_turns_to_random_access_loses_its_window() -> None:
    chance = random.Random(2)
    ahead = readahead()
    run(ahead, [(start * MIB, MIB) for start in range(32)])
    assert ahead.window > 0
    run(ahead, [(chance.randrange(SIZE // 4096) * 4096, 4096) for _ in range(40)])
    assert ahead.window == 0


def test_a_handle_whose_prefetches_are_not_read_is_left_alone() -> None:
    """Two reads and a jump, to a place further away each time and of changing length: every prediction is wrong."""
    ahead = readahead()
    start = 0
    for number in range(60):
        length = (1 + number % 7) * MIB
        ahead.read(start, length)
        ahead.read(start + length, length)
        start += 20 * MIB + number * number * 4096
    assert ahead.is_off
    assert ahead.prefetched_bytes <= 80 * MIB  # no more than the first streams have read, and half of what came after
    assert ahead.unread_bytes == ahead.prefetched_bytes
    assert ahead.read(start, MIB) == []
    assert ahead.facts().off


def test_unread_bytes_are_those_prefetched_and_never_read() -> None:
    ahead = readahead()
    ahead.read(0, MIB)
    ahead.read(MIB, MIB)
    assert (ahead.prefetched_bytes, ahead.unread_bytes) == (MIB, MIB)
    ahead.read(2 * MIB, 512 * KIB)
    facts = ahead.facts()
    assert facts.prefetched - facts.unread >= 512 * KIB


def test_an_empty_file_and_reads_past_the_end_predict_nothing() -> None:
    ahead = readahead(0)
    assert ahead.read(0, 10) == []
    assert readahead(100).read(100, 10) == []
    assert readahead(100).read(200, 10) == []


@given(
    reads=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=80),
    size=st.integers(1, 256 * 16 * KIB),
)
def test_whatever_is_read_predictions_lie_in_the_file_and_are_made_once(reads: list[tuple[int, int]], size: int) -> None:
    ahead = readahead(size, window_min=BLOCK, window_max=8 * BLOCK)
    outstanding: set[int] = set()
    for place, length in reads:
        offset, length = place * 16 * KIB, length * 4 * KIB
        ranges = ahead.read(offset, length)
        if offset < size:
            outstanding -= covered([(offset, min(length, size - offset))])
        for start, count in ranges:
            assert count > 0
            assert start >= 0 and start + count <= size
        new = covered(ranges)
        outstanding |= new
        assert ahead.unread_bytes >= 0
        assert ahead.window <= size + 8 * BLOCK
    assert ahead.unread_bytes <= ahead.prefetched_bytes
    assert {block * BLOCK for block in outstanding} >= {block * BLOCK for block in ahead._unread}
