"""How many copies, where, and who asks which: `vfs/foresight/spread.py`."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.foresight.spread import Spot, chosen, copies_needed, even_order, order, shares
from vfs.model import SiteName

names = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@pytest.mark.parametrize(
    ("readers", "bears", "count"),
    [(0, 156, 0), (1, 156, 1), (156, 156, 1), (157, 156, 2), (10_000, 156, 65), (20_000, 157, 128)],
)
def test_as_many_copies_as_the_crowd_needs(readers: int, bears: int, count: int) -> None:
    assert copies_needed(readers, bears) == count


def test_copies_go_to_different_racks_first_and_to_different_uplinks_next() -> None:
    spots = [
        Spot(SiteName("a1"), "a", "up1"),
        Spot(SiteName("a2"), "a", "up2"),
        Spot(SiteName("b1"), "b", "up1"),
        Spot(SiteName("c1"), "c", "up2"),
    ]
    assert [spot.site for spot in chosen(3 * 156, spots)] == ["a1", "c1", "b1"]


def test_places_that_bear_more_need_fewer_copies_and_all_there_are_is_all_there_are() -> None:
    spots = [Spot(SiteName("big"), bears=400), Spot(SiteName("small"), bears=100)]
    assert [spot.site for spot in chosen(400, spots)] == ["big"]
    assert len(chosen(10_000, spots)) == 2
    assert chosen(0, spots) == []


@settings(max_examples=40, deadline=None)
@given(names, st.text(max_size=5))
def test_every_reader_has_all_copies_in_its_order(copies: list[str], reader: str) -> None:
    assert sorted(order(reader, "file", copies)) == list(range(len(copies)))


@settings(max_examples=40, deadline=None)
@given(names, st.text(max_size=5))
def test_the_order_does_not_depend_on_how_the_copies_are_listed(copies: list[str], reader: str) -> None:
    there = [copies[index] for index in order(reader, "file", copies)]
    back = copies[::-1]
    assert [back[index] for index in order(reader, "file", back)] == there


@settings(max_examples=40, deadline=None)
@given(names, st.text(max_size=5))
def test_a_copy_that_is_lost_moves_only_its_own_readers(copies: list[str], reader: str) -> None:
    before = [copies[index] for index in order(reader, "file", copies)]
    left = [copy for copy in copies if copy != before[0]]
    assert [left[index] for index in order(reader, "file", left)] == before[1:]


@pytest.mark.parametrize(("count", "copies"), [(64, 13), (256, 14), (2048, 14), (5, 9), (1, 1)])
def test_first_choices_are_even(count: int, copies: int) -> None:
    found = Counter(shares(count, "file", [f"node-{index}" for index in range(copies)]).tolist())
    assert max(found.values()) <= -(-count // copies)


def test_every_reader_works_out_the_same_shares() -> None:
    copies = ["x", "y", "z"]
    assert [even_order(place, 9, "file", copies)[0] for place in range(9)] == shares(9, "file", copies).tolist()


def test_different_files_are_spread_differently() -> None:
    copies = [f"node-{index}" for index in range(8)]
    assert shares(64, "one", copies).tolist() != shares(64, "another", copies).tolist()


def test_a_reader_whose_number_is_not_known_goes_by_its_name() -> None:
    copies = ["x", "y", "z"]
    assert even_order(-1, 0, "file", copies) == order("-1", "file", copies)
