"""What is fetched ahead, as the policy says, through a mount that is up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.lake import Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

pytestmark = MOUNT
CONFIG = """
policies = ["own.toml"]
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""
POLICY = """
format = 1
[[rules]]
name = "nothing-ahead"
match = { path = "off/**" }
set = { prefetch = "off" }
[[rules]]
name = "all-of-it"
match = { path = "whole/**" }
set = { prefetch = "whole" }
[[rules]]
name = "a-little"
match = { path = "near/**" }
set = { prefetch = "whole", read_ahead = "1MiB" }
"""
SIZE = 8 << 20
MIB = 1 << 20


@pytest.fixture(scope="module")
def lake(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A mount whose policy differs by directory."""
    base, origin = tmp_path_factory.mktemp("prefetch"), wan_origin_server.root / "prefetch"
    (base / "own.toml").write_text(POLICY)
    for name in ("off", "whole", "near", "other"):
        (origin / name).mkdir(parents=True)
        (origin / name / "file").write_bytes(os.urandom(SIZE))
    for index in (1, 2):
        tensors = {f"layers.{layer}.weight": np.full(MIB, layer, np.uint8) for layer in range(4)}
        save_file(tensors, origin / f"model-{index:05d}-of-00002.safetensors")
    with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/prefetch"), base) as lake:
        yield lake


def present(lake: Lake, name: str) -> int:
    """Return how much of a file is in the cache."""
    said = json.loads(lake.command("explain", name, "--mountpoint", str(lake.root), "--json").stdout)
    return int(said["bytes_present"])


def read(lake: Lake, name: str, size: int) -> None:
    """Read the first bytes, as the kernel sends it: 64 KiB at a time."""
    with open(lake.root / name, "rb", buffering=0) as file:
        for _ in range(size >> 16):
            file.read(1 << 16)


def test_policy_whole_brings_all_of_a_file_that_is_only_opened(lake: Lake) -> None:
    with open(lake.root / "whole/file", "rb"):
        wait_until(lambda: present(lake, "whole/file") == SIZE, "the whole file")


def test_policy_off_brings_what_is_read_and_nothing_ahead_of_it(lake: Lake, wan_origin: WanOrigin) -> None:
    before = lake.status()["agent_says"]["fetches"]["prefetched_bytes"]
    read(lake, "off/file", 2 << 20)
    assert lake.status()["agent_says"]["fetches"]["prefetched_bytes"] == before
    kernel_reads_ahead = 256 << 10
    assert 2 << 20 <= present(lake, "off/file") <= (2 << 20) + kernel_reads_ahead


def test_default_brings_what_follows_in_the_file(lake: Lake) -> None:
    with open(lake.root / "other/file", "rb", buffering=0) as file:
        for _ in range(32):
            file.read(1 << 16)
        wait_until(lambda: present(lake, "other/file") >= (2 << 20) + (512 << 10), "what follows")


def test_policy_says_how_far_ahead(lake: Lake) -> None:
    with open(lake.root / "near/file", "rb", buffering=0) as file:
        wait_until(lambda: present(lake, "near/file") == 1 << 20, "the first MiB")
        for _ in range(16):
            file.read(1 << 16)
        wait_until(lambda: present(lake, "near/file") >= 2 << 20, "the second MiB")
        assert present(lake, "near/file") <= (2 << 20) + (256 << 10)


def test_the_next_shard_is_there_before_it_is_opened(lake: Lake, wan_origin: WanOrigin) -> None:
    with safe_open(lake.root / "model-00001-of-00002.safetensors", framework="np") as shard:
        for layer in range(4):
            assert (shard.get_tensor(f"layers.{layer}.weight") == layer).all()
        wait_until(lambda: present(lake, "model-00002-of-00002.safetensors") >= 4 * MIB, "the next shard in the cache")
    before = wan_origin.stats()["bytes"]
    with safe_open(lake.root / "model-00002-of-00002.safetensors", framework="np") as shard:
        assert all((shard.get_tensor(f"layers.{layer}.weight") == layer).all() for layer in range(4))
    assert wan_origin.stats()["bytes"] == before
