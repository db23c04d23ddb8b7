"""MosaicML Streaming itself: what its loader reads, and what `.jobs` shows as that, batch for batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("streaming", reason="mosaicml-streaming is not installed", exc_type=(ImportError, RuntimeError))

from streaming import MDSWriter
from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle

from tests.lake import DISK, mounted
from tests.schedules import payload
from tests.servers.lifecycle import free_port
from vfs.samples.feeds import mosaic
from vfs.samples.jobs import Streaming

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
ALGORITHMS = ("py1e", "py1br", "py1s", "py2s", "naive")
COUNT, RANKS, BATCH, EPOCHS = 50, 2, 3, 2
LOADER = """
import json, sys
from streaming import StreamingDataset
from torch.utils.data import DataLoader

if __name__ == "__main__":
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=3, shuffle_seed=23, num_canonical_nodes=2)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, collate_fn=list)
    print(json.dumps([[sample["image"].hex() for sample in batch] for _ in range(2) for batch in loader]))
"""
"""What a training does, unmodified; a batch is a list here, in place of a tensor."""
DOCUMENT = """
[feed]
kind = "mds"
path = "/data/index.json"
column = "image"
[feed.streaming]
ranks_per_node = 2
batch_size = 3
shuffle = true
shuffle_seed = 23
num_canonical_nodes = 2
epochs = 2
"""


def drawn(rng: np.random.Generator, algorithm: str) -> tuple[Streaming, list[int], int, int]:
    """Return the arguments of a dataset, its shards, an epoch, and how much of it was read before."""
    sizes = rng.integers(1, 40, rng.integers(3, 12)).tolist()
    nodes = int(rng.choice([1, 2, 4]))
    streaming = Streaming(
        ranks_per_node=int(rng.integers(1, 5)),
        batch_size=int(rng.integers(1, 6)),
        nodes=nodes,
        shuffle=bool(rng.integers(0, 8)),
        shuffle_algo=algorithm,  # type: ignore[arg-type]
        shuffle_seed=int(rng.integers(0, 10_000)),
        shuffle_block_size=int(rng.choice([0, 2, 10, 50])),
        num_canonical_nodes=int(rng.choice([1, 2, 4, 8])),
    )
    return streaming, sizes, int(rng.integers(0, 4)), int(rng.choice([0, sum(sizes) // 2]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_is_that_of_the_library_for_any_world_and_epoch(algorithm: str) -> None:
    rng = np.random.default_rng(5)
    compared = 0
    for _ in range(150):
        streaming, sizes, epoch, first = drawn(rng, algorithm)
        part = mosaic.partition(streaming, sum(sizes), first)
        if part.why_not():
            continue
        canonical = mosaic.canonical_nodes(streaming)
        world = streaming.nodes, streaming.ranks_per_node
        theirs = get_partitions("relaxed", sum(sizes), canonical, *world, 2, streaming.batch_size, first)
        if streaming.shuffle:
            block = streaming.shuffle_block_size or max(4_000_000 // canonical, 1 << 18)
            sizes_there = np.array(sizes)
            order = get_shuffle(algorithm, sizes_there, canonical, streaming.shuffle_seed, epoch, block)
            theirs = np.where(theirs == -1, -1, order[theirs])
        ours = mosaic.shuffled(streaming, sizes, epoch)
        for rank in range(streaming.nodes * streaming.ranks_per_node):
            batches = theirs[divmod(rank, streaming.ranks_per_node)].swapaxes(0, 1).reshape(-1)
            assert ours[part.places(rank, 0, part.per_rank)].tolist() == batches[batches != -1].tolist(), streaming
        compared += 1
    assert compared > 80


def loaded(directory: Path, script: Path) -> list[Any]:
    """Return the batches of each rank, as a real loader with two workers in each of two processes gets them."""
    script.write_text(LOADER)
    shared = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(directory)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    said = [each.communicate(timeout=100)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0] * RANKS
    return [json.loads(each.splitlines()[-1]) for each in said]


@pytest.mark.mount
@pytest.mark.root
def test_steps_of_jobs_are_the_batches_of_an_unmodified_loader(tmp_path: Path) -> None:
    data = tmp_path / "disk" / "data"
    with MDSWriter(out=str(data), columns={"image": "bytes", "label": "int"}, size_limit=1 << 14) as writer:
        for number in range(COUNT):
            writer.write({"image": payload(number), "label": number})
    batches = loaded(data, tmp_path / "loader.py")
    (tmp_path / "disk" / "jobs").mkdir()
    (tmp_path / "disk" / "jobs" / "run.toml").write_text(DOCUMENT)
    with mounted(DISK + '[samples]\ndeclarations = ["jobs"]\n', tmp_path) as lake:
        job = lake.root / ".jobs" / "run"
        assert len(list(job.glob("step_*"))) == len(batches[0]) == EPOCHS * -(-COUNT // RANKS // BATCH)
        for rank in range(RANKS):
            for step, batch in enumerate(batches[rank]):
                directory = job / f"step_{step:07d}" / f"rank_{rank:04d}"
                assert [path.read_bytes().hex() for path in sorted(directory.iterdir())] == batch, (step, rank)
