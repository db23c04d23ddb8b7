"""More copies of a file by the NameNode itself, and as many as before again.

Of `vfs/agent/foresight/multiplying.py`, on a real HDFS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import or_skip
from tests.servers.hdfs import Hdfs
from tests.servers.hdfs import hdfs as start_hdfs
from vfs.agent.foresight.multiplying import multiply, reduce
from vfs.checkpoints.manifest import ManifestFile
from vfs.foresight.model import FileCopy, HintId, JobName, Mechanism, Phase, ReplicaId, ReplicaRecord
from vfs.model import LakePath, SiteName, SitePath
from vfs.sites.webhdfs import WebHdfsSite

pytestmark = [pytest.mark.servers, pytest.mark.slow]
HDFS = SiteName("hdfs")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS of three DataNodes."""
    with or_skip(start_hdfs(tmp_path_factory.mktemp("hdfs3"), datanodes=3)) as server:
        yield server


@pytest.fixture
async def site(several: Hdfs) -> AsyncIterator[WebHdfsSite]:
    made = WebHdfsSite(HDFS, several.url, root="/lake", user=several.user)
    yield made
    await made.close()


def replica(count: int) -> ReplicaRecord:
    return ReplicaRecord(
        id=ReplicaId("r"),
        hint=HintId("h"),
        job=JobName("j"),
        mechanism=Mechanism.HOT_FILES,
        path=LakePath("step_1"),
        site=HDFS,
        root=SitePath(""),
        phase=Phase.COPYING,
        count=count,
    )


async def test_hot_files_have_more_copies_at_the_namenode_until_they_are_let_go(several: Hdfs, site: WebHdfsSite) -> None:
    several.put("/lake/step_1/.metadata", b"read by all ranks" * 10_000)
    await site.set_replication(SitePath("step_1/.metadata"), 1)
    version = (await site.stat(SitePath("step_1/.metadata"))).version
    file = ManifestFile(".metadata", version.size, "", SitePath("step_1/.metadata"), version)
    done: list[FileCopy] = []

    async def report(copy: FileCopy) -> None:
        done.append(copy)

    await multiply(site, replica(3), [file], report)
    assert (await site.replication(file.at), await site.copies_held(file.at)) == (3, 3)
    assert (done[0].count_before, done[0].version) == (1, version)
    assert (await site.stat(file.at)).version == version
    await reduce(site, replica(3), done)
    assert await site.replication(file.at) == 1


async def test_a_number_that_somebody_else_has_set_meanwhile_stays(several: Hdfs, site: WebHdfsSite) -> None:
    several.put("/lake/step_2/.metadata", b"x")
    at = SitePath("step_2/.metadata")
    version = (await site.stat(at)).version
    copy = FileCopy(path="", size=1, digest="", origin_at=at, origin=version, at=at, version=version, count_before=1)
    await site.set_replication(at, 2)
    gone = FileCopy(
        path="g", size=1, digest="", origin_at=SitePath("gone"), origin=version, at=SitePath("gone"), version=version
    )
    await reduce(site, replica(3), [gone, copy])
    assert await site.replication(at) == 2
