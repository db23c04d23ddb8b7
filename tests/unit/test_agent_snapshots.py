"""Snapshots over a real catalog and the memory site: what they hold stays, whatever becomes of the origin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.agent.reading.snapshots import Snapshots
from vfs.clock import FakeClock
from vfs.errors import AlreadyExists, Denied, NotADirectory, NotFound, Stale, Unavailable, Unsupported
from vfs.model import Kind, LakePath, SiteName, SitePath, Version
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.namespace.pins import Pins
from vfs.namespace.snapshots import ID_MAX, ID_MIN, Snapshot, next_id, roots_of
from vfs.policy.store import PolicySet, PolicyStore
from vfs.sites.faults import Fail, FaultySite
from vfs.sites.memory import MemorySite


class World:
    """Two origins, one mounted in the other, and the service over them."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.outer, self.inner = (MemorySite(SiteName(name), clock=self.clock) for name in ("outer", "inner"))
        self.site = FaultySite(self.outer)
        points = [(LakePath(""), SiteName("outer")), (LakePath("a/b"), SiteName("inner"))]
        self.mounts = MountTable([MountPoint(prefix, site, SitePath("")) for prefix, site in points])
        self.catalog = CatalogWriter(str(directory / "catalog.lmdb"))
        sites = {self.site.name: self.site, self.inner.name: self.inner}
        self.snapshots = Snapshots(self.mounts, sites, self.catalog, _Documents(), self.clock)
        self.pinned = "one"
        self.pins = Pins(self.catalog, lambda path: self.pinned)

    async def take(self, name: str, prefix: str) -> dict[str, Any]:
        return [record async for record in self.snapshots.take(name, LakePath(prefix))][-1]

    def held(self, prefix: str) -> dict[str, tuple[Kind, Version]]:
        """Return all that the snapshot in force holds below a prefix, as its listings and as single names say it."""
        found: dict[str, tuple[Kind, Version]] = {}
        snapshot, count = self.pins.directory(LakePath(prefix))
        entries = [
            entry for at in range(0, count, 2) for entry in self.pins.page(LakePath(prefix), snapshot.id, at, 2) if entry
        ]
        assert len(entries) == count
        for entry in entries:
            path = f"{prefix}/{entry.name}".lstrip("/")
            assert self.pins.entry(LakePath(path)) == entry
            found[path] = entry.kind, entry.version
            if entry.kind is Kind.DIRECTORY:
                found |= self.held(path)
        return found


class _Documents:
    """No document of the admin's own."""

    current: PolicySet = PolicyStore([]).current


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


PATHS = st.sampled_from(["d/x", "d/y", "d/e/x", "d/e/f/g", "z", "d/b/x", "d/b/c/d"])
CHANGES = st.lists(st.tuples(PATHS, st.one_of(st.none(), st.binary(max_size=8))), max_size=12)


def apply(site: MemorySite, changes: list[tuple[str, bytes | None]], files: set[str]) -> None:
    """Publish or remove; None removes."""
    for path, content in changes:
        if content is not None:
            site.put(SitePath(path), content)
            files.add(path)
        elif path in files:
            site.delete(SitePath(path))
            files.remove(path)


@settings(max_examples=60, deadline=None)
@given(before=CHANGES, after=CHANGES)
def test_a_snapshot_holds_what_was_there_whatever_comes_later(
    before: list[tuple[str, bytes | None]], after: list[tuple[str, bytes | None]]
) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(check_snapshot(World(Path(directory)), before, after))


async def check_snapshot(world: World, before: list[tuple[str, bytes | None]], after: list[tuple[str, bytes | None]]) -> None:
    files: set[str] = set()
    world.outer.put(SitePath("d/always"), b"x")
    apply(world.outer, before, files)
    expected = {path: (await world.outer.stat(SitePath(path))).version for path in files if path.startswith("d/")}
    expected["d/always"] = (await world.outer.stat(SitePath("d/always"))).version
    taken = await world.take("one", "d")
    apply(world.outer, after, files)
    await world.take("two", "d")
    held = world.held("d")
    assert {path: version for path, (kind, version) in held.items() if kind is Kind.FILE} == expected
    assert (taken["files"], taken["bytes"]) == (len(expected), sum(version.size for version in expected.values()))
    assert taken["directories"] == 1 + sum(kind is Kind.DIRECTORY for kind, _ in held.values())
    await world.snapshots.drop("one")
    world.pinned = "two"
    now = {path: version for path, (kind, version) in world.held("d").items() if kind is Kind.FILE}
    assert now == {
        path: (await world.outer.stat(SitePath(path))).version for path in {*files, "d/always"} if path.startswith("d/")
    }
    await world.snapshots.drop("two")
    with pytest.raises(Stale):
        world.pins.entry(LakePath("d/always"))
    world.catalog.close()


async def test_what_is_mounted_below_a_prefix_is_in_its_snapshot(world: World) -> None:
    world.outer.put(SitePath("a/x"), b"1")
    world.outer.put(SitePath("a/b/hidden"), b"by the mount")
    world.inner.put(SitePath("deep/y"), b"22")
    assert (await world.take("one", ""))["files"] == 2
    assert {path for path, (kind, _) in world.held("").items() if kind is Kind.FILE} == {"a/x", "a/b/deep/y"}


async def test_paths_that_the_snapshot_does_not_hold_are_stale_and_not_absent(world: World) -> None:
    world.outer.put(SitePath("d/x"), b"1")
    await world.take("one", "d")
    with pytest.raises(NotFound):
        world.pins.entry(LakePath("d/none"))
    with pytest.raises(Stale, match="which holds /d only"):
        world.pins.entry(LakePath("dd"))
    with pytest.raises(NotADirectory):
        world.pins.directory(LakePath("d/x"))
    world.pinned = "another"
    with pytest.raises(Stale, match="foremount snapshot create another PREFIX"):
        world.pins.entry(LakePath("d/x"))


async def test_reader_that_has_begun_goes_on_in_its_snapshot_until_that_is_dropped(world: World) -> None:
    for name in "abc":
        world.outer.put(SitePath(f"d/{name}"), b"1")
    await world.take("one", "d")
    await world.take("two", "d")
    snapshot, _ = world.pins.directory(LakePath("d"))
    world.pinned = "two"
    assert [entry and entry.name for entry in world.pins.page(LakePath("d"), snapshot.id, 1, 5)] == ["b", "c"]
    await world.snapshots.drop("one")
    with pytest.raises(Stale, match="dropped"):
        world.pins.page(LakePath("d"), snapshot.id, 1, 5)


async def test_failed_snapshot_leaves_nothing_and_its_name_is_free(world: World) -> None:
    world.outer.put(SitePath("d/x"), b"1")
    world.site.inject("list", Fail(Denied("outer")))
    with pytest.raises(Denied):
        await world.take("one", "d")
    assert world.snapshots.facts() == []
    assert (await world.take("one", "d"))["files"] == 1
    with pytest.raises(AlreadyExists, match="choose another name"):
        await world.take("one", "d")


async def test_site_that_fails_for_a_moment_is_asked_again(world: World) -> None:
    world.outer.put(SitePath("d/x"), b"1")
    world.site.inject("list", Fail(Unavailable("outer")))
    assert (await world.take("one", "d"))["files"] == 1


async def test_what_an_earlier_agent_did_not_finish_is_swept(world: World) -> None:
    world.outer.put(SitePath("d/x"), b"1")
    await world.take("one", "d")
    found = world.catalog.snapshot("one")
    assert found is not None
    world.catalog.put_snapshot(Snapshot(found.name, found.id, found.prefix, found.roots, found.begun_ns))
    with pytest.raises(Stale):
        world.pins.entry(LakePath("d/x"))
    await world.snapshots.sweep()
    assert world.snapshots.facts() == []
    assert world.catalog.known(found.held_at(LakePath("d/x"))) is None
    assert world.catalog.listing(found.held_at(LakePath("d"))) is None


async def test_only_directories_that_are_there_can_be_taken(world: World) -> None:
    world.outer.put(SitePath("d/x"), b"1")
    with pytest.raises(NotADirectory):
        await world.take("one", "d/x")
    with pytest.raises(NotFound):
        await world.take("one", "none")
    with pytest.raises(Unsupported, match="is no name"):
        await world.take("o/ne", "d")


def test_ids_lie_apart_from_generations_and_are_used_again_at_last(world: World) -> None:
    def held(number: int) -> Snapshot:
        return Snapshot("x", number, LakePath(""), (), 0)

    assert next_id([]) == ID_MIN
    assert next_id([held(ID_MIN), held(ID_MIN + 7)]) == ID_MIN + 8
    assert next_id([held(ID_MIN), held(ID_MAX)]) == ID_MIN + 1
    assert roots_of(world.mounts, LakePath("a")) == ("a", "a/b")
    assert roots_of(world.mounts, LakePath("a/b/c")) == ("a/b/c",)
