"""What a store of cached objects promises, on a disk file system and in memory: `vfs/extents/store.py` and `reader.py`."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.errors import Busy, Corrupt, NoSpace, NotFound, Unavailable
from vfs.extents.books import Keep
from vfs.extents.layout import BLOCK, HEADER_BYTES, Identity, data_path, sums_path
from vfs.extents.reader import BrokenBlock, CachedObject, scratch_bytes
from vfs.extents.shelf import SEGMENT_BLOCKS
from vfs.extents.store import Store
from vfs.model import ObjectKey, SiteName, SitePath, Version

MIB = 1 << 20
SCRATCH = memoryview(bytearray(4 * MIB))


@pytest.fixture(params=["disk", "memory"])
def directory(request: pytest.FixtureRequest) -> Iterator[str]:
    """A directory for a store on an ordinary file system, and one on tmpfs."""
    base = None
    if request.param == "memory":
        if not os.path.isdir("/dev/shm"):
            pytest.skip("no /dev/shm on this machine")
        base = "/dev/shm"
    made = tempfile.mkdtemp(prefix="foremount-test-", dir=base)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def store(directory: str) -> Iterator[Store]:
    opened = Store.open(directory, 64 * MIB)
    assert opened.wait_counted(10)
    yield opened
    opened._shelf.books.check()
    opened.close()


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def identity(size: int, path: str = "a/b.bin", etag: str = "1") -> Identity:
    return Identity(SiteName("far"), SitePath(path), Version(size, 5, etag))


def put(store: Store, body: bytes, path: str = "a/b.bin", blocks: range | None = None) -> ObjectKey:
    """Store an object with the given blocks, all by default."""
    key = store.prepare(identity(len(body), path))
    for index in blocks if blocks is not None else range(-(-len(body) // BLOCK)):
        store.write_block(key, index, body[index * BLOCK : (index + 1) * BLOCK])
    return key


def read(store: Store, key: ObjectKey, offset: int, length: int) -> bytes | None:
    """Read once as the fs worker would."""
    cached = CachedObject.open(store.root, key)
    try:
        got = cached.read(offset, length, SCRATCH)
        return None if got is None else bytes(got)
    finally:
        cached.close()


def flip(path: str, offset: int) -> None:
    """Change one byte of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


# Reading and writing


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        pytest.param(0, 4096, slice(0, 4096), id="start"),
        pytest.param(BLOCK - 1, 2, slice(BLOCK - 1, BLOCK + 1), id="across-a-block-border"),
        pytest.param(BLOCK, BLOCK, slice(BLOCK, 2 * BLOCK), id="exactly-one-block"),
        pytest.param(3 * BLOCK, 100, slice(3 * BLOCK, 3 * BLOCK + 100), id="the-short-last-block"),
        pytest.param(2 * BLOCK, 10 * BLOCK, slice(2 * BLOCK, None), id="past-the-end-is-cut"),
        pytest.param(3 * BLOCK + 100, 1, slice(0, 0), id="at-the-end-is-empty"),
        pytest.param(9 * BLOCK, 1, slice(0, 0), id="behind-the-end-is-empty"),
        pytest.param(0, 0, slice(0, 0), id="nothing-asked"),
    ],
)
def test_reads_what_was_written(store: Store, offset: int, length: int, expected: slice) -> None:
    body = content(3 * BLOCK + 100)
    key = put(store, body)
    assert read(store, key, offset, length) == body[expected]


def test_a_new_object_is_absent_from_end_to_end(store: Store) -> None:
    key = store.prepare(identity(3 * BLOCK + 100))
    cached = CachedObject.open(store.root, key)
    assert cached.missing(10, 10) == (0, BLOCK)
    assert cached.missing(0, 1 << 40) == (0, 3 * BLOCK + 100)
    assert cached.missing(3 * BLOCK + 100, 5) is None
    assert cached.read(0, 10, SCRATCH) is None
    assert cached.identity == identity(3 * BLOCK + 100)
    assert not cached.sealed()
    cached.close()


def test_missing_spans_from_the_first_to_the_last_absent_block(store: Store) -> None:
    body = content(6 * BLOCK + 1)
    key = put(store, body, blocks=range(0))
    for index in (0, 2, 5):
        store.write_block(key, index, body[index * BLOCK : (index + 1) * BLOCK])
    cached = CachedObject.open(store.root, key)
    assert cached.missing(0, len(body)) == (BLOCK, 5 * BLOCK + 1)
    assert cached.missing(0, 4 * BLOCK) == (BLOCK, 3 * BLOCK)
    assert cached.missing(2 * BLOCK, BLOCK) is None
    assert store.missing(key, 0, len(body)) == [range(1, 2), range(3, 5), range(6, 7)]
    assert store.missing(key, 2 * BLOCK, BLOCK) == []
    cached.close()


def test_an_open_reader_sees_blocks_that_come_later(store: Store) -> None:
    body = content(2 * BLOCK)
    key = put(store, body, blocks=range(1))
    cached = CachedObject.open(store.root, key)
    assert cached.read(BLOCK, 10, SCRATCH) is None
    store.write_block(key, 1, body[BLOCK:])
    assert cached.read(BLOCK, 10, SCRATCH) == body[BLOCK : BLOCK + 10]
    cached.close()


def test_several_blocks_are_written_at_once(store: Store) -> None:
    body = content(5 * BLOCK + 7)
    key = store.prepare(identity(len(body)))
    store.write_blocks(key, 1, body[BLOCK:])
    assert store.missing(key, 0, len(body)) == [range(1)]
    assert read(store, key, BLOCK, len(body)) == body[BLOCK:]


def test_an_empty_object_is_complete_and_sealed_at_once(store: Store) -> None:
    key = store.prepare(identity(0))
    cached = CachedObject.open(store.root, key)
    assert cached.sealed()
    assert cached.missing(0, 10) is None
    assert cached.read(0, 10, SCRATCH) == b""
    cached.close()


def test_preparing_twice_keeps_the_blocks(store: Store) -> None:
    body = content(BLOCK)
    key = put(store, body)
    assert store.prepare(identity(len(body))) == key
    assert read(store, key, 0, BLOCK) == body


def test_another_version_is_another_object(store: Store) -> None:
    first = store.prepare(identity(BLOCK, etag="1"))
    second = store.prepare(identity(BLOCK, etag="2"))
    assert first != second
    store.write_block(first, 0, content(BLOCK))
    assert store.missing(second, 0, BLOCK) == [range(1)]


def test_an_object_that_is_not_here_is_not_found(store: Store) -> None:
    key = ObjectKey("0" * 32)
    with pytest.raises(NotFound):
        store.write_block(key, 0, b"x")
    with pytest.raises(NotFound):
        store.missing(key, 0, 1)
    with pytest.raises(NotFound):
        CachedObject.open(store.root, key)
    assert store.identity(key) is None
    assert not store.hold(key)
    assert not store.evict(key)
    store.drop_block(key, 0)


def test_names_too_long_for_a_header_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="take"):
        store.prepare(identity(1, path="x" * 5000))


def test_a_lone_object_reports_its_facts(store: Store) -> None:
    body = content(2 * BLOCK + 5)
    key = put(store, body, blocks=range(1, 3))
    assert store.hold(key)
    (facts,) = store.objects()
    assert (facts.key, facts.identity, facts.present, facts.sealed, facts.held) == (
        key, identity(len(body)), BLOCK + 5, False, True,
    )  # fmt: skip
    assert facts.used >= BLOCK + 5
    store.release(key)
    assert not store.stored(key).held
    assert store.totals().objects == 1


def test_more_objects_than_descriptors_allow_are_kept(directory: str) -> None:
    store = Store.open(directory, 64 * MIB, handles_max=4)
    keys = [put(store, content(BLOCK, seed), f"o{seed}") for seed in range(20)]
    assert [read(store, key, 0, BLOCK) for key in keys] == [content(BLOCK, seed) for seed in range(20)]
    assert len(store._shelf.files) <= 4
    store.close()


# Digests


@pytest.mark.parametrize("position", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 99])
def test_a_flipped_byte_in_the_data_is_never_served(store: Store, position: int) -> None:
    body = content(2 * BLOCK + 100)
    key = put(store, body)
    flip(data_path(store.root, key), position)
    with pytest.raises(BrokenBlock) as caught:
        read(store, key, 0, len(body))
    assert caught.value.index == position // BLOCK
    assert isinstance(caught.value, Corrupt)
    store.drop_block(key, caught.value.index)
    assert store.missing(key, 0, len(body)) == [range(position // BLOCK, position // BLOCK + 1)]
    assert store.counters.blocks_broken == 1


def test_a_flipped_digest_makes_its_block_broken(store: Store) -> None:
    body = content(2 * BLOCK)
    key = put(store, body)
    flip(sums_path(store.root, key), HEADER_BYTES + 8)
    assert read(store, key, 0, BLOCK) == body[:BLOCK]
    with pytest.raises(BrokenBlock):
        read(store, key, BLOCK, 1)


def test_truncated_data_is_a_broken_block(store: Store) -> None:
    body = content(3 * BLOCK)
    key = put(store, body)
    cached = CachedObject.open(store.root, key)
    os.truncate(data_path(store.root, key), BLOCK + 5)
    assert cached.read(0, BLOCK, SCRATCH) == body[:BLOCK]
    with pytest.raises(BrokenBlock) as caught:
        cached.read(0, 3 * BLOCK, SCRATCH)
    assert caught.value.index == 1
    cached.close()


def test_truncated_digests_are_corrupt_at_open_and_later(store: Store) -> None:
    key = put(store, content(3 * BLOCK))
    cached = CachedObject.open(store.root, key)
    os.truncate(sums_path(store.root, key), HEADER_BYTES + 8)
    with pytest.raises(Corrupt):
        cached.read(0, 3 * BLOCK, SCRATCH)
    with pytest.raises(Corrupt):
        cached.missing(0, 3 * BLOCK)
    cached.close()
    with pytest.raises(Corrupt):
        CachedObject.open(store.root, key)


@pytest.mark.parametrize(
    "garbage", [b"", b"x" * 40, b"\0" * HEADER_BYTES, os.urandom(9000)], ids=["empty", "short", "zeros", "noise"]
)
def test_a_digest_file_that_is_none_is_corrupt_and_made_anew(directory: str, garbage: bytes) -> None:
    first = Store.open(directory, 64 * MIB)
    key = put(first, content(BLOCK))
    first.close()
    Path(sums_path(first.root, key)).write_bytes(garbage)
    with pytest.raises(Corrupt):
        CachedObject.open(first.root, key)
    second = Store.open(directory, 64 * MIB)
    assert second.prepare(identity(BLOCK)) == key
    assert second.missing(key, 0, BLOCK) == [range(1)]
    assert second.counters.recreated == 1
    second.close()


def test_a_block_that_is_absent_by_now_is_missing_not_broken(store: Store) -> None:
    body = content(2 * BLOCK)
    key = put(store, body)
    cached = CachedObject.open(store.root, key)
    digests = cached._digests(0, 2)
    store.drop_block(key, 1)
    flip(data_path(store.root, key), BLOCK)
    cached_class_digests = CachedObject._digests
    answers = [digests]
    # The digests are read before the block is dropped, its bytes after: what a reader sees that is overtaken by eviction.
    try:
        CachedObject._digests = lambda self, first, count: (
            answers.pop() if answers else cached_class_digests(self, first, count)
        )  # type: ignore[method-assign]
        assert cached.read(0, 2 * BLOCK, SCRATCH) is None
    finally:
        CachedObject._digests = cached_class_digests  # type: ignore[method-assign]
    cached.close()


def test_scrub_drops_and_counts_what_is_broken(store: Store) -> None:
    body = content(40 * BLOCK + 3)
    key = put(store, body)
    for index in (0, 17, 40):
        flip(data_path(store.root, key), index * BLOCK + 1)
    assert store.verify(key) == [0, 17, 40]
    assert store.counters.blocks_broken == 3
    assert store.missing(key, 0, len(body)) == [range(1), range(17, 18), range(40, 41)]
    assert store.verify(key) == []


def test_blocks_are_read_back_up_to_the_first_absent_or_broken_one(store: Store) -> None:
    body = content(8 * BLOCK)
    key = put(store, body, blocks=range(6))
    assert store.read_blocks(key, 0, 8, SCRATCH) == 6
    assert SCRATCH[: 6 * BLOCK] == body[: 6 * BLOCK]
    flip(data_path(store.root, key), 2 * BLOCK)
    assert store.read_blocks(key, 0, 8, SCRATCH) == 2
    assert store.read_blocks(key, 2, 1, SCRATCH) == 0


# Seal


def test_a_complete_object_is_sealed_and_seen_so_by_the_reader(store: Store) -> None:
    key = put(store, content(3 * BLOCK + 1))
    assert store.seal(key)
    cached = CachedObject.open(store.root, key)
    assert cached.sealed()
    assert store.counters.sealed == 1
    cached.close()


def test_an_incomplete_object_is_not_sealed(store: Store) -> None:
    key = put(store, content(3 * BLOCK), blocks=range(2))
    assert not store.seal(key)
    assert not store.stored(key).sealed


def test_a_broken_object_is_not_sealed_and_its_broken_blocks_are_dropped(store: Store) -> None:
    key = put(store, content(3 * BLOCK))
    flip(data_path(store.root, key), BLOCK)
    assert not store.seal(key)
    assert store.missing(key, 0, 3 * BLOCK) == [range(1, 2)]


def test_who_touches_a_sealed_file_breaks_the_seal(store: Store) -> None:
    key = put(store, content(3 * BLOCK))
    assert store.seal(key)
    cached = CachedObject.open(store.root, key)
    stat = os.fstat(cached.fileno())
    os.utime(data_path(store.root, key), ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert not cached.sealed()
    os.utime(data_path(store.root, key), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not cached.sealed()  # the date of change can't be set back
    cached.close()


def test_a_file_that_is_touched_while_it_is_verified_is_not_sealed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = put(store, content(2 * MIB))
    verify = store.verify

    def touched(key: ObjectKey) -> list[int]:
        broken = verify(key)
        with open(data_path(store.root, key), "r+b") as file:
            file.write(b"x")
        return broken

    monkeypatch.setattr(store, "verify", touched)
    assert not store.seal(key)
    cached = CachedObject.open(store.root, key)
    assert not cached.sealed()
    cached.close()
    monkeypatch.undo()
    assert not store.seal(key)
    assert store.missing(key, 0, 2 * MIB) == [range(1)]


def test_a_dropped_block_ends_the_seal_and_a_refetch_can_renew_it(store: Store) -> None:
    body = content(3 * BLOCK)
    key = put(store, body)
    assert store.seal(key)
    cached = CachedObject.open(store.root, key)
    store.drop_block(key, 2)
    assert not cached.sealed()
    store.write_block(key, 2, body[2 * BLOCK :])
    assert not cached.sealed()
    assert store.seal(key)
    assert cached.sealed()
    cached.close()


def test_a_seal_survives_a_restart_and_one_that_does_not_match_does_not(directory: str) -> None:
    first = Store.open(directory, 64 * MIB)
    good, touched = put(first, content(BLOCK), "good"), put(first, content(BLOCK), "touched")
    assert first.seal(good) and first.seal(touched)
    first.close()
    flip(data_path(first.root, touched), 0)
    second = Store.open(directory, 64 * MIB)
    assert second.wait_counted(10)
    assert second.stored(good).sealed
    assert not second.stored(touched).sealed
    second.close()


# Room


def test_the_least_recently_used_object_goes_first(directory: str) -> None:
    store = Store.open(directory, 4 * MIB)
    keys = {name: put(store, content(MIB), name) for name in ("a", "b", "c")}
    store.missing(keys["a"], 0, 1)
    put(store, content(MIB), "d")
    left = {facts.identity.path for facts in store.objects()}
    assert left == {"a", "c", "d"}
    assert store.counters.evictions == 1
    assert store.totals().used <= 4 * MIB
    store.close()


def test_an_open_object_stays_and_its_segments_make_room_only_when_nothing_else_can(directory: str) -> None:
    store = Store.open(directory, 12 * MIB)
    first = put(store, content(8 * MIB, 1), "open")
    assert store.hold(first)
    put(store, content(2 * MIB, 2), "idle")
    second = store.prepare(identity(8 * MIB, "next"))
    assert store.hold(second)
    store.write_blocks(second, 0, content(MIB))
    store.write_blocks(second, 16, content(MIB))
    assert store.counters.evictions == 1 and store.counters.punches == 0
    for first_block in range(32, 96, 16):
        store.write_blocks(second, first_block, content(MIB))
    assert store.counters.punches == 1
    assert store.missing(first, 0, 8 * MIB) == [range(SEGMENT_BLOCKS)]
    assert read(store, first, 4 * MIB, MIB) == content(8 * MIB, 1)[4 * MIB : 5 * MIB]
    assert store.totals().used <= 12 * MIB
    store.release(first)
    store.release(second)
    store.close()


def test_a_sealed_open_object_never_loses_a_segment(directory: str) -> None:
    store = Store.open(directory, 10 * MIB)
    key = put(store, content(8 * MIB), "sealed")
    assert store.seal(key) and store.hold(key)
    other = store.prepare(identity(8 * MIB, "other"))
    store.write_blocks(other, 0, content(MIB))
    assert store.hold(other)
    with pytest.raises(NoSpace):
        store.write_blocks(other, 16, content(2 * MIB))
    assert store.missing(key, 0, 8 * MIB) == []
    store.release(key)
    store.write_blocks(other, 16, content(2 * MIB))
    assert store.identity(key) is None
    store.release(other)
    store.close()


def test_leftovers_of_an_open_object_are_the_first_to_make_room(directory: str) -> None:
    first = Store.open(directory, 16 * MIB)
    key = put(first, content(8 * MIB))
    first.close()
    store = Store.open(directory, 10 * MIB)
    assert store.wait_counted(10)
    assert store.hold(key)
    assert store.prepare(identity(8 * MIB)) == key
    other = store.prepare(identity(8 * MIB, "other"))
    assert store.hold(other)
    for start in range(0, 64, 16):
        store.write_blocks(other, start, content(MIB))
    assert store.missing(key, 0, 8 * MIB) == [range(SEGMENT_BLOCKS)]
    assert store.missing(other, 0, 4 * MIB) == []
    store.close()


def test_a_write_larger_than_the_cap_finds_no_room(directory: str) -> None:
    store = Store.open(directory, MIB)
    key = store.prepare(identity(4 * MIB))
    with pytest.raises(NoSpace):
        store.write_blocks(key, 0, content(2 * MIB))
    store.close()


def test_an_evicted_object_is_gone_for_its_open_readers_who_read_on(store: Store) -> None:
    body = content(2 * BLOCK)
    key = put(store, body, blocks=range(1))
    cached = CachedObject.open(store.root, key)
    assert not cached.gone()
    assert store.evict(key)
    assert cached.gone()
    assert not cached.sealed()
    assert cached.read(0, BLOCK, SCRATCH) == body[:BLOCK]
    assert cached.missing(0, 2 * BLOCK) == (BLOCK, BLOCK)
    cached.close()
    assert os.listdir(f"{store.root}/trash") == []
    assert store.totals().used == 0


def test_what_is_to_stay_outlives_what_is_streamed_also_in_another_run(directory: str) -> None:
    """Room for four objects: whoever is used last, the streamed ones make room, and a restart forgets nothing of that."""
    kinds: dict[str, Keep] = {"keep": "keep", "stream": "stream"}

    def keep_of(asked: Identity) -> Keep:
        return kinds.get(asked.path.partition("/")[0], "normal")

    body = content(MIB)
    for round_number in range(2):
        store = Store.open(directory, 4 * MIB + MIB // 2, keep_of=keep_of)
        assert store.wait_counted(10)
        if round_number == 0:
            for path in ("keep/a", "plain/a"):
                put(store, body, path)
        for number in range(6):
            put(store, body, f"stream/{round_number}-{number}")
        left = {found.identity.path for found in store.objects()}
        assert {"keep/a", "plain/a", f"stream/{round_number}-5"} <= left
        assert len(left) == 4
        for number in range(5):
            put(store, body, f"plain/{round_number}-{number}")
        left = {found.identity.path for found in store.objects()}
        assert "keep/a" in left
        assert not any(path.startswith("stream/") for path in left)
        if round_number == 0:
            put(store, body, "plain/a")
        store._shelf.books.check()
        store.close()


def test_a_held_object_is_not_evicted(store: Store) -> None:
    key = put(store, content(BLOCK))
    assert store.hold(key) and store.hold(key)
    store.release(key)
    assert not store.evict(key)
    store.release(key)
    assert store.evict(key)


def test_a_removed_store_leaves_nothing_and_its_open_readers_find_their_objects_gone(directory: str) -> None:
    store = Store.open(f"{directory}/spill", MIB)
    body = content(BLOCK)
    key = put(store, body)
    cached = CachedObject.open(store.root, key)
    store.close_and_remove()
    assert os.listdir(directory) == []
    assert cached.gone()
    assert cached.read(0, BLOCK, SCRATCH) == body
    cached.close()


# Restart


def test_blocks_survive_a_restart(directory: str) -> None:
    body = content(3 * BLOCK + 9)
    first = Store.open(directory, 64 * MIB)
    key = put(first, body, blocks=range(1, 4))
    first.close()
    second = Store.open(directory, 64 * MIB)
    assert second.prepare(identity(len(body))) == key
    assert second.missing(key, 0, len(body)) == [range(1)]
    assert read(second, key, BLOCK, len(body)) == body[BLOCK:]
    second.close()


def test_leftovers_are_counted_and_the_cap_holds_before_they_are(directory: str) -> None:
    first = Store.open(directory, 8 * MIB)
    for number in range(7):
        put(first, content(MIB, number), f"o{number}")
    used = first.totals().used
    first.close()
    second = Store.open(directory, 8 * MIB)
    key = put(second, content(2 * MIB, 99), "new")
    assert second.wait_counted(10)
    totals = second.totals()
    assert not totals.counting
    assert totals.used <= 8 * MIB
    assert totals.used < used + 2 * MIB
    assert read(second, key, 0, 2 * MIB) == content(2 * MIB, 99)
    second._shelf.books.check()
    second.close()


def test_leftovers_go_in_the_order_of_their_last_use(directory: str) -> None:
    first = Store.open(directory, 8 * MIB)
    keys = {name: put(first, content(MIB), name) for name in "abcd"}
    for age, name in enumerate("cadb"):
        os.utime(sums_path(first.root, keys[name]), ns=(0, age))
    first.close()
    second = Store.open(directory, 8 * MIB)
    assert second.wait_counted(10)
    assert [facts.identity.path for facts in second.objects()] == list("cadb")
    second.close()


def test_half_of_an_object_is_removed(directory: str) -> None:
    first = Store.open(directory, 8 * MIB)
    no_data, no_sums = put(first, content(BLOCK), "x"), put(first, content(BLOCK), "y")
    first.close()
    os.unlink(data_path(first.root, no_data))
    os.unlink(sums_path(first.root, no_sums))
    second = Store.open(directory, 8 * MIB)
    assert second.wait_counted(10)
    assert not os.path.exists(sums_path(second.root, no_data))
    assert not os.path.exists(data_path(second.root, no_sums))
    assert second.totals().objects == 0
    second.close()


def test_another_formats_directory_is_discarded_and_other_names_are_left(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    os.makedirs(f"{directory}/v0/objects/aa")
    os.makedirs(f"{directory}/v99")
    os.makedirs(f"{directory}/video")
    with caplog.at_level("INFO", logger="vfs.extents"):
        store = Store.open(directory, MIB)
        assert store.wait_counted(10)
    assert sorted(os.listdir(directory)) == ["lock", "v1", "video"]
    assert len([record for record in caplog.records if "another version" in record.message]) == 2
    store.close()


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(directory: str) -> None:
    store = Store.open(directory, MIB)
    with pytest.raises(Busy, match=f"process {os.getpid()}"):
        Store.open(directory, MIB)
    store.close()
    Store.open(directory, MIB).close()


def test_a_directory_that_can_not_be_made_is_unavailable(directory: str) -> None:
    Path(directory, "file").touch()
    with pytest.raises(Unavailable):
        Store.open(f"{directory}/file/cache", MIB)


@pytest.mark.parametrize("seed", range(12))
def test_after_a_crash_at_a_random_point_every_block_is_right_or_known_as_lost(directory: str, seed: int) -> None:
    """Truncate, zero and scramble what a crash or a failing disk can, open again, and read everything."""
    chance = random.Random(seed)
    body = content(20 * BLOCK + 77, seed)
    first = Store.open(directory, 64 * MIB)
    key = put(first, body, blocks=range(chance.randrange(21)))
    first.close()
    for path in (data_path(first.root, key), sums_path(first.root, key)):
        size = os.path.getsize(path)
        match chance.randrange(4):
            case 0:
                os.truncate(path, chance.randrange(size))
            case 1:
                with open(path, "r+b") as file:
                    file.seek(chance.randrange(size) // 4096 * 4096)
                    file.write(bytes(4096))
                os.truncate(path, size)
            case 2:
                flip(path, chance.randrange(size))
    second = Store.open(directory, 64 * MIB)
    assert second.prepare(identity(len(body))) == key
    second.verify(key)
    for index in range(21):
        got = read(second, key, index * BLOCK, BLOCK)
        assert got is None or got == body[index * BLOCK : (index + 1) * BLOCK]
    for run in second.missing(key, 0, len(body)):
        second.write_blocks(key, run.start, body[run.start * BLOCK : run.stop * BLOCK])
    assert read(second, key, 0, len(body)) == body
    assert second.seal(key)
    second.close()


# Against a model

_OBJECTS = 3
_BLOCKS = 6
_OPERATION = st.one_of(
    st.tuples(st.just("write"), st.integers(0, _OBJECTS - 1), st.integers(0, _BLOCKS - 1), st.integers(1, 3)),
    st.tuples(st.just("drop"), st.integers(0, _OBJECTS - 1), st.integers(0, _BLOCKS - 1), st.just(0)),
    st.tuples(st.just("flip"), st.integers(0, _OBJECTS - 1), st.integers(0, _BLOCKS * BLOCK - 1), st.booleans()),
    st.tuples(st.just("hold"), st.integers(0, _OBJECTS - 1), st.just(0), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, _OBJECTS - 1), st.just(0), st.just(0)),
    st.tuples(st.just("evict"), st.integers(0, _OBJECTS - 1), st.just(0), st.just(0)),
    st.tuples(st.just("seal"), st.integers(0, _OBJECTS - 1), st.just(0), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, _OBJECTS - 1), st.integers(0, _BLOCKS * BLOCK - 1), st.integers(1, 3 * BLOCK)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(_OPERATION, max_size=40))
def test_whatever_happens_a_read_gives_the_source_or_nothing_and_the_cap_holds(
    operations: list[tuple[str, int, int, int]],
) -> None:
    cap = 8 * BLOCK + 5 * 8192  # room for little more than one object: evictions and punches happen all the time
    bodies = [content((_BLOCKS - 1) * BLOCK + 1 + number, number) for number in range(_OBJECTS)]
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as directory:
        store = Store.open(directory, cap, handles_max=2)
        held = [0] * _OBJECTS
        for verb, number, where, amount in operations:
            body = bodies[number]
            key = store.prepare(identity(len(body), f"o{number}"))
            if verb == "write":
                try:
                    store.write_blocks(key, where, body[where * BLOCK : (where + amount) * BLOCK])
                except NoSpace:
                    assert any(held)
            elif verb == "drop":
                store.drop_block(key, where)
            elif verb == "flip":
                path = sums_path(store.root, key) if amount else data_path(store.root, key)
                flip(path, HEADER_BYTES + where % (_BLOCKS * 8) if amount else min(where, len(body) - 1))
            elif verb == "hold":
                held[number] += store.hold(key)
            elif verb == "release" and held[number]:
                store.release(key)
                held[number] -= 1
            elif verb == "evict":
                assert store.evict(key) == (not held[number])
            elif verb == "seal":
                store.seal(key)
            elif verb == "read":
                try:
                    got = read(store, key, where, amount)
                    assert got is None or got == body[where : where + amount]
                except BrokenBlock as exc:
                    store.drop_block(key, exc.index)
            elif verb == "restart":
                store.close()
                store = Store.open(directory, cap, handles_max=2)
                held = [0] * _OBJECTS
            assert store.totals().used <= cap
        store.close()


def test_scratch_holds_every_block_that_a_read_can_touch() -> None:
    assert scratch_bytes(1) == 2 * BLOCK
    assert scratch_bytes(BLOCK) == 2 * BLOCK
    assert scratch_bytes(BLOCK + 1) == 3 * BLOCK


def test_many_objects_are_sealed_at_once_but_for_those_that_are_not_complete_or_broken(store: Store) -> None:
    good = [put(store, content(BLOCK + 5, seed), f"good{seed}") for seed in range(3)]
    partial = put(store, content(2 * BLOCK), "partial", blocks=range(1))
    broken = put(store, content(2 * BLOCK), "broken")
    flip(data_path(store.root, broken), BLOCK)
    store.seal_many([*good, partial, broken, ObjectKey("f" * 32)])
    assert [store.stored(key).sealed for key in (*good, partial, broken)] == [True, True, True, False, False]
    assert store.missing(broken, 0, 2 * BLOCK) == [range(1, 2)]
