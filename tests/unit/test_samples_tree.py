"""Names below `.jobs`: `vfs/samples/tree.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.samples import tree
from vfs.samples.tree import ByIdPlace, IdPlace, JobPlace, RankPlace, Root, SlotPlace, StepPlace

PLACES = [
    ("", Root()),
    ("run7", JobPlace("run7")),
    ("run7/.raw", JobPlace("run7", raw=True)),
    ("run7/step_0000012", StepPlace("run7", 12)),
    ("run7/.raw/step_0000012", StepPlace("run7", 12, raw=True)),
    ("run7/step_0000012/rank_0003", RankPlace("run7", 12, 3)),
    ("run7/step_0000012/rank_0003/000017.npy", SlotPlace("run7", 12, 3, 17, "npy")),
    ("run7/.raw/step_0000012/rank_0003/000017.jpg", SlotPlace("run7", 12, 3, 17, "jpg", raw=True)),
    ("run7/step_12345678/rank_12345/1234567.bin", SlotPlace("run7", 12345678, 12345, 1234567, "bin")),
    ("run7/by-id", ByIdPlace("run7")),
    ("run7/by-id/n01.440.npy", IdPlace("run7", "n01.440", "npy")),
    ("run7/.raw/by-id/cat.jpg", IdPlace("run7", "cat", "jpg", raw=True)),
]

NOWHERE = [
    ".raw",
    "run7/step_12",
    "run7/step_00000012",
    "run7/step_000001\uff12",
    "run7/step_0000012/rank_3",
    "run7/step_0000012/rank_0003/17.npy",
    "run7/step_0000012/rank_0003/000017",
    "run7/step_0000012/rank_0003/000017.tar.gz",
    "run7/step_0000012/rank_0003/000017.npy/x",
    "run7/by-id/cat",
    "run7/by-id/.npy",
    "run7/.raw/.raw/by-id",
    "run7/other",
    "run7//by-id",
    "../run7",
]


@pytest.mark.parametrize(("path", "place"), PLACES, ids=[path or "root" for path, _ in PLACES])
def test_a_path_names_a_place_and_the_place_that_path(path: str, place: tree.Place) -> None:
    assert tree.parse(path) == place
    assert tree.path_of(place) == path


@pytest.mark.parametrize("path", NOWHERE)
def test_another_spelling_names_nothing(path: str) -> None:
    assert tree.parse(path) is None


@given(st.text(max_size=80))
def test_whatever_is_parsed_is_spelled_the_same(path: str) -> None:
    place = tree.parse(path)
    assert place is None or tree.path_of(place) == path


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), st.booleans())
def test_every_slot_is_found_again(step: int, rank: int, slot: int, raw: bool) -> None:
    place = SlotPlace("job", step, rank, slot, "npy", raw)
    assert tree.parse(tree.path_of(place)) == place
