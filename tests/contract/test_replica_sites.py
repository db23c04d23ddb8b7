"""A copy at a real site of each kind is proven, read, and noticed to be gone.

Of `vfs/agent/reading/replicas.py` over real servers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.hdfs import Hdfs
from tests.servers.nginx import Nginx
from tests.servers.seaweedfs import SeaweedFs, credentials
from tests.servers.wan_origin import WanOrigin
from vfs.agent.reading.replicas import Replicas
from vfs.clock import SystemClock
from vfs.config import Replica
from vfs.errors import Stale
from vfs.extents.layout import Identity
from vfs.extents.placement import Serving
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.written import SiteOrder
from vfs.sites.arrow import ArrowSite
from vfs.sites.http import HttpSite
from vfs.sites.protocol import Site
from vfs.sites.webhdfs import WebHdfsSite

FAR, NEAR = SiteName("far"), SiteName("near")
BODY = random.Random(41).randbytes(700_001)
OTHER = random.Random(42).randbytes(700_001)
WRITTEN_S = 1_700_000_000
Put = Callable[[bytes], None]
"""Write the copy, with the origin's time where the store lets a writer say it."""


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if content is BODY:
        os.utime(path, (WRITTEN_S, WRITTEN_S))


def at_origin(request: pytest.FixtureRequest, own: Path) -> Site:
    """Return an HTTP origin that has the body."""
    origin: WanOrigin = request.getfixturevalue("wan_origin")
    write(origin.root / own.name / "run/a", BODY)
    return HttpSite(FAR, f"{origin.url}/{own.name}")


def nginx_copy(request: pytest.FixtureRequest, own: Path) -> tuple[Site, Site, Put]:
    server: Nginx = request.getfixturevalue("nginx")
    target = server.root / own.name / "run/a"
    return at_origin(request, own), HttpSite(NEAR, f"{server.url}/json/{own.name}"), lambda body: write(target, body)


def hdfs_copy(request: pytest.FixtureRequest, own: Path) -> tuple[Site, Site, Put]:
    server: Hdfs = request.getfixturevalue("hdfs")

    def put(body: bytes) -> None:
        server.mkdir(f"/{own.name}/run")
        server.put(f"/{own.name}/run/a", body)
        if body is BODY:
            server.set_mtime_ms(f"/{own.name}/run/a", WRITTEN_S * 1000)

    return at_origin(request, own), WebHdfsSite(NEAR, server.url, root=f"/{own.name}", user=server.user), put


def arrow_copy(request: pytest.FixtureRequest, own: Path) -> tuple[Site, Site, Put]:
    root = own / "copies"
    return at_origin(request, own), ArrowSite(NEAR, root.as_uri()), lambda body: write(root / "run/a", body)


def s3_copy(request: pytest.FixtureRequest, own: Path) -> tuple[Site, Site, Put]:
    """S3 says when a copy was uploaded, not when its original was; its ETag is the content's."""
    server: SeaweedFs = request.getfixturevalue("seaweedfs")
    keys = own / "credentials"
    keys.write_text(credentials())
    store = server.filesystem()

    def put(prefix: str, body: bytes) -> None:
        with store.open_output_stream(f"lake/{own.name}-{prefix}/run/a") as target:
            target.write(body)

    put("far", BODY)
    sites = (server.site(FAR, f"{own.name}-far", keys), server.site(NEAR, f"{own.name}-near", keys))
    return *sites, lambda body: put("near", body)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("make", "proof"),
    [(nginx_copy, ()), pytest.param(hdfs_copy, (), marks=pytest.mark.slow), (arrow_copy, ()), (s3_copy, (FAR, NEAR))],
    ids=["http", "webhdfs", "arrow-file", "s3"],
)
async def test_a_copy_is_proven_read_and_noticed_to_be_another_version(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make: Callable[[pytest.FixtureRequest, Path], tuple[Site, Site, Put]],
    proof: tuple[SiteName, ...],
) -> None:
    far, near, put = make(request, tmp_path)
    put(BODY)
    path = SitePath("run/a")
    origin = Identity(FAR, path, (await far.stat(path)).version)
    found = await find(near, proof, origin)
    assert [(each.site, each.path) for each in found] == [(NEAR, path)]
    assert await read(near, found[0]) == BODY[100_000:600_000]
    put(OTHER)
    with pytest.raises(Stale):
        await read(near, found[0])
    assert await find(near, proof, origin) == []
    await far.close()
    await near.close()


async def find(near: Site, tell_etags: tuple[SiteName, ...], origin: Identity) -> list[Identity]:
    """Return what a finder that knows nothing yet finds, however long it takes."""
    replicas = Replicas(
        MountTable([MountPoint(LakePath(""), FAR, SitePath(""), (Replica(NEAR, SitePath("")),))]),
        {NEAR: near},
        tell_etags=tell_etags,
        tell_times=() if tell_etags else (FAR, NEAR),
        clock=SystemClock(),
        believed_s=lambda _: 60.0,
        on_answer=lambda site, after_s: None,
        spawn=lambda work: asyncio.ensure_future(work),
        wait_s=20.0,
    )
    return await replicas.find(LakePath("run/a"), origin, Serving(SiteOrder(["nearest"])), lambda late: None)


async def read(site: Site, copy: Identity) -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(copy.path, copy.version, 100_000, 500_000)])
