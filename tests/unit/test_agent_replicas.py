"""Finding replicas: `vfs/agent/reading/replicas.py`, over sites in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from vfs import config
from vfs.agent.reading.replicas import REST_S, Replicas, tell_etags, tell_times
from vfs.clock import FakeClock
from vfs.config import Replica
from vfs.errors import Denied, Unavailable
from vfs.extents.layout import Identity
from vfs.extents.placement import Serving
from vfs.model import LakePath, SiteName, SitePath, Version
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.written import SiteOrder
from vfs.sites.faults import Fail, FaultySite, Stall
from vfs.sites.memory import MemorySite

FAR, NEAR = SiteName("far"), SiteName("near")
PATH, AT = LakePath("models/a"), SitePath("copies/a")
NEAREST = Serving(SiteOrder(["nearest", "origin"]))


class Bench:
    """One mount with an origin and one replica site."""

    def __init__(self, wait_s: float = 20.0) -> None:
        self.store = MemorySite(NEAR)
        self.near = FaultySite(self.store)
        self.clock = FakeClock()
        self.late: list[Identity] = []
        self.answered: list[SiteName] = []
        self.tasks: list[asyncio.Future[None]] = []
        point = MountPoint(LakePath("models"), FAR, SitePath(""), (Replica(NEAR, SitePath("copies")),))
        self.replicas = Replicas(
            MountTable([point]),
            {NEAR: self.near},
            tell_etags=(),
            tell_times=(FAR, NEAR),
            clock=self.clock,
            believed_s=lambda path: 60.0,
            on_answer=lambda site, after_s: self.answered.append(site),
            spawn=self.spawn,
            wait_s=wait_s,
        )

    def spawn(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def put(self, content: bytes) -> Identity:
        """Store a copy; return what the origin says of the same bytes."""
        version = self.store.put(AT, content)
        return Identity(FAR, SitePath("a"), Version(len(content), version.mtime_ns))

    async def find(self, origin: Identity, serving: Serving = NEAREST) -> list[Identity]:
        return await self.replicas.find(PATH, origin, serving, self.late.append)


def test_object_stores_tell_etags_and_no_times_of_copies() -> None:
    loaded = config.parse("""
        [sites.disk]
        kind = "local"
        path = "/srv"
        [sites.web]
        kind = "http"
        url = "http://127.0.0.1/"
        [sites.bucket]
        kind = "s3"
        url = "s3://bucket/lake"
        [sites.cloud]
        kind = "arrow"
        url = "gs://bucket/lake"
        [sites.shared]
        kind = "arrow"
        url = "file:///srv"
        [[mounts]]
        prefix = "/"
        site = "web"
    """)
    assert tell_etags(loaded.sites) == {"web", "bucket"}
    assert tell_times(loaded.sites) == {"disk", "web", "shared"}


async def test_a_copy_is_found_under_its_own_name_and_version_and_asked_for_once() -> None:
    at = Bench()
    origin = at.put(b"same")
    found = await at.find(origin)
    assert [(each.site, each.path, each.version.size) for each in found] == [(NEAR, AT, 4)]
    assert await at.find(origin) == found
    assert at.answered == [NEAR]


async def test_a_file_without_proof_is_no_replica() -> None:
    at = Bench()
    origin = at.put(b"same")
    older = Identity(FAR, origin.path, Version(4, origin.version.mtime_ns - 10**9))
    assert await at.find(older) == []
    (finding,) = await at.replicas.findings(PATH, older, NEAREST)
    assert finding.why == "has a file of that size, but neither ETag nor modification time prove it the same"


async def test_a_site_without_the_file_is_no_replica_and_no_trouble() -> None:
    at = Bench()
    assert await at.find(Identity(FAR, SitePath("a"), Version(4, 10**18))) == []


async def test_a_site_that_denies_keeps_its_place_and_will_deny_the_read() -> None:
    at = Bench()
    origin = at.put(b"same")
    at.near.inject("stat", Fail(Denied("near", "answered 403")))
    assert await at.find(origin) == [Identity(NEAR, AT, origin.version)]


async def test_a_site_that_is_away_is_left_alone_until_it_has_rested() -> None:
    at = Bench()
    origin = at.put(b"same")
    at.near.inject("stat", Fail(Unavailable("near")))
    assert await at.find(origin) == []
    assert await at.find(origin) == []
    at.clock.advance(REST_S)
    assert len(await at.find(origin)) == 1


async def test_a_replica_that_answers_late_is_handed_over() -> None:
    at = Bench(wait_s=0.01)
    origin = at.put(b"same")
    stall = Stall(asyncio.Event())
    at.near.inject("stat", stall)
    assert await at.find(origin) == []
    (finding,) = await at.replicas.findings(PATH, origin, NEAREST)
    assert finding.why == "did not answer a moment ago"
    stall.gate.set()
    await asyncio.gather(*at.tasks)
    assert [each.site for each in at.late] == [NEAR]


async def test_a_replica_that_comes_after_the_origin_is_not_waited_for() -> None:
    at = Bench()
    origin = at.put(b"same")
    assert await at.find(origin, Serving(SiteOrder(["origin", "nearest"]))) == []
    await asyncio.gather(*at.tasks)
    assert [each.site for each in at.late] == [NEAR]


async def test_a_site_that_the_order_leaves_out_is_not_asked() -> None:
    at = Bench()
    origin = at.put(b"same")
    assert await at.find(origin, Serving(SiteOrder(["origin"]))) == []
    assert at.answered == []
