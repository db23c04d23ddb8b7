"""The metadata service over the memory site with injected faults; time stands still."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vfs.agent.reading.metadata import SITE_REST_S, Metadata
from vfs.clock import FakeClock
from vfs.errors import Denied, NotADirectory, NotFound, Unavailable
from vfs.model import Entry, Kind, LakePath, SiteName, SitePath, Version
from vfs.namespace.catalog import CatalogWriter, Known
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.sites import memory
from vfs.sites.faults import ChangedEtag, Fail, FaultySite, Stall
from vfs.sites.memory import MemorySite

TTL_S = 60.0


@dataclass
class World:
    """An origin and the service over it."""

    memory: MemorySite
    site: FaultySite
    catalog: CatalogWriter
    clock: FakeClock
    metadata: Metadata
    version_ttls: dict[str, float]
    tasks: set[asyncio.Future[None]] = field(default_factory=set)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    inner = MemorySite(SiteName("origin"), clock=clock)
    site = FaultySite(inner)
    catalog = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    tasks: set[asyncio.Future[None]] = set()
    version_ttls: dict[str, float] = {}

    def spawn(work: Awaitable[None]) -> None:
        tasks.add(asyncio.ensure_future(work))

    mounts = MountTable([MountPoint(LakePath(""), SiteName("origin"), SitePath(""))])
    metadata = Metadata(
        mounts,
        {site.name: site},
        catalog,
        clock=clock,
        ttl_s=lambda path: TTL_S,
        version_ttl_s=lambda path, size: version_ttls.get(path, TTL_S),
        spawn=spawn,
    )
    yield World(inner, site, catalog, clock, metadata, version_ttls, tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    catalog.close()


def put(world: World, *paths: str) -> None:
    for path in paths:
        world.memory.put(SitePath(path), path.encode())


async def test_callers_of_one_path_share_one_request(world: World) -> None:
    put(world, "d/a")
    stall = Stall(asyncio.Event())
    world.site.inject("stat", stall)
    world.site.inject("list", Fail(Unavailable("origin")), times=100)
    asked = [asyncio.create_task(world.metadata.stat(LakePath("d/a"))) for _ in range(5)]
    await stall.reached.wait()
    stall.gate.set()
    found = await asyncio.gather(*asked)
    assert [entry and entry.version.size for entry in found] == [3] * 5
    assert world.site.calls["stat"] == 1


async def test_second_lookup_in_a_directory_lists_it_and_the_rest_cost_nothing(world: World) -> None:
    put(world, *(f"d/{index}" for index in range(100)))
    for index in range(100):
        found = await world.metadata.stat(LakePath(f"d/{index}"))
        assert found is not None
        assert found.name == str(index)
    assert world.site.calls == {"stat": 1, "list": 1}


async def test_a_commit_marker_that_a_listing_shows_is_not_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(world.clock.wall_ns())
    monkeypatch.setattr(world.clock, "wall_ns", lambda: next(ticks))
    put(world, "d/.metadata", "d/__0_0.distcp")
    listing = asyncio.create_task(world.metadata.list(LakePath("d"), 0, 0))
    await asyncio.sleep(0)
    for name in (".metadata", "__0_0.distcp", ".metadata"):
        found = await world.metadata.stat(LakePath(f"d/{name}"))
        assert found is not None and found.name == name
    await listing
    assert world.site.calls == {"list": 1}
    await world.metadata.stat(LakePath("d/__1_0.distcp"))  # it may have come after that listing was begun
    assert world.site.calls == {"list": 1, "stat": 1}


async def test_absent_name_in_a_listed_directory_costs_nothing(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    for name in ("x", "y", "z"):
        await world.metadata.stat(LakePath(f"d/{name}"))
    calls = dict(world.site.calls)
    assert await world.metadata.stat(LakePath("d/w")) is None
    assert world.site.calls == calls


async def test_name_that_was_asked_for_after_its_listing_is_still_there(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    world.clock.advance(1)
    first = await world.metadata.stat(LakePath("d/a"))
    second = await world.metadata.stat(LakePath("d/a"))
    third = await world.metadata.stat(LakePath("d/a"))
    assert first == second == third is not None


async def test_file_that_is_asked_for_at_each_open_is_not_answered_by_a_listing(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    world.version_ttls["d/a"] = 0.0
    for content in (b"longer", b"longer still"):
        world.memory.put(SitePath("d/a"), content)
        found = await world.metadata.stat(LakePath("d/a"))
        assert found is not None
        assert found.version.size == len(content)
    assert world.site.calls == {"list": 1, "stat": 2}
    await world.metadata.stat(LakePath("d/b"))
    assert world.site.calls["stat"] == 2


async def test_callers_that_each_need_the_newest_version_share_no_request(world: World) -> None:
    put(world, "d/a")
    await world.metadata.stat(LakePath("d/a"))
    world.version_ttls["d/a"] = 0.0
    await asyncio.gather(*(world.metadata.stat(LakePath("d/a")) for _ in range(3)))
    assert world.site.calls == {"stat": 4}


async def test_site_that_rests_is_asked_where_nothing_older_will_do(world: World) -> None:
    put(world, "d/a")
    await world.metadata.stat(LakePath("d/a"))
    world.site.inject("stat", Fail(Unavailable("origin")))
    world.version_ttls["d/a"] = 0.0
    with pytest.raises(Unavailable):
        await world.metadata.stat(LakePath("d/a"))
    assert await world.metadata.stat(LakePath("d/a")) is not None


async def test_listing_older_than_a_version_is_believed_is_made_anew(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    world.version_ttls |= {"d/a": 5.0, "d/b": 5.0}
    world.clock.advance(4)
    await world.metadata.stat(LakePath("d/a"))
    assert world.site.calls == {"list": 1}
    world.clock.advance(2)
    await world.metadata.stat(LakePath("d/a"))
    await world.metadata.stat(LakePath("d/b"))
    assert world.site.calls == {"list": 2, "stat": 1}


async def test_lookups_are_counted_anew_once_the_listing_is_old(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.stat(LakePath("d/a"))
    await world.metadata.stat(LakePath("d/b"))
    world.clock.advance(TTL_S + 1)
    await world.metadata.stat(LakePath("d/a"))
    assert world.site.calls == {"stat": 2, "list": 1}


async def test_listing_counts_for_all_who_ask_while_it_runs(world: World) -> None:
    put(world, "d/a")
    stall = Stall(asyncio.Event())
    world.site.inject("list", stall)
    asked = [asyncio.create_task(world.metadata.list(LakePath("d"), 0, 0)) for _ in range(5)]
    await stall.reached.wait()
    stall.gate.set()
    assert {listed.count for listed in await asyncio.gather(*asked)} == {1}
    assert world.site.calls == {"list": 1}


async def test_first_page_is_answered_before_the_listing_is_complete(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PAGE_ENTRIES", 2)
    put(world, *(f"d/{index}" for index in range(5)))
    listed = await world.metadata.list(LakePath("d"), 0, 0)
    assert listed.count >= 2
    last = await world.metadata.list(LakePath("d"), listed.generation, 5)
    assert (last.generation, last.count, last.complete) == (listed.generation, 5, True)


async def test_caller_that_gives_up_does_not_end_the_listing(world: World) -> None:
    put(world, "d/a")
    stall = Stall(asyncio.Event())
    world.site.inject("list", stall)
    impatient = asyncio.create_task(world.metadata.list(LakePath("d"), 0, 0))
    await stall.reached.wait()
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    stall.gate.set()
    assert (await world.metadata.list(LakePath("d"), 0, 0)).complete
    assert world.site.calls == {"list": 1}


async def test_fresh_listing_is_not_asked_for_again_and_an_old_one_is(world: World) -> None:
    put(world, "d/a")
    await world.metadata.list(LakePath("d"), 0, 0)
    assert (await world.metadata.list(LakePath("d"), 0, 0)).generation == 1
    world.clock.advance(TTL_S + 1)
    assert (await world.metadata.list(LakePath("d"), 0, 0)).generation == 2
    assert world.site.calls == {"list": 2}


async def test_missing_name_is_an_answer_and_an_unreachable_site_is_an_error(world: World) -> None:
    put(world, "d/a")
    assert await world.metadata.stat(LakePath("nothing")) is None
    world.site.inject("stat", Fail(Unavailable("origin")))
    with pytest.raises(Unavailable):
        await world.metadata.stat(LakePath("e/unseen"))
    assert world.catalog.known(LakePath("e/unseen")) is None


async def test_outage_changes_nothing_of_what_is_known(world: World) -> None:
    """D52"""
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    before = [world.catalog.known(LakePath(f"d/{name}")) for name in "ab"]
    world.clock.advance(TTL_S + 1)
    world.site.inject("stat", Fail(Unavailable("origin")), times=100)
    world.site.inject("list", Fail(Unavailable("origin")), times=100)
    for name in "ab":
        with pytest.raises(Unavailable):
            await world.metadata.stat(LakePath(f"d/{name}"))
    with pytest.raises(Unavailable):
        await world.metadata.list(LakePath("d"), 0, 0)
    assert [world.catalog.known(LakePath(f"d/{name}")) for name in "ab"] == before
    listing = world.catalog.listing(LakePath("d"))
    assert listing is not None
    assert (listing.complete, listing.count) == (True, 2)
    assert [found and found.name for found in world.catalog.page(LakePath("d"), listing.generation, 0, 9)] == ["a", "b"]


async def test_site_that_did_not_answer_is_left_alone_for_a_while_where_something_older_is_known(world: World) -> None:
    put(world, "d/a")
    await world.metadata.list(LakePath("d"), 0, 0)
    await world.metadata.stat(LakePath("d/a"))
    world.clock.advance(TTL_S + 1)
    world.site.inject("list", Fail(Unavailable("origin")))
    with pytest.raises(Unavailable):
        await world.metadata.list(LakePath("d"), 0, 0)
    calls = dict(world.site.calls)
    with pytest.raises(Unavailable):
        await world.metadata.list(LakePath("d"), 0, 0)
    with pytest.raises(Unavailable):
        await world.metadata.stat(LakePath("d/a"))
    assert world.site.calls == calls
    assert world.metadata.site_facts() == {"origin": {"answers": False}}
    world.clock.advance(SITE_REST_S)
    assert (await world.metadata.list(LakePath("d"), 0, 0)).complete


async def test_path_that_was_never_seen_is_asked_for_though_the_site_rests(world: World) -> None:
    put(world, "d/a", "e/b")
    world.site.inject("stat", Fail(Unavailable("origin")))
    with pytest.raises(Unavailable):
        await world.metadata.stat(LakePath("d/a"))
    found = await world.metadata.stat(LakePath("e/b"))
    assert found is not None


async def test_refusal_is_told_and_not_taken_for_absence(world: World) -> None:
    put(world, "d/a")
    world.site.inject("stat", Fail(Denied("origin")))
    with pytest.raises(Denied):
        await world.metadata.stat(LakePath("d/a"))
    assert world.catalog.known(LakePath("d/a")) is None
    assert world.metadata.site_facts() == {"origin": {"answers": True}}


async def test_listing_a_missing_directory_or_a_file_says_so(world: World) -> None:
    put(world, "d/a")
    with pytest.raises(NotFound):
        await world.metadata.list(LakePath("nothing"), 0, 0)
    with pytest.raises(NotADirectory):
        await world.metadata.list(LakePath("d/a"), 0, 0)


async def test_root_of_a_mount_exists_though_its_store_knows_no_such_object(world: World) -> None:
    world.site.inject("stat", Fail(NotFound("origin")))
    assert await world.metadata.stat(LakePath("")) == Entry("", Kind.DIRECTORY, Version(0))


async def test_new_version_is_seen_when_the_listing_is_old(world: World) -> None:
    """D51"""
    put(world, "d/a")
    first = await world.metadata.stat(LakePath("d/a"))
    await world.metadata.list(LakePath("d"), 0, 0)
    world.clock.advance(TTL_S + 1)
    world.memory.put(SitePath("d/a"), b"new")
    second = await world.metadata.stat(LakePath("d/a"))
    assert first is not None
    assert second is not None
    assert first.version.size == second.version.size
    assert first.version != second.version


async def test_changed_etag_is_another_version(world: World) -> None:
    put(world, "d/a")
    world.site.inject("stat", ChangedEtag("other"))
    found = await world.metadata.stat(LakePath("d/a"))
    assert found is not None
    assert found.version.etag == "other"


async def test_deleted_name_is_absent_once_its_directory_is_listed_anew(world: World) -> None:
    put(world, "d/a", "d/b")
    await world.metadata.list(LakePath("d"), 0, 1)
    world.clock.advance(TTL_S + 1)
    world.memory.delete(SitePath("d/b"))
    await world.metadata.list(LakePath("d"), 0, 0)
    assert world.catalog.known(LakePath("d/b")) is None
    await world.metadata.stat(LakePath("d/a"))
    assert await world.metadata.stat(LakePath("d/b")) is None


async def test_nothing_is_there_outside_of_all_mounts(tmp_path: Path) -> None:
    catalog = CatalogWriter(str(tmp_path / "c.lmdb"))
    metadata = Metadata(
        MountTable([]),
        {},
        catalog,
        clock=FakeClock(),
        ttl_s=lambda path: 1.0,
        version_ttl_s=lambda path, size: 1.0,
        spawn=asyncio.ensure_future,
    )
    with pytest.raises(NotFound):
        await metadata.stat(LakePath("x"))
    catalog.close()


async def test_absence_is_remembered(world: World) -> None:
    await world.metadata.stat(LakePath("d/x"))
    known = world.catalog.known(LakePath("d/x"))
    assert known == Known(None, world.clock.wall_ns())


async def test_the_directory_of_a_step_is_listed_along_with_its_stat(world: World) -> None:
    put(world, "run/step_1/a", "run/step_2/a")
    for step in (1, 2):
        found = await world.metadata.stat(LakePath(f"run/step_{step}"))
        assert found is not None
        assert found.kind is Kind.DIRECTORY
        await world.metadata.list(LakePath(f"run/step_{step}"), 0, 0)
    assert world.site.calls == {"stat": 2, "list": 2}


async def test_files_of_a_directory_are_told_as_it_lists_them(world: World) -> None:
    put(world, "run/a", "run/b")
    assert [entry.name for entry in await world.metadata.files(LakePath("run"))] == ["a", "b"]
    with pytest.raises(NotFound):
        await world.metadata.files(LakePath("nowhere"))


async def test_files_of_a_directory_are_gone_through_anew_when_it_was_listed_anew(world: World) -> None:
    put(world, "run/a")
    first = await world.metadata.files(LakePath("run"))
    assert await world.metadata.files(LakePath("run")) is first
    put(world, "run/b")
    world.clock.advance(TTL_S + 1)
    assert [entry.name for entry in await world.metadata.files(LakePath("run"))] == ["a", "b"]
