"""MosaicML Streaming itself: what its loader reads, and what `.jobs` shows as that, batch for batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("streaming", reason="mosaicml-streaming is not installed", exc_type=(ImportError, RuntimeError))

from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle

from tests.lake import DISK, mounted
from tests.schedules import payload
from tests.servers.lifecycle import free_port
from vfs.samples import jobs
from vfs.samples.feeds import mixing, mosaic
from vfs.samples.jobs import Streaming

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
ALGORITHMS = ("py1e", "py1br", "py1s", "py2s", "naive")
COUNT, RANKS, BATCH, EPOCHS = 50, 2, 3, 2
READ = COUNT // 2 * 3 // 2 + 11
"""Samples of an epoch of `DOCUMENT`."""
LOADER = """
import json, sys
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader

if __name__ == "__main__":
    streams = [Stream(local=sys.argv[1] + "/en", repeat=1.5), Stream(local=sys.argv[1] + "/de", choose=11)]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=3, shuffle_seed=23, num_canonical_nodes=2)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, collate_fn=list)
    print(json.dumps([[sample["image"].hex() for sample in batch] for _ in range(2) for batch in loader]))
"""
"""What a training does, unmodified; a batch is a list here, in place of a tensor."""
DOCUMENT = """
[feed]
kind = "mds"
column = "image"
[feed.streaming]
ranks_per_node = 2
batch_size = 3
shuffle = true
shuffle_seed = 23
num_canonical_nodes = 2
epochs = 2
streams = [{ path = "/data/en/index.json", repeat = 1.5 }, { path = "/data/de/index.json", choose = 11 }]
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


def weighted(rng: np.random.Generator) -> tuple[Streaming, list[list[int]]]:
    """Return a dataset of weighted streams, and the shards of each."""
    sizes = [rng.integers(1, 30, rng.integers(1, 8)).tolist() for _ in range(rng.integers(1, 5))]
    kind = rng.choice(["proportion", "absolute", "none"])
    streams = []
    for which in range(len(sizes)):
        weight: dict[str, Any] = {}
        if kind == "proportion":
            weight["proportion"] = float(rng.integers(1, 10))
        elif kind == "absolute" and rng.integers(0, 3):
            weight = {"repeat": float(rng.integers(0, 8)) / 2} if rng.integers(0, 2) else {"choose": int(rng.integers(0, 90))}
        streams.append(jobs.Stream(str(which), **weight))
    streaming = Streaming(
        ranks_per_node=1,
        batch_size=1,
        streams=streams,
        shuffle=bool(rng.integers(0, 2)),
        shuffle_seed=int(rng.integers(0, 10_000)),
        epoch_size=0 if kind == "absolute" else int(rng.choice([0, 7, 50, 300])),
        sampling_method="balanced" if rng.integers(0, 2) else "fixed",
        sampling_granularity=int(rng.choice([1, 2, 7])),
    )
    return streaming, sizes


def theirs_of(streaming: Streaming, sizes: list[list[int]], epoch: int) -> tuple[list[int], list[int]]:
    """Return units and samples of an epoch as the library has them."""
    streams = []
    for stream in streaming.streams:
        given = {key: getattr(stream, key) for key in ("proportion", "repeat", "choose")}
        streams.append(SimpleNamespace(**{key: value for key, value in given.items() if value is not None}))
    samples = np.array([sum(shards) for shards in sizes])
    Stream.apply_weights(streams, samples, streaming.epoch_size, streaming.shuffle_seed)
    all_shards = np.array([size for shards in sizes for size in shards], np.int64)
    counts = np.array([len(shards) for shards in sizes])
    dataset = SimpleNamespace(
        streams=streams,
        num_streams=len(streams),
        samples_per_shard=all_shards,
        sample_offset_per_shard=all_shards.cumsum() - all_shards,
        shards_per_stream=counts,
        shard_offset_per_stream=counts.cumsum() - counts,
        shuffle_seed=streaming.shuffle_seed,
        sampling_method=streaming.sampling_method,
        sampling_granularity=streaming.sampling_granularity,
        epoch_seed_change=streaming.shuffle and streaming.sampling_method == "balanced",
    )
    units, numbers = StreamingDataset.resample_streams(dataset, epoch)  # type: ignore[arg-type]
    return units.tolist(), numbers.tolist()


def test_weighted_streams_give_the_samples_that_the_library_gives() -> None:
    rng = np.random.default_rng(7)
    resampled = 0
    for _ in range(300):
        streaming, sizes = weighted(rng)
        if not sum(mixing.chosen(streaming, sizes)):
            continue
        found, (units, numbers) = mixing.mixed(streaming, sizes, 3), theirs_of(streaming, sizes, 3)
        assert found.units == units, streaming
        assert (list(range(len(numbers))) if found.numbers is None else found.numbers.tolist()) == numbers, streaming
        resampled += found.numbers is not None
    assert resampled > 100


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
    for first, name in ((0, "en"), (COUNT // 2, "de")):
        with MDSWriter(out=str(data / name), columns={"image": "bytes", "label": "int"}, size_limit=1 << 14) as writer:
            for number in range(first, first + COUNT // 2):
                writer.write({"image": payload(number), "label": number})
    batches = loaded(data, tmp_path / "loader.py")
    (tmp_path / "disk" / "jobs").mkdir()
    (tmp_path / "disk" / "jobs" / "run.toml").write_text(DOCUMENT)
    with mounted(DISK + '[samples]\ndeclarations = ["jobs"]\n', tmp_path) as lake:
        job = lake.root / ".jobs" / "run"
        assert len(list(job.glob("step_*"))) == len(batches[0]) == EPOCHS * -(-READ // RANKS // BATCH)
        for rank in range(RANKS):
            for step, batch in enumerate(batches[rank]):
                directory = job / f"step_{step:07d}" / f"rank_{rank:04d}"
                assert [path.read_bytes().hex() for path in sorted(directory.iterdir())] == batch, (step, rank)
