"""A job is submitted with its plan: what all its ranks will read lies on replica servers before they start, and nothing else.

Two hosts, each with a mount and a replica server; the controller runs in the first one's agent.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.lake import FSYNC_IS_LOCAL, Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.private import private
from tests.servers.lifecycle import free_port
from tests.servers.nginx import Nginx
from vfs.errors import ForemountError
from vfs.extents.layout import BLOCK
from vfs.training import Training

pytestmark = [*MOUNT, pytest.mark.servers, pytest.mark.slow]
RANKS, BEARS = 64, 40
NODE = """
[sites.NAME]
kind = "http"
url = "http://127.0.0.1:PORT/"
writes = "put"
headers_file = "SHARED/headers"
copies = "copies"
rack = "rack-NAME"
readers = READERS
"""
CONFIG = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "webdav"
readers = 16
NODES
[[mounts]]
prefix = "/"
site = "origin"
writable = WRITABLE
[cache]
directory = "{base}/cache"
[replica_server]
address = "127.0.0.1:OWN"
directory = "{base}/node"
tokens = "SHARED/node-tokens"
[foresight]
tokens = "SHARED/tokens"
"""
COMMON = bytes(range(256)) * 100
EMBED, LAYER, EXPERT = 6 * BLOCK, BLOCK, 20 * BLOCK


@dataclass(frozen=True)
class Hosts:
    """What the tests of this file share."""

    one: Lake
    two: Lake
    told: Training

    def state(self) -> dict[str, Any]:
        try:
            return self.told.ask("/v1/state")
        except ForemountError:
            return {"replicas": [], "hints": []}

    def published(self) -> dict[str, dict[str, Any]]:
        """Return the copies that are offered, by site."""
        return {each["site"]: each for each in self.state()["replicas"] if each["phase"] == "published"}

    def held(self) -> list[int]:
        """Return how many objects each replica server has."""
        return [int(lake.room("replica server")["objects"]) for lake in (self.one, self.two)]

    def save(self, step: int) -> str:
        """Write a checkpoint of one embedding, one layer and one expert, with what all ranks read beside it."""
        path = f"ckpt/run9/step_{step:07}"
        directory = self.one.root / path
        directory.mkdir(parents=True)
        chance = np.random.default_rng(step)
        sizes = {"embed": EMBED, "layers.0": LAYER, "experts.0": EXPERT}
        tensors = {name: chance.integers(0, 255, size, np.uint8) for name, size in sizes.items()}
        save_file(tensors, self.one.base / "model.safetensors")
        (directory / "model.safetensors").write_bytes((self.one.base / "model.safetensors").read_bytes())
        (directory / "common.pt").write_bytes(COMMON)
        (directory / "_SUCCESS").write_bytes(b"")
        return path

    def submit(self, checkpoint: str) -> None:
        tensors = [["embed", [[0, RANKS, 1]]], ["layers.0", [[0, RANKS, 2]]], ["experts.0", [[0, RANKS, 16]]]]
        self.told.job_submitted(RANKS, checkpoint=checkpoint, tensors=tensors)


@pytest.fixture(scope="module")
def hosts(nginx: Nginx) -> Iterator[Hosts]:
    (nginx.root / "hot").mkdir()
    with contextlib.ExitStack() as stack:
        shared, *bases = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-test-"))) for _ in range(3)]
        tokens = private(shared / "tokens")
        private(shared / "node-tokens", "write node-token\n")
        private(shared / "headers", "Authorization: Bearer node-token\n")
        ports = {name: free_port() for name in ("node-one", "node-two")}
        nodes = "".join(NODE.replace("NAME", name).replace("PORT", str(port)) for name, port in ports.items())
        text = CONFIG.replace("NODES", nodes.replace("READERS", str(BEARS))).replace("URL", f"{nginx.url}/dav/hot/")
        text, controller = text.replace("SHARED", str(shared)), free_port()
        lakes = []
        for index, (base, port) in enumerate(zip(bases, ports.values(), strict=True)):
            (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
            own = text.replace("OWN", str(port)).replace("WRITABLE", "false" if index else "true")
            asks = f'controllers = ["http://127.0.0.1:{controller}"]\n' if index else f'address = "127.0.0.1:{controller}"\n'
            lakes.append(stack.enter_context(mounted(own + asks, base)))
        yield Hosts(*lakes, Training("run9", [f"http://127.0.0.1:{controller}"], tokens=str(tokens)))


def test_submitted_job_has_what_all_its_ranks_read_on_every_rack_and_no_byte_more(hosts: Hosts) -> None:
    path = hosts.save(100)
    hosts.submit(path)
    found = wait_until(lambda: len(found := hosts.published()) == 2 and found, f"two copies; {hosts.state()}")
    ranges = {site: {(each[0].rpartition("/")[2], each[3]) for each in copy["hot"]} for site, copy in found.items()}
    both = {("common.pt", RANKS), ("model.safetensors", RANKS)}
    first, second = sorted(ranges.values(), key=len, reverse=True)
    assert first == both | {("model.safetensors", RANKS // 2)}, "what 32 read is borne by one copy"
    assert second == both
    whole = (hosts.one.base / "model.safetensors").stat().st_size
    for copy in found.values():
        assert copy["files"] == 2
        assert len(COMMON) + EMBED <= copy["bytes"] <= len(COMMON) + EMBED + LAYER + 3 * BLOCK < whole - EXPERT / 2
    wait_until(lambda: hosts.two.room("foresight")["copies_offered"] == 2, "the mount to hear of them")
    assert (hosts.two.root / path / "common.pt").read_bytes() == COMMON
    assert (hosts.two.root / path / "model.safetensors").read_bytes() == (hosts.one.base / "model.safetensors").read_bytes()
    served = sum(int(lake.room("replica server")["read_bytes"]) for lake in (hosts.one, hosts.two))
    assert served >= len(COMMON) + EMBED
    entry = wait_until(
        lambda: next((each for each in hosts.told.ask("/v1/ledger")["entries"] if each["bytes_served"]), None),
        "the mount to tell what it has read",
    )
    assert (entry["mechanism"], entry["outcome"]) == ("hot_files", "hit")


def test_job_that_will_load_another_checkpoint_takes_the_copies_along(hosts: Hosts) -> None:
    path = hosts.save(200)
    hosts.submit(path)
    wait_until(lambda: {copy["path"] for copy in hosts.published().values()} == {path}, "copies of the other checkpoint")
    (hint,) = hosts.state()["hints"]
    assert "64 ranks load this checkpoint at once" in hint["why"]
    hosts.told.restarted(100, path=path.replace("200", "100"))
    wait_until(lambda: not hosts.state()["replicas"], "no copies")
    assert hosts.held() == [0, 0]
    assert json.loads(hosts.one.command("copies", "--mountpoint", str(hosts.one.root), "--json").stdout)["replicas"] == []
