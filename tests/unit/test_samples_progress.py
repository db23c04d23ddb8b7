"""How far a job is: `vfs/samples/progress.py`."""

from __future__ import annotations

from vfs.samples.progress import Progress


def test_before_anything_is_read_nothing_is_wanted() -> None:
    assert Progress(ahead=2, behind=1).wanted() == []


def test_a_rank_that_reads_a_step_wants_it_and_those_ahead() -> None:
    progress = Progress(ahead=2, behind=1)
    assert progress.reach(5, 3)
    assert progress.wanted() == [(5, 3), (6, 3), (7, 3)]
    assert progress.step == 5


def test_steps_come_before_ranks_in_what_is_wanted() -> None:
    progress = Progress(ahead=1, behind=0)
    progress.reach(1, 0)
    progress.reach(1, 1)
    assert progress.wanted() == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_going_back_is_no_news() -> None:
    progress = Progress(ahead=1, behind=1)
    progress.reach(5, 0)
    assert not progress.reach(4, 0)
    assert not progress.reach(5, 0)
    assert progress.wanted() == [(5, 0), (6, 0)]


def test_a_step_is_over_when_its_rank_is_behind_steps_further() -> None:
    progress = Progress(ahead=1, behind=1)
    progress.reach(5, 0)
    progress.reach(6, 0)
    assert not progress.is_over(5, 0)
    progress.reach(7, 0)
    assert progress.is_over(5, 0)
    assert progress.is_over(4, 0)
    assert not progress.is_over(6, 0)


def test_a_rank_that_is_slower_keeps_its_steps_and_one_that_never_read_all() -> None:
    progress = Progress(ahead=1, behind=0)
    progress.reach(1, 0)
    progress.reach(1, 1)
    progress.reach(3, 0)
    assert progress.is_over(2, 0)
    assert not progress.is_over(1, 1)
    assert not progress.is_over(0, 2)


def test_what_is_told_brings_the_first_step_before_it_is_read() -> None:
    progress = Progress(ahead=1, behind=1)
    assert progress.tell(10, (2, 3))
    assert progress.wanted() == [(10, 2), (10, 3), (11, 2), (11, 3)]
    assert not progress.tell(10, (2, 3))


def test_a_told_step_moves_the_ranks_that_are_known() -> None:
    progress = Progress(ahead=0, behind=0)
    progress.reach(1, 4)
    assert progress.tell(3)
    assert progress.wanted() == [(3, 4)]


def test_a_step_that_is_only_told_is_not_read_yet() -> None:
    progress = Progress(ahead=1, behind=1)
    progress.tell(10, (2,))
    assert progress.consumed == 9
    assert progress.reach(10, 2)
    assert progress.consumed == 10
