"""What every store of the shared catalog must do: the embedded one, and a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from vfs.clock import FakeClock, SystemClock
from vfs.errors import Busy, InvalidConfig, Stale, Unavailable
from vfs.foresight.stores.embedded import GRACE_S, Embedded
from vfs.foresight.stores.etcd import Etcd
from vfs.foresight.stores.memory import Memory
from vfs.foresight.stores.protocol import LEASE_S_MIN, Change, Compacted, Delete, Item, Put, Store, end_of, every


@pytest.fixture(params=["memory", "embedded", pytest.param("etcd", marks=pytest.mark.servers)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store: Store
    if request.param == "memory":
        store = Memory(SystemClock())
    elif request.param == "embedded":
        store = await Embedded.open(str(tmp_path / "store"), SystemClock())
    else:
        server: EtcdServer = request.getfixturevalue("etcd")
        store = Etcd([server.endpoint], prefix=f"{tmp_path.name}/")
    yield store
    await store.close()


async def names(store: Store, prefix: str) -> list[str]:
    return [item.key for item in (await store.range(prefix)).items]


async def next_of(watch: AsyncIterator[list[Change]]) -> list[Change]:
    async with asyncio.timeout(10):
        return await anext(watch)


async def test_key_that_was_never_put_is_none(store: Store) -> None:
    assert await store.get("a") is None


async def test_put_is_read_back_with_a_revision_that_grows(store: Store) -> None:
    assert await store.write([Put("a", b"one")])
    first = await store.get("a")
    assert await store.write([Put("a", b"\x00\xfftwo")])
    second = await store.get("a")
    assert first is not None and second is not None
    assert (first.value, second.value) == (b"one", b"\x00\xfftwo")
    assert second.revision > first.revision > 0


async def test_deleted_key_is_gone_and_deleting_it_again_is_no_error(store: Store) -> None:
    await store.write([Put("a", b"")])
    assert await store.write([Delete("a")])
    assert await store.get("a") is None
    assert await store.write([Delete("a")])


async def test_range_returns_keys_of_its_prefix_in_order(store: Store) -> None:
    await store.write([Put(key, key.encode()) for key in ("b/2", "b/1", "a", "b", "b0", "b/é", "b/10")])
    assert await names(store, "b/") == ["b/1", "b/10", "b/2", "b/é"]
    assert await names(store, "c") == []


async def test_range_goes_on_after_a_key(store: Store) -> None:
    await store.write([Put(f"p/{index:02}", b"") for index in range(5)])
    page = await store.range("p/", limit=2)
    assert [item.key for item in page.items] == ["p/00", "p/01"]
    rest = await store.range("p/", after="p/01")
    assert [item.key for item in rest.items] == ["p/02", "p/03", "p/04"]
    assert (await store.range("p/", after="p/04")).items == []


async def test_every_reads_more_than_a_page(store: Store) -> None:
    for start in range(0, 1100, 100):
        await store.write([Put(f"many/{index:04}", b"x") for index in range(start, start + 100)])
    items, revision = await every(store, "many/")
    assert [item.key for item in items] == [f"many/{index:04}" for index in range(1100)]
    assert revision >= items[-1].revision


async def test_many_read_at_a_time(store: Store) -> None:
    await store.write([Put("r/a", b"1"), Put("r/b", b"2")])
    found = await asyncio.gather(*(every(store, "r/") for _ in range(300)))
    assert {len(items) for items, _ in found} == {2}


async def test_write_with_another_revision_than_expected_changes_nothing(store: Store) -> None:
    await store.write([Put("a", b"1")])
    item = await store.get("a")
    assert item is not None
    assert not await store.write([Put("a", b"2"), Put("b", b"2")], expect={"a": item.revision + 1})
    assert not await store.write([Put("a", b"2")], expect={"a": 0})
    assert not await store.write([Put("a", b"2")], expect={"missing": item.revision})
    assert await store.get("a") == item
    assert await store.get("b") is None


async def test_of_two_who_expect_the_same_one_wins(store: Store) -> None:
    answers = await asyncio.gather(*(store.write([Put("a", b"%d" % who)], expect={"a": 0}) for who in range(8)))
    assert sorted(answers) == [False] * 7 + [True]
    item = await store.get("a")
    assert item is not None and item.value == b"%d" % answers.index(True)


async def test_watch_yields_each_change_of_its_prefix_once_and_in_order(store: Store) -> None:
    await store.write([Put("w/a", b"before")])
    _, revision = await every(store, "w/")
    watch = store.watch("w/", revision)
    await store.write([Put("w/a", b"1"), Put("w/b", b"1")])
    await store.write([Put("other", b"")])
    await store.write([Delete("w/a")])
    seen: list[Change] = []
    while len(seen) < 3:
        seen += await next_of(watch)
    assert sorted((change.key, change.value) for change in seen[:2]) == [("w/a", b"1"), ("w/b", b"1")]
    assert (seen[2].key, seen[2].value) == ("w/a", None)
    assert seen[0].revision == seen[1].revision < seen[2].revision
    await store.write([Put("w/c", b"2")])
    assert [change.key for change in await next_of(watch)] == ["w/c"]


async def test_watch_from_the_past_is_told_what_was_missed(store: Store) -> None:
    _, revision = await every(store, "w/")
    await store.write([Put("w/a", b"1")])
    await store.write([Put("w/b", b"2")])
    watch, seen = store.watch("w/", revision), list[str]()
    while len(seen) < 2:
        seen += [change.key for change in await next_of(watch)]
    assert seen == ["w/a", "w/b"]


async def test_keys_of_a_lease_go_when_it_is_revoked(store: Store) -> None:
    lease = await store.lease(60)
    await store.write([Put("l/a", b"", lease), Put("l/b", b"", lease), Put("l/c", b"")])
    await store.revoke(lease)
    assert await names(store, "l/") == ["l/c"]
    assert not await store.renew(lease)
    await store.revoke(lease)


async def test_key_that_was_put_again_without_the_lease_stays(store: Store) -> None:
    lease = await store.lease(60)
    await store.write([Put("l/a", b"1", lease)])
    await store.write([Put("l/a", b"2")])
    await store.revoke(lease)
    item = await store.get("l/a")
    assert item is not None and item.value == b"2"


async def test_put_under_a_lease_that_has_ended_is_stale(store: Store) -> None:
    lease = await store.lease(60)
    await store.revoke(lease)
    with pytest.raises(Stale):
        await store.write([Put("l/a", b"", lease)])
    assert await store.get("l/a") is None


async def test_lease_that_nobody_renews_takes_its_keys_and_the_watch_says_so(store: Store) -> None:
    _, revision = await every(store, "l/")
    lease = await store.lease(LEASE_S_MIN)
    await store.write([Put("l/a", b"1", lease)])
    watch, seen = store.watch("l/", revision), list[bytes | None]()
    while len(seen) < 2:
        seen += [change.value for change in await next_of(watch)]
    assert seen == [b"1", None]
    assert not await store.renew(lease)


async def test_embedded_store_keeps_what_was_written(tmp_path: Path) -> None:
    first = await Embedded.open(str(tmp_path), SystemClock())
    await first.write([Put("a", b"1")])
    item = await first.get("a")
    await first.close()
    second = await Embedded.open(str(tmp_path), SystemClock())
    assert await second.get("a") == item
    await second.write([Put("b", b"")])
    later = await second.get("b")
    assert item is not None and later is not None and later.revision > item.revision
    await second.close()


async def test_embedded_store_is_for_one_at_a_time_and_the_next_waits(tmp_path: Path) -> None:
    first = await Embedded.open(str(tmp_path), SystemClock())
    with pytest.raises(Busy):
        await Embedded.open(str(tmp_path), SystemClock())
    waiting = asyncio.ensure_future(Embedded.open(str(tmp_path), SystemClock(), wait=True))
    await first.write([Put("a", b"1")])
    assert not waiting.done()
    await first.close()
    second = await waiting
    assert await second.get("a") == Item("a", b"1", 1)
    await second.close()


async def test_lease_of_an_embedded_store_outlives_a_restart_and_then_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    first = await Embedded.open(str(tmp_path), clock)
    lease = await first.lease(100)
    await first.write([Put("a", b"", lease)])
    await first.close()
    clock.advance(99)
    second = await Embedded.open(str(tmp_path), clock)
    assert second._leases[lease].ends_s == 99 + GRACE_S, "nobody could renew it while the store was closed"
    assert second._leases[lease].keys == {"a"}
    clock.advance(GRACE_S)
    second._lease_wake.set()
    assert [change.value for change in await next_of(second.watch("a", 1))] == [None]
    assert await second.get("a") is None
    await second.close()


async def test_watch_of_an_embedded_store_says_when_it_can_not_tell_what_was_missed(tmp_path: Path) -> None:
    first = await Embedded.open(str(tmp_path), SystemClock())
    await first.write([Put("a", b"")])
    await first.close()
    second = await Embedded.open(str(tmp_path), SystemClock())
    with pytest.raises(Compacted):
        await next_of(second.watch("", 0))
    await second.close()


async def test_etcd_that_is_not_there_is_unavailable() -> None:
    store = Etcd(["http://127.0.0.1:1"])
    with pytest.raises(Unavailable):
        await store.get("a")
    with pytest.raises(Unavailable):
        await next_of(store.watch("", 0))
    await store.close()


@pytest.mark.servers
async def test_etcd_asks_the_next_member_when_one_can_not_be_reached(etcd: EtcdServer, tmp_path: Path) -> None:
    store = Etcd(["http://127.0.0.1:1", etcd.endpoint], prefix=f"{tmp_path.name}/")
    assert await store.write([Put("a", b"1")], expect={"a": 0})
    assert await store.get("a") is not None
    await store.close()


@pytest.mark.parametrize("url", ["etcd://", "http://host:1", "lmdb"])
async def test_address_that_is_no_etcd_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        Etcd.at(url)


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"", b"\0"), (b"\xff", b"\0")], ids=["letter", "high", "all", "last"]
)
def test_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, end: bytes) -> None:
    assert end_of(prefix) == end
