"""Unmodified libraries and tools save into a remote prefix: through a real mount, over a staging area."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.lake import FSYNC_IS_LOCAL, STAGED, Lake, mounted
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

torch = pytest.importorskip("torch")
pytestmark = [*MOUNT, pytest.mark.frameworks]
RANK = r"""
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
rank, world, root, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[5]}", rank=rank, world_size=world)
def state():
    return {f"rank{rank}.{index}": torch.arange(1000 * (index + 1), dtype=torch.float32) + rank for index in range(5)} | {
        "shared": torch.ones(3, 4)}
if mode == "save":
    dcp.save(state(), checkpoint_id=root)
elif mode == "async":
    dcp.async_save(state(), checkpoint_id=root).result()
else:
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    dcp.load(loaded, checkpoint_id=root)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state().items())
dist.barrier()
dist.destroy_process_group()
"""
WORLD = 4


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def lake(
    request: pytest.FixtureRequest, wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    options = [] if request.param == "passthrough" else ["--no-passthrough"]
    origin = wan_origin_server.root / f"savers-{request.param_index}"
    origin.mkdir()
    base = tmp_path_factory.mktemp("savers")
    (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    with mounted(STAGED.replace("URL", f"{wan_origin_server.url}/{origin.name}"), base, *options) as lake:
        yield lake


@pytest.fixture
def work(lake: Lake, request: pytest.FixtureRequest) -> Path:
    path = lake.root / f"{abs(hash(request.node.nodeid)):x}"
    path.mkdir()
    return path


def tensors() -> dict[str, torch.Tensor]:
    return {f"layer.{index}": torch.arange(10_000 + index, dtype=torch.float32) for index in range(20)}


def test_safetensors_saves_and_loads(work: Path) -> None:
    """D68: a temporary file, grown at once, its mode changed, renamed over."""
    from safetensors.torch import load_file, save_file

    for turn in range(2):
        saved = {name: tensor + turn for name, tensor in tensors().items()}
        save_file(saved, work / "model.safetensors")
        loaded = load_file(work / "model.safetensors")
        assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())
    assert os.listdir(work) == ["model.safetensors"]


SAFETENSORS = """
import os, sys
import safetensors, torch
from safetensors.torch import load_file, save_file
assert safetensors.__version__ == sys.argv[2], safetensors.__version__
for turn in range(2):  # the second one over the first
    saved = {f"layer.{index}": torch.arange(50_000 + index, dtype=torch.float32) + turn for index in range(20)}
    save_file(saved, sys.argv[1], metadata={"format": "pt"})
    loaded = load_file(sys.argv[1])
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())
"""


@pytest.fixture(scope="module")
def safetensors_releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns where a release is: installed beside the environment, which can hold one only."""

    @functools.cache
    def install(release: str) -> Path:
        target = tmp_path_factory.mktemp(f"safetensors-{release}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), f"safetensors=={release}"]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip can't bring safetensors {release}: {done.stderr.strip()[-200:]}")
        return target

    return install


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.7.0", "0.8.0"])
def test_each_release_of_safetensors_saves_in_its_own_way(
    work: Path, safetensors_releases: Callable[[str], Path], release: str
) -> None:
    """0.7 writes in place, 0.8 grows a temporary file at once and renames it over."""
    argv = [sys.executable, "-c", SAFETENSORS, str(work / "model.safetensors"), release]
    environment = os.environ | {"PYTHONPATH": str(safetensors_releases(release))}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.listdir(work) == ["model.safetensors"]


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_saves_and_loads(work: Path, zipped: bool) -> None:
    torch.save(tensors(), work / "model.pt", _use_new_zipfile_serialization=zipped)
    loaded = torch.load(work / "model.pt", weights_only=True, mmap=zipped)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors().items())


def run_ranks(root: Path, mode: str, meeting: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(WORLD), str(root), mode, str(meeting)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    for process in ranks:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said


@pytest.mark.slow
def test_distributed_checkpoint_saves_and_loads_with_four_ranks(work: Path, tmp_path: Path) -> None:
    """D69, D76"""
    run_ranks(work / "step_1", "save", tmp_path / "1")
    run_ranks(work / "step_2", "async", tmp_path / "2")
    run_ranks(work / "step_1", "load", tmp_path / "3")
    run_ranks(work / "step_2", "load", tmp_path / "4")
    assert (work / "step_1/.metadata").stat().st_size > 0


def test_sharded_weights_with_their_index_are_saved_as_by_save_pretrained(work: Path) -> None:
    import json

    from safetensors.torch import load_file, save_file

    names = sorted(tensors())
    shards = {f"model-{index + 1:05d}-of-00004.safetensors": names[index::4] for index in range(4)}
    for shard, held in shards.items():
        save_file({name: tensors()[name] for name in held}, work / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (work / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, shard in json.loads((work / "model.safetensors.index.json").read_text())["weight_map"].items():
        assert torch.equal(load_file(work / shard)[name], tensors()[name])


def test_numpy_saves_maps_and_changes_in_place(work: Path) -> None:
    array = np.arange(100_000)
    np.save(work / "a.npy", array)
    np.savez(work / "b.npz", x=array, y=array[::-1])
    mapped = np.load(work / "a.npy", mmap_mode="r+")
    mapped[5] = -1
    mapped.flush()
    del mapped
    assert np.load(work / "a.npy")[5] == -1
    assert np.array_equal(np.load(work / "b.npz")["y"], array[::-1])


def test_event_writer_appends_little_by_little(work: Path) -> None:
    """D73"""
    with open(work / "events", "ab", buffering=0) as file:
        for index in range(2000):
            file.write(index.to_bytes(24, "little"))
            assert os.stat(work / "events").st_size == 24 * (index + 1)
    assert (work / "events").read_bytes()[24 * 77 : 24 * 78] == (77).to_bytes(24, "little")


def source_tree(base: Path) -> Path:
    """Make a tree as tools copy them: directories, an executable, a symlink, times."""
    root = base / "source"
    (root / "sub/deep").mkdir(parents=True)
    for index in range(30):
        (root / "sub" / f"{index}.txt").write_text("x" * index)
    (root / "sub/deep/run.sh").write_text("#!/bin/sh\necho ran\n")
    os.chmod(root / "sub/deep/run.sh", 0o755)
    os.symlink("sub/1.txt", root / "link")
    os.utime(root / "sub/3.txt", (1_000_000, 1_000_000))
    return root


def check_copy(source: Path, copy: Path) -> None:
    found = subprocess.run(["diff", "-r", "--no-dereference", source, copy], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    assert subprocess.run([copy / "sub/deep/run.sh"], capture_output=True, check=True).stdout == b"ran\n"
    assert (copy / "sub/3.txt").stat().st_mtime == 1_000_000


def test_cp_copies_a_tree(work: Path, tmp_path: Path) -> None:
    source = source_tree(tmp_path)
    subprocess.run(["cp", "-a", source, work / "copy"], check=True)
    check_copy(source, work / "copy")


def test_tar_unpacks_a_tree(work: Path, tmp_path: Path) -> None:
    source = source_tree(tmp_path)
    subprocess.run(["tar", "cf", tmp_path / "a.tar", "-C", source, "."], check=True)
    (work / "copy").mkdir()
    subprocess.run(["tar", "xpf", tmp_path / "a.tar", "-C", work / "copy"], check=True)
    check_copy(source, work / "copy")
    subprocess.run(["tar", "cf", work / "again.tar", "-C", work / "copy", "."], check=True)
    assert (work / "again.tar").stat().st_size > 10_000


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_rsync_copies_a_tree_and_what_has_changed(work: Path, tmp_path: Path) -> None:
    source = source_tree(tmp_path)
    subprocess.run(["rsync", "-a", f"{source}/", work / "copy"], check=True)
    check_copy(source, work / "copy")
    (source / "sub/5.txt").write_text("another length")
    subprocess.run(["rsync", "-a", f"{source}/", work / "copy"], check=True)
    check_copy(source, work / "copy")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_clones_commits_and_collects(work: Path, tmp_path: Path) -> None:
    source = source_tree(tmp_path)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run([*git, "init", "-q", source], check=True)
    subprocess.run([*git, "-C", source, "add", "."], check=True)
    subprocess.run([*git, "-C", source, "commit", "-qm", "one"], check=True)
    subprocess.run([*git, "clone", "-q", "--no-local", source, work / "clone"], check=True)
    (work / "clone/new.txt").write_text("new")
    subprocess.run([*git, "-C", work / "clone", "add", "."], check=True)
    subprocess.run([*git, "-C", work / "clone", "commit", "-qm", "two"], check=True)
    subprocess.run([*git, "-C", work / "clone", "gc", "-q"], check=True)
    assert subprocess.run([*git, "-C", work / "clone", "fsck"], capture_output=True, check=False).returncode == 0
    status = subprocess.run([*git, "-C", work / "clone", "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""
