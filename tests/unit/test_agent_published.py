"""Copies that were published serve what they are copies of, from one moment to the next: `vfs/agent/reading/published.py`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from vfs import config
from vfs.agent.reading.published import Place, Published
from vfs.clock import SystemClock
from vfs.errors import Unavailable
from vfs.extents.budget import Budget
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.extents.placement import Serving
from vfs.extents.reader import read_copied
from vfs.extents.store import Store
from vfs.foresight.model import FileCopy, HintId, JobName, Mechanism, Phase, ReplicaId, ReplicaRecord
from vfs.model import LakePath, SiteName, SitePath, object_key
from vfs.namespace.mounts import build_mount_table
from vfs.policy.written import SiteOrder
from vfs.sites.faults import Fail, FaultySite
from vfs.sites.memory import MemorySite

ORIGIN = SiteName("origin")
PATH = SitePath("ckpt/step_7/model.bin")
BODY = random.Random(5).randbytes(40 * BLOCK + 17)
SERVING = Serving(SiteOrder(["nearest", "origin"]))


HERE = Place("host-1")


class Lake:
    """An origin, and places that hold copies of its one object."""

    def __init__(self, fetcher: Fetcher, sites: dict[SiteName, FaultySite], memory: dict[SiteName, MemorySite], place: Place):
        self.fetcher, self.sites, self._memory = fetcher, sites, memory
        mounts = build_mount_table(
            config.Config(sites={"origin": config.MemorySite()}, mounts=[config.Mount(prefix="", site="origin")])
        )
        self.published = Published(mounts, fetcher, place)
        self.identity = Identity(ORIGIN, PATH, memory[ORIGIN].put(PATH, BODY))

    def publish(
        self, name: str, ranges: Sequence[tuple[int, int]] = (), mechanism: Mechanism = Mechanism.HOT_FILES
    ) -> ReplicaRecord:
        site, at = SiteName(name), SitePath("copies/model.bin")
        body = b"".join(BODY[start : start + length] for start, length in ranges) if ranges else BODY
        version = self._memory[site].put(at, body)
        replica = ReplicaRecord(
            id=ReplicaId(f"r-{name}"),
            hint=HintId("h"),
            job=JobName("job"),
            mechanism=mechanism,
            path=LakePath("ckpt/step_7"),
            site=site,
            root=SitePath("copies"),
            phase=Phase.PUBLISHED,
        )
        copy = FileCopy(
            path="model.bin",
            size=len(BODY),
            digest="",
            origin_at=PATH,
            origin=self.identity.version,
            at=at,
            version=version,
            ranges=tuple(ranges),
        )
        self.published.put(replica, [copy])
        return replica

    async def hold(self) -> str:
        return await self.fetcher.hold(self.identity, serving=SERVING, copies=self.published.of(self.identity))

    async def read(self, offset: int, length: int) -> bytes:
        root = await self.fetcher.ensure(self.identity, offset, length)
        got = read_copied(root, object_key(*self.fields), offset, length)
        assert got is not None
        return got

    @property
    def fields(self) -> tuple[SiteName, SitePath, object]:
        return self.identity.site, self.identity.path, self.identity.version

    def reads(self) -> dict[str, int]:
        return {name: site.calls["read"] for name, site in self.sites.items() if site.calls["read"]}


@contextlib.asynccontextmanager
async def lake(base: Path, *names: str, place: Place = HERE) -> AsyncIterator[Lake]:
    memory = {SiteName(name): MemorySite(SiteName(name)) for name in ("origin", *names)}
    sites = {name: FaultySite(site) for name, site in memory.items()}
    store, spill = Store.open(str(base / "cache"), 64 << 20), Store.open(str(base / "spill"), 64 << 20)
    with contextlib.closing(store), contextlib.closing(spill):
        budget, clock = Budget(64 << 20), SystemClock()
        async with Fetcher(store, spill, sites, memory=budget, clock=clock, limits=FetchLimits()) as fetcher:
            made = Lake(fetcher, sites, memory, place)
            yield made
            await asyncio.wait_for(fetcher.settled(), 10)


async def test_a_published_copy_serves_in_place_of_the_origin(tmp_path: Path) -> None:
    async with lake(tmp_path, "eval") as found:
        found.publish("eval", mechanism=Mechanism.CHECKPOINTS)
        await found.hold()
        assert await found.read(0, len(BODY)) == BODY
        assert set(found.reads()) == {"eval"}
        found.fetcher.release(object_key(*found.fields))


async def test_an_object_that_is_open_goes_on_from_a_copy_that_is_published_meanwhile(tmp_path: Path) -> None:
    async with lake(tmp_path, "eval") as found:
        await found.hold()
        assert await found.read(0, BLOCK) == BODY[:BLOCK]
        found.publish("eval")
        assert await found.read(20 * BLOCK, BLOCK) == BODY[20 * BLOCK : 21 * BLOCK]
        assert set(found.reads()) == {"origin", "eval"}
        found.fetcher.release(object_key(*found.fields))


async def test_a_copy_that_is_withdrawn_is_asked_no_more_and_is_in_use_only_until_then(tmp_path: Path) -> None:
    async with lake(tmp_path, "eval") as found:
        replica = found.publish("eval")
        await found.hold()
        assert found.published.in_use() == {replica.id}
        found.published.remove(replica.id)
        assert (found.published.in_use(), found.published.of(found.identity)) == (set(), [])
        assert await found.read(0, BLOCK) == BODY[:BLOCK]
        assert set(found.reads()) == {"origin"}
        found.fetcher.release(object_key(*found.fields))


async def test_hot_ranges_come_from_their_copy_and_the_rest_from_the_origin(tmp_path: Path) -> None:
    async with lake(tmp_path, "node") as found:
        found.publish("node", [(4 * BLOCK, 3 * BLOCK), (30 * BLOCK, len(BODY) - 30 * BLOCK)])
        await found.hold()
        assert await found.read(0, len(BODY)) == BODY
        assert found.sites[SiteName("node")].bytes == 3 * BLOCK + len(BODY) - 30 * BLOCK
        assert found.sites[ORIGIN].bytes == 27 * BLOCK
        found.fetcher.release(object_key(*found.fields))


async def test_a_copy_that_dies_is_replaced_by_the_next_in_this_hosts_order(tmp_path: Path) -> None:
    async with lake(tmp_path, "a", "b", "c") as found:
        for name in "abc":
            found.publish(name)
        copies = sorted(found.published.of(found.identity), key=lambda copy: copy.turn or 0)
        first, second = (copy.identity.site for copy in copies[:2])
        found.sites[first].inject("read", Fail(Unavailable(first, "is dead")), times=99)
        await found.hold()
        assert await found.read(0, BLOCK) == BODY[:BLOCK]
        assert set(found.reads()) == {first, second}
        found.fetcher.release(object_key(*found.fields))


async def test_hosts_of_one_job_spread_evenly_over_the_copies(tmp_path: Path) -> None:
    firsts: Counter[str] = Counter()
    async with lake(tmp_path, "a", "b", "c") as found:
        for name in "abc":
            found.publish(name)
        for number in range(24):
            found.published._place = Place("any", number, 24)
            firsts.update(copy.identity.site for copy in found.published.of(found.identity) if copy.turn == 0)
    assert firsts == {"a": 8, "b": 8, "c": 8}


async def test_many_readers_of_one_host_cost_its_copy_each_byte_once(tmp_path: Path) -> None:
    async with lake(tmp_path, "node") as found:
        found.publish("node")
        await found.hold()
        assert set(await asyncio.gather(*(found.read(0, len(BODY)) for _ in range(8)))) == {BODY}
        assert found.sites[SiteName("node")].bytes == len(BODY)
        found.fetcher.release(object_key(*found.fields))
