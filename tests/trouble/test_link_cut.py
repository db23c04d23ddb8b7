"""The link between two sites is cut in the middle of a copy, for six times as long as a silent request is waited for.

With what holds in production, a minute: `FOREMOUNT_STALL_S=10 pytest -s tests/trouble/test_link_cut.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fetching import fetching
from tests.private import private
from tests.servers.far_line import FarLine, far_line
from tests.servers.wan_origin import WanOrigin
from tests.stated import stated
from vfs import config
from vfs.agent.foresight.rooms import controlling
from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import SystemClock
from vfs.extents.fetch import Fetcher
from vfs.extents.limits import FetchLimits
from vfs.foresight.model import Committed, FileClosed
from vfs.model import LakePath
from vfs.namespace.mounts import build_mount_table
from vfs.policy.inforce import open_store
from vfs.training import Training

STALL_S = float(os.environ.get("FOREMOUNT_STALL_S", "0.25"))
CUT_S = 6 * STALL_S
MBIT = 160.0
SIZES = (1 << 20, 1 << 20, 8 << 20, 8 << 20, 8 << 20)
PATH = LakePath("ckpt/run7/step_1000")
CONFIG = """
[sites.origin]
kind = "http"
url = "{url}"
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
[[mounts]]
prefix = "/"
site = "origin"
[foresight]
store = "{base}/store"
tokens = "{base}/tokens"
[cache]
directory = "{base}/cache"
"""


@dataclass(frozen=True)
class Sites:
    """A controller, and the line to the origin."""

    told: Training
    fetcher: Fetcher
    line: FarLine
    copies: Path

    async def replica(self) -> dict[str, Any]:
        """Return the one copy as the controller has it."""
        (found,) = (await asyncio.to_thread(self.told.ask, "/v1/state"))["replicas"]
        return dict(found)

    async def tell(self, what: FileClosed | Committed) -> None:
        await asyncio.to_thread(self.told.tell, what)


@contextlib.asynccontextmanager
async def two_sites(base: Path, line: FarLine, below: str) -> AsyncIterator[Sites]:
    (base / "eval").mkdir()
    private(base / "tokens")
    document = base / "controller.toml"
    document.write_text(CONFIG.format(base=base, url=f"http://127.0.0.1:{line.port}/{below}/"))
    loaded = config.load(str(document))
    socket = str(base / "socket")
    async with fetching(loaded, base, FetchLimits(stall_s=STALL_S)) as (fetcher, sites):
        documents = open_store(loaded, str(document))
        running = controlling(
            loaded, build_mount_table(loaded), sites, fetcher, SystemClock(), documents, name="one", socket_path=socket
        )
        async with running:
            yield Sites(Training("run7", [socket]), fetcher, line, base / "eval/copies")


@pytest.mark.slow
@pytest.mark.servers
async def test_copy_goes_on_where_it_was_when_the_link_is_back(tmp_path: Path, wan_origin: WanOrigin, wan_root: Path) -> None:
    bodies = {f"{index}.bin": os.urandom(size) for index, size in enumerate(SIZES)}
    (wan_root / PATH).mkdir(parents=True)
    for name, body in bodies.items():
        (wan_root / PATH / name).write_bytes(body)
    files = [await stated(f"{wan_origin.url}/{wan_root.name}/", f"{PATH}/{name}") for name in bodies]
    with far_line(wan_origin.port, rtt_ms=20, mbit=MBIT) as line:
        async with two_sites(tmp_path, line, wan_root.name) as sites:
            await _told(sites, files)
            there = await _until_some_files_are_there(sites)
            asked = _gets(wan_origin)
            line.cut()
            cut_s = time.monotonic()
            await asyncio.sleep(CUT_S)
            assert sites.fetcher.counters.stalls, "requests were given up because nothing came"
            found = await sites.replica()
            assert (found["phase"], found["published_ns"]) == ("copying", 0)
            assert there <= {each.name: each.stat().st_ino for each in sites.copies.rglob("*.bin")}.items()
            line.mend()
            mended_s = time.monotonic()
            while (found := await sites.replica())["phase"] != "published":
                assert found["published_ns"] == 0
                await asyncio.sleep(0.02)
            print(
                f"cut for {mended_s - cut_s:.1f} s, published {time.monotonic() - mended_s:.1f} s after it was back;", end=" "
            )
            again = _gets(wan_origin)
            print(f"requests {asked.total()} before, {again.total()} at the end; {line.sent_bytes} bytes crossed the line")
            assert {name: again[name] for name, _ in there} == {name: asked[name] for name, _ in there}, "not asked again"
            now = {each.name: each for each in sites.copies.rglob("*.bin")}
            assert there <= {name: each.stat().st_ino for name, each in now.items()}.items(), "what was there has stayed"
            assert {name: each.read_bytes() for name, each in now.items()} == bodies
            wan_origin.heal()


async def _told(sites: Sites, files: list[ManifestFile]) -> None:
    """Have a checkpoint copied that is committed, and will be evaluated."""
    await asyncio.to_thread(sites.told.evaluation_scheduled, "mmlu", 1000, "eval", path=PATH)
    await asyncio.to_thread(sites.told.save_begun, 1000, PATH)
    for file in files:
        await sites.tell(FileClosed(path=PATH, file=file))
    await sites.tell(Committed(step=1000, path=PATH, save_id="1" * 32, marker="", files=tuple(files)))


async def _until_some_files_are_there(sites: Sites) -> set[tuple[str, int]]:
    """Wait until two files are verified and others on their way; return those that the controller has, with their inodes."""
    while True:
        transfer = await sites.replica() if (await asyncio.to_thread(sites.told.ask, "/v1/state"))["replicas"] else None
        if transfer is not None and 2 <= transfer["files"] < len(SIZES):
            root = sites.copies.parent / transfer["root"]
            return {(each.name, each.stat().st_ino) for each in root.rglob("*.bin")}
        await asyncio.sleep(0.01)


def _gets(origin: WanOrigin) -> Counter[str]:
    """Return how often the bytes of each file were asked for."""
    return Counter({path.rpartition("/")[2]: each["gets"] for path, each in origin.stats()["by_path"].items()})
