"""The wrapper that injects faults: each strikes the calls that it was scripted for, and no other."""

from __future__ import annotations

import asyncio

import pytest

from vfs.errors import Stale, Throttled, Unavailable
from vfs.model import SiteName, SitePath, Version
from vfs.sites.faults import ChangedEtag, Cut, Delay, Fail, FaultySite, Stall, WrongLength
from vfs.sites.memory import MemorySite

PATH = SitePath("a/file")
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def site() -> FaultySite:
    inner = MemorySite(SiteName("memory"))
    inner.put("a/file", CONTENT)
    inner.put("a/other", CONTENT)
    return FaultySite(inner)


async def version_of(site: FaultySite, path: SitePath = PATH) -> Version:
    return (await site.stat(path)).version


async def read(site: FaultySite, version: Version, path: SitePath = PATH) -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(path, version, 0, len(CONTENT))])


async def test_the_nth_call_fails_and_the_others_do_not(site: FaultySite) -> None:
    site.inject("stat", Fail(Throttled("memory")), at=2, times=2)
    await site.stat(PATH)
    for _ in range(2):
        with pytest.raises(Throttled):
            await site.stat(PATH)
    await site.stat(PATH)
    assert site.calls["stat"] == 4


async def test_a_fault_for_one_path_counts_only_its_calls(site: FaultySite) -> None:
    version, other = await version_of(site), await version_of(site, SitePath("a/other"))
    site.inject("read", Fail(Unavailable("memory")), at=2, path=PATH)
    assert await read(site, version) == CONTENT
    assert await read(site, other, SitePath("a/other")) == CONTENT
    with pytest.raises(Unavailable):
        await read(site, version)


@pytest.mark.parametrize("after", [0, 1, 1000, 65_536, 65_537, len(CONTENT)])
async def test_a_cut_read_yields_exactly_the_bytes_before_the_cut(site: FaultySite, after: int) -> None:
    version = await version_of(site)
    site.inject("read", Cut(after))
    got = b""
    with pytest.raises(Unavailable):
        async for piece in site.read(PATH, version, 0, len(CONTENT)):
            got += piece
    assert got == CONTENT[:after]
    assert site.bytes == after


@pytest.mark.parametrize(("delta", "expected"), [(-1, CONTENT[:-1]), (-70_000, CONTENT[:-70_000]), (2, CONTENT + b"??")])
async def test_a_wrong_length_comes_without_an_error(site: FaultySite, delta: int, expected: bytes) -> None:
    version = await version_of(site)
    site.inject("read", WrongLength(delta))
    assert await read(site, version) == expected


@pytest.mark.parametrize("after", [0, 1000, 65_536])
async def test_a_stalled_read_goes_on_when_the_gate_opens(site: FaultySite, after: int) -> None:
    version = await version_of(site)
    stall = Stall(asyncio.Event(), after=after)
    site.inject("read", stall)
    reading = asyncio.create_task(read(site, version))
    await stall.reached.wait()
    assert not reading.done()
    assert site.bytes == after
    stall.gate.set()
    assert await reading == CONTENT


async def test_a_stalled_call_can_be_cancelled(site: FaultySite) -> None:
    stall = Stall(asyncio.Event())
    site.inject("stat", stall)
    waiting = asyncio.create_task(site.stat(PATH))
    await stall.reached.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await site.stat(PATH)


async def test_a_changed_etag_shows_in_stat_and_list_and_makes_reads_stale(site: FaultySite) -> None:
    version = await version_of(site)
    for verb in ("stat", "list", "read"):
        site.inject(verb, ChangedEtag("moved"))
    assert (await version_of(site)).etag == "moved"
    assert [entry.version.etag async for page in site.list(SitePath("a")) for entry in page] == ["moved", "moved"]
    with pytest.raises(Stale):
        await read(site, version)
    assert await read(site, version) == CONTENT


async def test_a_delay_waits_for_what_it_was_given(site: FaultySite) -> None:
    gate = asyncio.Event()
    site.inject("stat", Delay(gate.wait))
    waiting = asyncio.create_task(site.stat(PATH))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    assert (await waiting).name == "file"


async def test_healing_removes_all_faults(site: FaultySite) -> None:
    site.inject("stat", Fail(Unavailable("memory")), times=100)
    site.heal()
    await site.stat(PATH)


async def test_calls_and_ranges_are_counted(site: FaultySite) -> None:
    version = await version_of(site)
    await read(site, version)
    assert site.calls == {"stat": 1, "read": 1}
    assert site.reads == [(PATH, 0, len(CONTENT))]
    assert site.bytes == len(CONTENT)
