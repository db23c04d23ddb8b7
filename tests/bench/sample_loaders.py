"""The loaders that `samples` compares with: they make the same tensors from the same raw bytes through the same mount."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.lake import Lake
from tests.node import Scheduled

SLOTS = 4
PARAMS = {"crop": {"at": "random", "size": [224, 224]}, "resize": 256}
SHARDS = 2
"""Tars of a rank, one for each of its workers."""
OnWorker = Callable[[int], None]
"""Called in each worker process, once that has started."""


def decoded(lake: Lake, schedule: Scheduled, rank: int, _: OnWorker, steps: int) -> Iterator[list[np.ndarray]]:
    """Return the arrays of each step, made here from the raw bytes."""
    data = Own(str(lake.root), schedule, rank)
    return ([data[step * SLOTS + slot] for slot in range(SLOTS)] for step in range(steps))


def loaded(lake: Lake, schedule: Scheduled, rank: int, on_worker: OnWorker, workers: int) -> Iterator[list[np.ndarray]]:
    """Return the arrays of each step as a DataLoader gives them; its workers are started."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        Own(str(lake.root), schedule, rank),  # type: ignore[arg-type]
        batch_size=SLOTS,
        num_workers=workers,
        collate_fn=as_tensors,
        prefetch_factor=2 if workers else None,
        worker_init_fn=on_worker,
    )
    return iter(loader)


def as_tensors(arrays: list[np.ndarray]) -> list[Any]:
    """Return arrays as tensors, which travel from workers in shared memory."""
    import torch

    return [torch.from_numpy(each) for each in arrays]


class Own:
    """The samples of one rank in their order, made from the raw bytes of the lake: a map-style data set."""

    def __init__(self, root: str, schedule: Scheduled, rank: int) -> None:
        self._root = root
        self._rows = rows_of(schedule, rank)
        self._transform = operator()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        row = self._rows[index]
        with open(f"{self._root}/{row['source']}", "rb", buffering=0) as file:
            raw = os.pread(file.fileno(), row["length"], row["offset"])
        return np.load(io.BytesIO(self._transform(raw, row["seed"])))


def operator() -> Callable[[bytes, int], bytes]:
    """Return image@1 as a plain function of raw bytes and seed."""
    from vfs.samples.operators.apply import apply, built_in
    from vfs.samples.operators.registry import load_registry

    image = load_registry().find("image@1").declaration
    function, params = built_in(image), json.dumps(PARAMS, sort_keys=True)
    return lambda raw, seed: apply(image, function, memoryview(raw), params=params, seed=seed, provenance="").file


def rows_of(schedule: Scheduled, rank: int) -> list[dict[str, Any]]:
    """Return what a rank reads, in its order."""
    return sorted((row for row in schedule.rows if row["rank"] == rank), key=lambda row: (row["step"], row["slot"]))


def write_tars(lake: Path, schedule: Scheduled, ranks: int) -> None:
    """Write what each rank reads as tars for WebDataset: all in one, and steps in turn in as many as it has workers."""
    for rank in range(ranks):
        rows = rows_of(schedule, rank)
        write_tar(lake / "tars" / tar_of(rank, 0, 1), schedule, rows)
        for shard in range(SHARDS):
            write_tar(
                lake / "tars" / tar_of(rank, shard, SHARDS), schedule, [row for row in rows if row["step"] % SHARDS == shard]
            )


def tar_of(rank: int, shard: int, shards: int) -> str:
    """Return the name of a tar. Pure."""
    return f"rank{rank}-{shard}of{shards}.tar"


def write_tar(file: Path, schedule: Scheduled, rows: list[dict[str, Any]]) -> None:
    """Write samples with their seeds."""
    file.parent.mkdir(exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for row in rows:
            place = row["step"], row["rank"], row["slot"]
            for suffix, body in (("jpg", schedule.raw[place]), ("seed", str(row["seed"]).encode())):
                member = tarfile.TarInfo(f"{place[0]:06d}-{place[2]:03d}.{suffix}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))


def from_tars(lake: Lake, rank: int, on_worker: OnWorker, workers: int) -> Iterator[list[np.ndarray]]:
    """Return the arrays of each step as WebDataset gives them; its workers are started."""
    import torch
    import webdataset as wds

    torch.set_num_threads(1)
    transform, shards = operator(), max(1, workers)
    urls = [str(lake.root / "tars" / tar_of(rank, shard, shards)) for shard in range(shards)]

    def made(sample: dict[str, Any]) -> np.ndarray:
        return np.load(io.BytesIO(transform(sample["jpg"], int(sample["seed"]))))

    data = wds.WebDataset(urls, shardshuffle=False).map(made).batched(SLOTS, collation_fn=as_tensors)
    prefetch = 2 if workers else None
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=workers, prefetch_factor=prefetch, worker_init_fn=on_worker
    )
    return iter(loader)
