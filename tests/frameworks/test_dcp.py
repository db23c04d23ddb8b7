"""torch.distributed.checkpoint on the mount: what it saves is loaded from an HTTP origin, and onto a local site and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, mounted
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'foremount[torch]'")
dcp = pytest.importorskip("torch.distributed.checkpoint")

pytestmark = [*MOUNT, pytest.mark.frameworks]
CONFIG = """
[sites.disk]
kind = "local"
path = "{base}/disk"
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/local"
site = "disk"
writable = true
[[mounts]]
prefix = "/remote"
site = "origin"
[cache]
directory = "{base}/cache"
"""
LAYERS = 12


def state(seed: int) -> dict[str, Any]:
    """Return tensors of several sizes and types, and what is no tensor."""
    torch.manual_seed(seed)
    tensors = {f"text.{layer}.weight": torch.randn(256, 300) for layer in range(LAYERS)}
    tensors |= {f"text.{layer}.bias": torch.randn(256).to(torch.bfloat16) for layer in range(LAYERS)}
    tensors |= {f"vision.{layer}.weight": torch.randn(300, 256) for layer in range(LAYERS)}
    tensors |= {"empty": torch.zeros(0, 5), "step": torch.tensor(7)}
    return {**tensors, "epoch": 3}


def blank(given: dict[str, Any]) -> dict[str, Any]:
    """Return a state of the same shape to load into."""
    return {name: torch.zeros_like(value) if torch.is_tensor(value) else 0 for name, value in given.items()}


def save(given: dict[str, Any], directory: Path) -> None:
    dcp.save(given, storage_writer=dcp.FileSystemWriter(directory), no_dist=True)


def load(wanted: dict[str, Any], directory: Path) -> dict[str, Any]:
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(directory), no_dist=True)
    return wanted


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value, name


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    base, root = tmp_path_factory.mktemp("dcp"), wan_origin_server.root / "dcp"
    (base / "disk").mkdir()
    for step in (1, 2, 3):
        save(state(step), root / f"step_{step}")
    with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/dcp"), base) as lake:
        yield lake


def test_dcp_loads_everything_from_a_cold_origin(lake: Lake, wan_origin: WanOrigin) -> None:
    """D28"""
    assert_same(load(blank(state(1)), lake.root / "remote/step_1"), state(1))
    assert wan_origin.stats()["by_path"]["/dcp/step_1/.metadata"]["gets"] == 1


def test_dcp_loads_one_modality_and_the_shard_is_predicted_by_its_metadata(lake: Lake, wan_origin: WanOrigin) -> None:
    (shard,) = (lake.root / "remote/step_2").glob("*.distcp")
    with open(shard, "rb", buffering=0) as held:
        wanted = {name: value for name, value in state(2).items() if name.startswith("text.")}
        assert_same(load(blank(wanted), lake.root / "remote/step_2"), wanted)
        said = json.loads(lake.command("explain", str(shard), "--json").stdout)
        assert (said["prefetch"]["by"], said["prefetch"]["format"]) == ("members", "dcp")
        assert said["prefetch"]["members"] == len(state(2))
        assert any(pattern.startswith("text.") for pattern in said["prefetch"]["patterns_wanted"])
        assert held.read(2)
    size = shard.stat().st_size
    assert wan_origin.stats()["by_path"][f"/dcp/step_2/{shard.name}"]["bytes"] <= size


def test_dcp_saves_onto_a_writable_mount_and_loads_from_it(lake: Lake) -> None:
    """D76"""
    directory = lake.root / "local/step_9"
    for seed in (8, 9):  # the second one replaces the first
        save(state(seed), directory)
    assert_same(load(blank(state(9)), directory), state(9))


def test_a_dcp_checkpoint_without_its_metadata_is_no_checkpoint_to_anybody(lake: Lake, wan_origin: WanOrigin) -> None:
    (wan_origin.root / "dcp/step_3/.metadata").unlink()
    with pytest.raises(dcp.api.CheckpointException, match="metadata"):
        load(blank(state(3)), lake.root / "remote/step_3")
    (shard,) = (lake.root / "remote/step_3").glob("*.distcp")
    assert shard.read_bytes() == (wan_origin.root / "dcp/step_3" / shard.name).read_bytes()
