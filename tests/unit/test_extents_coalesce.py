"""Which requests bring the wanted blocks: `vfs/extents/coalesce.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.coalesce import Knobs, Pace, Request, coalesce, common, knobs, within_reach
from vfs.extents.layout import BLOCK

MIB = 1 << 20
PACE = Pace(0.1, 125e6, 16)


def rule(gap: int = 4, size: int = 100, waste: float = 10.0) -> Knobs:
    return Knobs(PACE, gap, size, waste)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([range(3, 4)], [Request(range(3, 4), 0)], id="one-block"),
        pytest.param([range(2), range(2, 5)], [Request(range(5), 0)], id="neighbours-are-one"),
        pytest.param([range(4), range(2, 6), range(3, 4)], [Request(range(6), 0)], id="overlaps-are-one"),
        pytest.param([range(1), range(4, 5)], [Request(range(5), 3)], id="a-gap-below-the-limit-is-bridged"),
        pytest.param([range(1), range(5, 6)], [Request(range(6), 4)], id="a-gap-equal-to-the-limit-is-bridged"),
        pytest.param([range(1), range(6, 7)], [Request(range(1), 0), Request(range(6, 7), 0)], id="one-above-is-not"),
        pytest.param(
            [range(9, 10), range(1)], [Request(range(9, 10), 0), Request(range(1), 0)], id="needed-first-comes-first"
        ),
        pytest.param([range(3, 4), range(1)], [Request(range(4), 2)], id="order-does-not-keep-apart"),
    ],
)
def test_near_blocks_are_asked_for_at_once(wanted: list[range], expected: list[Request]) -> None:
    assert coalesce(wanted, rule()) == expected


def test_long_runs_are_cut_and_keep_their_order() -> None:
    assert coalesce([range(25)], rule(size=10)) == [
        Request(range(10), 0),
        Request(range(10, 20), 0),
        Request(range(20, 25), 0),
    ]


def test_a_reader_that_goes_backward_gets_the_parts_backward() -> None:
    wanted = [range(start, start + 10) for start in (20, 10, 0)]
    assert [request.blocks.start for request in coalesce(wanted, rule(size=10))] == [20, 10, 0]


def test_a_cut_does_not_begin_or_end_with_a_gap() -> None:
    assert coalesce([range(9), range(12, 20)], rule(size=10)) == [
        Request(range(9), 0),
        Request(range(12, 20), 0),
    ]


def test_gaps_are_bridged_only_while_the_waste_is_worth_it() -> None:
    assert coalesce([range(10), range(11, 21)], rule(waste=0.05)) == [Request(range(21), 1)]
    assert coalesce([range(10), range(12, 22)], rule(waste=0.05)) == [
        Request(range(10), 0),
        Request(range(12, 22), 0),
    ]


def test_without_waste_nothing_is_bridged() -> None:
    assert len(coalesce([range(1), range(2, 3)], rule(waste=0.0))) == 2


@pytest.mark.parametrize(
    ("pace", "gap_blocks", "request_bytes"),
    [
        pytest.param(Pace(0.1, 125e6, 16), 11, 125e6 / 64, id="1-gbit-100-ms"),
        pytest.param(Pace(0.1, 1.25e9, 16), 119, 8 * MIB, id="10-gbit-100-ms"),
        pytest.param(Pace(0.1, 1.25e9, 64), 29, 8 * MIB, id="10-gbit-100-ms-wide-window"),
        pytest.param(Pace(0.001, 125e6, 8), 0, 125e6 / 64, id="1-gbit-1-ms"),
        pytest.param(Pace(0.0002, 2e9, 8), 0, 8 * MIB, id="loopback"),
    ],
)
def test_gap_and_size_follow_from_the_line(pace: Pace, gap_blocks: int, request_bytes: float) -> None:
    found = knobs(pace, request_bytes_min=MIB, request_bytes_max=8 * MIB, waste_max=0.1)
    assert found.gap_blocks == gap_blocks
    assert found.request_blocks == round(request_bytes / BLOCK)
    assert found.pace == pace


RANGES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 30)).map(lambda pair: range(pair[0], pair[0] + pair[1])), max_size=25
)
RULES = st.builds(Knobs, st.just(PACE), st.integers(0, 20), st.integers(1, 50), st.sampled_from([0.0, 0.1, 0.5, 2.0]))


@given(wanted=RANGES, knob=RULES)
def test_everything_wanted_comes_once_and_waste_stays_below_the_rule(wanted: list[range], knob: Knobs) -> None:
    requests = coalesce(wanted, knob)
    blocks = {block for run in wanted for block in run}
    fetched = [block for request in requests for block in request.blocks]
    assert blocks <= set(fetched)
    assert len(fetched) == len(set(fetched))
    assert all(0 < len(request.blocks) <= knob.request_blocks for request in requests)
    assert all(request.blocks.start in blocks and request.blocks[-1] in blocks for request in requests)
    assert all(request.wasted == len(set(request.blocks) - blocks) for request in requests)
    assert sum(request.wasted for request in requests) <= knob.waste_max * len(blocks) + 1e-9
    gap = 0
    for block in sorted(set(fetched)):
        gap = 0 if block in blocks else gap + 1
        assert gap <= knob.gap_blocks


@given(wanted=RANGES, knob=RULES)
def test_requests_come_in_the_order_in_which_their_first_block_is_needed(wanted: list[range], knob: Knobs) -> None:
    first_needed = [
        min(rank for rank, run in enumerate(wanted) if set(run) & set(request.blocks)) for request in coalesce(wanted, knob)
    ]
    assert first_needed == sorted(first_needed)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(1, [range(2), range(3, 5), range(9, 10)]), (2, [range(5), range(9, 10)]), (5, [range(10)])],
)
def test_ranges_with_a_gap_below_the_limit_are_within_reach(gap: int, expected: list[range]) -> None:
    assert within_reach([range(9, 10), range(3, 5), range(2), range(1)], gap) == expected


@pytest.mark.parametrize(
    ("wanted", "runs", "expected"),
    [
        pytest.param(
            [range(8, 12), range(4)], [range(1, 3), range(10, 20)], [range(10, 12), range(1, 3)], id="in-their-order"
        ),
        pytest.param([range(10)], [range(2), range(4, 6), range(9, 12)], [range(2), range(4, 6), range(9, 10)], id="cut"),
        pytest.param([range(3, 5)], [range(3), range(5, 9)], [], id="touching-is-not-common"),
    ],
)
def test_what_ranges_have_in_common_with_runs(wanted: list[range], runs: list[range], expected: list[range]) -> None:
    assert common(wanted, runs) == expected
