"""What goes first when a store is full: `vfs/extents/books.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.books import Books
from vfs.model import ObjectKey

A, B, C = ObjectKey("a"), ObjectKey("b"), ObjectKey("c")


def test_the_least_recently_used_goes_first_and_a_held_one_never() -> None:
    books = Books(100)
    for key in (A, B, C):
        books.add(key, 10)
    books.hold(A)
    assert books.victim() == B
    assert books.release(A)
    assert books.idle() == [B, C, A]


def test_what_is_streamed_goes_first_and_what_is_to_stay_last_whatever_was_used_when() -> None:
    books = Books(100)
    for key, keep in ((A, "keep"), (B, "normal"), (C, "stream")):
        books.add(key, 10)
        books.classify(key, keep)
    for key in (C, B, A):
        books.hold(key)
        books.release(key)
    assert books.idle() == [C, B, A]
    books.hold(B)
    books.classify(B, "stream")  # of an object that is open: it holds once it is closed
    books.classify(A, "normal")
    assert books.idle() == [C, A]
    books.release(B)
    assert books.idle() == [C, B, A]
    books.check()


def test_a_leftover_goes_before_everything_else() -> None:
    books = Books(100)
    books.add(A, 10)
    books.add(B, 10, oldest=True)
    assert books.victim() == B


def test_nothing_goes_when_all_are_held() -> None:
    books = Books(100)
    books.add(A, 10)
    books.hold(A)
    books.hold(A)
    assert not books.release(A)
    assert books.victim() is None


def test_room_is_promised_up_to_the_cap_and_not_a_byte_more() -> None:
    books = Books(100, assumed=20)
    books.add(A, 30)
    assert books.reserve(50)
    assert not books.reserve(1)
    books.unreserve(50)
    books.resize(A, 80)
    assert not books.reserve(1)
    books.assumed = 0
    assert books.reserve(20)


def test_bytes_of_a_removed_object_count_until_they_are_off_the_disk() -> None:
    books = Books(100)
    books.add(A, 90)
    record = books.remove(A)
    assert not books.reserve(20)
    books.freed(record.used)
    assert books.reserve(20)


def test_segments_go_in_the_order_of_their_first_writing_over_all_held_objects() -> None:
    books = Books(100)
    for key in (A, B, C):
        books.add(key, 10)
        books.hold(key)
    books.wrote(A, [3])
    books.wrote(B, [1, 2])
    books.wrote(A, [3, 0])
    books.found(C, [7], sealed=False)
    assert books.oldest_segments() == [(C, 7), (A, 3), (B, 1)]
    books.punched(A, 3)
    assert books.oldest_segments() == [(C, 7), (B, 1), (A, 0)]


def test_sealed_objects_keep_their_segments() -> None:
    books = Books(100)
    books.add(A, 10)
    books.found(A, [0, 1], sealed=True)
    books.hold(A)
    assert books.oldest_segments() == []


def test_what_is_found_is_older_than_what_was_written_before() -> None:
    books = Books(100)
    books.add(A, 10)
    books.hold(A)
    books.wrote(A, [5])
    books.found(A, [4, 5], sealed=False)
    record = books.record(A)
    assert record is not None
    assert record.segments == {4: 0, 5: 1}


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "hold", "release", "resize", "go"]), st.sampled_from([A, B, C]), st.integers(0, 50))
    )
)
def test_the_accounts_add_up_whatever_happens(events: list[tuple[str, ObjectKey, int]]) -> None:
    books = Books(100)
    for event, key, amount in events:
        match event:
            case "add" if key not in books:
                books.add(key, amount)
            case "hold":
                assert (books.hold(key) is not None) == (key in books)
            case "release" if key in books.held:
                books.release(key)
            case "resize" if key in books:
                books.resize(key, amount)
            case "go" if (victim := books.victim()) is not None:
                books.freed(books.remove(victim).used)
        books.check()
        assert len(books) == len(list(books))
