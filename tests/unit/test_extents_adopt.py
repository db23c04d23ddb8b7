"""A store takes a file over as the data of an object: renamed, not copied, complete at once."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from vfs.errors import NoSpace, Unavailable
from vfs.extents.layout import BLOCK, Identity, data_path, digest, sums_path
from vfs.extents.reader import BrokenBlock, CachedObject, scratch_bytes
from vfs.extents.store import Store
from vfs.model import ObjectKey, SiteName, SitePath, Version

MIB = 1 << 20
BODY = random.Random(3).randbytes(3 * BLOCK + 17)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(str(tmp_path / "cache"), 4 * MIB)
    assert opened.wait_counted(10)
    yield opened
    opened._shelf.books.check()
    opened.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "staged"
    path.write_bytes(BODY)
    return str(path)


def identity(size: int = len(BODY), path: str = "a") -> Identity:
    return Identity(SiteName("far"), SitePath(path), Version(size, 5, "1"))


def digests(body: bytes = BODY) -> bytes:
    return b"".join(digest(body[at : at + BLOCK]).to_bytes(8, "little") for at in range(0, len(body), BLOCK))


def read(store: Store, key: ObjectKey) -> bytes | None:
    cached = CachedObject.open(store.root, key)
    try:
        got = cached.read(0, cached.size, memoryview(bytearray(scratch_bytes(cached.size))))
        return None if got is None else bytes(got)
    finally:
        cached.close()


def test_an_adopted_file_is_the_object_itself_and_can_be_sealed(store: Store, source: str) -> None:
    inode = os.stat(source).st_ino
    key = store.adopt(identity(), source, digests())
    assert key is not None
    assert os.stat(data_path(store.root, key)).st_ino == inode
    assert not os.path.exists(source)
    assert read(store, key) == BODY
    assert store.missing(key, 0, len(BODY)) == []
    assert store.seal(key)
    assert store.totals().used >= len(BODY)


def test_an_adopted_file_is_there_for_the_next_run(store: Store, source: str, tmp_path: Path) -> None:
    key = store.adopt(identity(), source, digests())
    assert key is not None
    store.close()
    again = Store.open(str(tmp_path / "cache"), 4 * MIB)
    assert again.prepare(identity()) == key
    assert again.missing(key, 0, len(BODY)) == []
    again.close()
    store._lock_fd = os.open(os.devnull, os.O_RDONLY)  # the fixture closes it once more


def test_a_file_that_is_not_what_its_digests_say_is_found_out_by_the_reader(store: Store, source: str) -> None:
    with open(source, "r+b") as file:
        file.seek(BLOCK + 5)
        file.write(b"otherwise")
    key = store.adopt(identity(), source, digests())
    assert key is not None
    with pytest.raises(BrokenBlock):
        read(store, key)
    assert not store.seal(key)
    assert store.missing(key, 0, len(BODY)) == [range(1, 2)]


@pytest.mark.parametrize("there", ["prepared", "of another length"])
def test_a_file_that_can_not_be_the_object_stays_where_it_is(store: Store, source: str, there: str) -> None:
    wanted = identity()
    if there == "prepared":
        store.prepare(wanted)
    else:
        os.truncate(source, len(BODY) - 1)
    before = os.stat(source).st_size
    assert store.adopt(wanted, source, digests()) is None
    assert os.stat(source).st_size == before


def test_room_is_made_below_the_cap_before_a_file_is_adopted(store: Store, tmp_path: Path) -> None:
    keys = []
    for index in range(6):
        path = tmp_path / f"staged-{index}"
        path.write_bytes(bytes(MIB))
        keys.append(store.adopt(identity(MIB, str(index)), str(path), digests(bytes(MIB))))
        assert store.totals().used <= 4 * MIB
    assert [key is not None and store.identity(key) is not None for key in keys] == [False] * 3 + [True] * 3


def test_a_file_that_is_larger_than_the_cap_drives_nothing_out(store: Store, source: str, tmp_path: Path) -> None:
    key = store.adopt(identity(), source, digests())
    big = tmp_path / "big"
    big.touch()
    os.truncate(big, 5 * MIB)
    with pytest.raises(NoSpace):
        store.adopt(identity(5 * MIB, "big"), str(big), digests(bytes(5 * MIB)))
    assert key is not None
    assert store.identity(key) is not None
    assert big.exists()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
def test_a_file_on_another_disk_is_refused_and_leaves_nothing(store: Store) -> None:
    path = Path("/dev/shm/foremount-test-adopt")
    path.write_bytes(BODY)
    try:
        with pytest.raises(Unavailable):
            store.adopt(identity(), str(path), digests())
        assert path.read_bytes() == BODY
    finally:
        path.unlink()
    key = store.prepare(identity())
    assert store.missing(key, 0, len(BODY)) == [range(4)]
    assert os.path.exists(sums_path(store.root, key))
