"""What is placed in `.jobs`: messages in, what names stand for and what the kernel is to forget out."""

from __future__ import annotations

from vfs.model import Kind
from vfs.samples.model import Form
from vfs.samples.placed import Placements
from vfs.samples.wire import Dropped, Node, Placed

RANK_0, RANK_1 = "run7/step_0000001/rank_0000", "run7/step_0000001/rank_0001"


def node(path: str, key: str = "a") -> Node:
    return Node(path, Kind.FILE, key, 3, 77, Form.TRANSFORMED, "", "/f")


def placed(*directories: str) -> Placements:
    found = Placements()
    for directory in directories:
        found.place(Placed(directory, [node(f"{directory}/000000.npy")]))
    return found


def test_samples_that_come_one_by_one_add_up_and_the_last_word_counts() -> None:
    found = placed(RANK_0)
    found.place(Placed(RANK_0, [node(f"{RANK_0}/000001.npy")]))
    found.place(Placed(RANK_0, [node(f"{RANK_0}/000000.npy", "b")]))
    assert [(each.path[-10:], each.key) for each in found.inside(RANK_0)] == [("000000.npy", "b"), ("000001.npy", "a")]
    assert found.find(f"{RANK_0}/000002.npy") is None


def test_first_reader_of_a_rank_is_told_once_however_many_samples_come_later() -> None:
    found = placed(RANK_0)
    assert found.is_waiting(RANK_0)
    assert found.enter(RANK_0)
    found.place(Placed(RANK_0, [node(f"{RANK_0}/000001.npy")]))
    assert not found.is_waiting(RANK_0)
    assert not found.enter(RANK_0)


def test_rank_that_is_placed_again_after_it_was_dropped_waits_again() -> None:
    found = placed(RANK_0)
    found.enter(RANK_0)
    found.drop(Dropped([RANK_0]))
    found.place(Placed(RANK_0, [node(f"{RANK_0}/000000.npy")]))
    assert found.enter(RANK_0)


def test_names_by_id_belong_to_no_step_and_wait_for_nobody() -> None:
    found = placed("run7/by-id")
    assert found.has("run7/by-id")
    assert not found.is_waiting("run7/by-id")
    assert not found.enter("run7/by-id")


def test_step_goes_as_a_whole_with_the_last_of_its_ranks() -> None:
    found = placed(RANK_0, RANK_1, "run7/by-id", "run8/step_0000001/rank_0000")
    assert found.drop(Dropped([RANK_0])) == [RANK_0]
    assert found.drop(Dropped([RANK_1])) == ["run7/step_0000001"]
    assert found.drop(Dropped(["run7/by-id"])) == ["run7/by-id"]


def test_directories_that_lead_to_what_is_placed_have_the_time_of_the_schedule() -> None:
    found = placed(RANK_0)
    for path in ("run7", "run7/step_0000001", RANK_0):
        assert found.leading(path) == Node(path, Kind.DIRECTORY, mtime_ns=77)
    assert found.leading("run") is None
    assert found.leading(RANK_1) is None


def test_listing_shows_what_is_placed_in_place_of_what_the_agent_said_before() -> None:
    found = placed(RANK_0)
    listed = [node(f"{RANK_0}/000000.npy", "old"), node(f"{RANK_0}/000001.npy", "old")]
    assert [each.key for each in found.merged(RANK_0, listed)] == ["a", "old"]
    assert found.merged(RANK_1, listed[1:]) == listed[1:]


def test_another_agent_is_told_of_readers_again_and_what_it_does_not_tell_of_is_known_as_such() -> None:
    found = placed(RANK_0, RANK_1, "run7/by-id")
    found.enter(RANK_0)
    found.renew()
    assert found.untold == ["run7/by-id", RANK_0, RANK_1]
    found.place(Placed(RANK_0, [node(f"{RANK_0}/000000.npy")]))
    assert found.untold == ["run7/by-id", RANK_1]
    assert found.enter(RANK_0)
    found.drop(Dropped(found.untold))
    assert found.untold == []
    assert not found.has(RANK_1)
