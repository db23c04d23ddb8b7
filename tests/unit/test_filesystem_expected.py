"""Which bytes go along with a read: `vfs/filesystem/expected.py`."""

from __future__ import annotations

import pytest

from vfs.filesystem.expected import PUSH_BYTES_MAX, Expected
from vfs.model import ObjectKey

KIB, MIB = 1 << 10, 1 << 20
KEY = ObjectKey("object")


@pytest.mark.parametrize(
    ("offset", "end", "behind"),
    [
        pytest.param(0, 64 * KIB, 0, id="a read far before it"),
        pytest.param(MIB - 32 * KIB, MIB + 32 * KIB, MIB - 32 * KIB, id="a read around its head"),
        pytest.param(MIB, MIB + 64 * KIB, MIB - 64 * KIB, id="a read of its head"),
        pytest.param(2 * MIB - 65 * KIB, 2 * MIB - KIB, KIB, id="a read that leaves a rest"),
        pytest.param(2 * MIB - 64 * KIB, 2 * MIB, 0, id="a read of its last bytes"),
        pytest.param(2 * MIB, 2 * MIB + KIB, 0, id="a read behind it"),
        pytest.param(8 * MIB, 8 * MIB + KIB, PUSH_BYTES_MAX, id="the head of a long one"),
    ],
)
def test_the_rest_of_the_range_in_which_a_read_ends_goes_along(offset: int, end: int, behind: int) -> None:
    expected = Expected()
    expected.opened(KEY)
    expected.note(KEY, [(8 * MIB, 64 * MIB), (MIB, MIB)])
    assert expected.behind(KEY, offset, end) == behind


def test_what_is_expected_of_an_object_that_is_not_open_is_not_kept() -> None:
    expected = Expected()
    expected.note(KEY, [(0, MIB)])
    expected.opened(KEY)
    assert expected.behind(KEY, 0, 64 * KIB) == 0


def test_a_range_ends_where_the_next_one_begins() -> None:
    expected = Expected()
    expected.opened(KEY)
    expected.note(KEY, [(0, MIB), (MIB, MIB)])
    assert expected.behind(KEY, 0, 64 * KIB) == MIB - 64 * KIB


def test_nothing_goes_along_of_an_object_that_was_closed() -> None:
    expected = Expected()
    expected.opened(KEY)
    expected.note(KEY, [(0, MIB)])
    expected.forget(KEY)
    assert expected.behind(KEY, 0, 64 * KIB) == 0


def test_a_reader_that_asks_again_for_what_it_was_given_is_given_nothing_more() -> None:
    expected = Expected()
    expected.opened(KEY)
    expected.note(KEY, [(0, 64 * MIB)])
    for start in range(0, 64 * MIB, 2 * MIB):
        if not expected.behind(KEY, start, start + 64 * KIB):
            break
        expected.pushed(KEY, start + 64 * KIB, start + 2 * MIB)
        for again in range(start + 64 * KIB, start + 2 * MIB, 64 * KIB):
            expected.behind(KEY, again, again + 64 * KIB)
    assert start == 6 * MIB  # judged after 4 MiB


def test_a_page_or_two_that_come_back_change_nothing() -> None:
    expected = Expected()
    expected.opened(KEY)
    expected.note(KEY, [(0, 640 * MIB)])
    for start in range(0, 640 * MIB, 2 * MIB):
        assert expected.behind(KEY, start, start + 64 * KIB)
        expected.pushed(KEY, start + 64 * KIB, start + 2 * MIB)
        expected.behind(KEY, start + MIB, start + MIB + 64 * KIB)
