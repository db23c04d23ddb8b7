"""Eight ranks with a barrier per step: samples prepared by a node against a PyTorch DataLoader through the same mount.

Real JPEGs, one in a hundred some thirty times heavier, and a pause per step in place of the GPU. The readers of both sides
have one core, which making their samples keeps busy for longer than the pause. The node stands for a second machine: on two
cores it can't be one, so it makes the samples before the readers start, as one with enough cores makes them in the pauses.
The loader makes the same tensors from the same raw bytes with 0, 2 and 4 workers. Steps before `FIRST` only warm up.
"""

from __future__ import annotations

import io
import json
import multiprocessing as mp
import os
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.measure import NotHere
from tests.bench.report import Outcome, Section
from tests.lake import Lake, foremount, mounted, wait_until, why_no_mount
from tests.node import NO_LOAD, TOKEN, Scheduled, node

RANKS, SLOTS, STEPS, FIRST = 8, 4, 13, 3
PAUSE_S = 0.3
HEAVY_EVERY = 100
PARAMS = {"crop": {"at": "random", "size": [224, 224]}, "resize": 256}
WORKERS = (0, 2, 4)
CONFIG = """
[sites.disk]
kind = "local"
path = "{lake}"
[[mounts]]
prefix = "/"
site = "disk"
[cache]
directory = "{{base}}/cache"
[samples]
declarations = ["jobs"]
nodes = ["{node}"]
token_file = "{token}"
"""


@dataclass(frozen=True)
class Waits:
    """What one side's readers measured.

    Attributes:
        step_s: by step that counts and rank: from the barrier until all samples of the rank are arrays.
        cpu_s: of all reader processes with their children.
        sums: of the values of each step and rank, to compare.
    """

    step_s: list[list[float]]
    cpu_s: float
    sums: dict[tuple[int, int], float]

    @property
    def p99_s(self) -> float:
        """Return the 99th percentile of what a step waits for: its slowest rank."""
        return float(np.percentile([max(ranks) for ranks in self.step_s], 99))

    @property
    def stall_s(self) -> float:
        """Return what ranks wait for the slowest of their step, summed."""
        return sum(max(ranks) - each for ranks in self.step_s for each in ranks)


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure every side that this machine has."""
    if why := why_no_mount():
        raise NotHere(why)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise NotHere("needs two cores: one for the node, one for the readers")
    steps = max(int(STEPS * scale), FIRST + 3)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        say("making JPEGs and their schedule")
        schedule = fill(base / "lake", steps)
        (base / "token").write_text(TOKEN)
        os.sched_setaffinity(0, {cores[0]})
        with node(base, base / "lake", NO_LOAD) as service:
            os.sched_setaffinity(0, cores)
            config = CONFIG.format(lake=base / "lake", node=service.url, token=base / "token")
            with mounted(config, base) as lake:
                sides = {"ready": lambda rank: prepared(lake, rank, steps)}
                try:
                    import torch  # noqa: F401

                    for count in WORKERS:
                        sides[f"loader{count}"] = lambda rank, count=count: loaded(lake, schedule, rank, steps, count)
                except ImportError:
                    outcome.skipped["loader"] = "torch is not installed"
                    sides["plain"] = lambda rank: decoded(lake, schedule, rank, steps)
                taken = {}
                for name, side in sides.items():
                    if name == "ready":
                        say("the node prepares")
                        prepare(lake, steps)
                    say(f"{name}: {steps} steps of {RANKS} ranks")
                    taken[name] = readers(side, steps, cores[1])
                said = lake.job_status()[0]
                conclude(outcome, taken, said)
    return outcome


def prepare(lake: Lake, steps: int) -> None:
    """Return when the samples of all steps are here."""
    mount = ("--mountpoint", str(lake.root))
    foremount("job", "tell", "run7", "--step", "0", "--ranks", f"0-{RANKS - 1}", *mount)

    def here() -> bool:
        said = lake.job_status()
        return bool(said) and said[0]["prepared_groups"] == steps * RANKS

    wait_until(here, "all groups to be prepared", 90.0)


def fill(lake: Path, steps: int) -> Scheduled:
    """Write the pictures into a bin, and a schedule that reads each once."""
    lake.mkdir()
    found = Scheduled(lake)
    light, heavy = [picture(seed, 800, 600) for seed in range(16)], picture(99, 4400, 3300)
    number = 0
    for step in range(steps):
        for rank in range(RANKS):
            for slot in range(SLOTS):
                raw = heavy if number % HEAVY_EVERY == HEAVY_EVERY - 1 else light[number % len(light)]
                found.add(step, rank, slot, raw, params=json.dumps(PARAMS, sort_keys=True))
                number += 1
    found.write(f"ahead = {steps}")
    return found


def picture(seed: int, width: int, height: int) -> bytes:
    """Return a JPEG with as much detail as a photograph has."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    pixels = np.clip(np.asarray(coarse, np.int16) + rng.integers(-12, 13, (height, width, 1)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def prepared(lake: Lake, rank: int, steps: int) -> Iterator[list[np.ndarray]]:
    """Yield the arrays of each step as an unmodified script reads them; falls back to its own operator where raw."""
    from vfs.client import open_sample

    made: list[Callable[[bytes, int], bytes]] = []

    def local(raw: bytes, seed: int) -> bytes:
        made[:] = made or [operator()]
        return made[0](raw, seed)

    for step in range(steps):
        directory = lake.root / f".jobs/run7/step_{step:07d}/rank_{rank:04d}"
        arrays = []
        for slot in range(SLOTS):
            seed = 1 + slot + 100 * step
            with open_sample(
                directory / f"{slot:06d}.npy", lambda raw, seed=seed: local(raw, seed), magic=b"\x93NUMPY"
            ) as file:
                arrays.append(np.load(file))
        yield arrays


def decoded(lake: Lake, schedule: Scheduled, rank: int, steps: int) -> Iterator[list[np.ndarray]]:
    """Yield the arrays of each step, made here from the raw bytes."""
    data = Own(str(lake.root), schedule, rank)
    for step in range(steps):
        yield [data[step * SLOTS + slot] for slot in range(SLOTS)]


def loaded(lake: Lake, schedule: Scheduled, rank: int, steps: int, workers: int) -> Iterator[list[np.ndarray]]:
    """Yield the arrays of each step as a DataLoader gives them."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    yield from DataLoader(
        Own(str(lake.root), schedule, rank),  # type: ignore[arg-type]
        batch_size=SLOTS,
        num_workers=workers,
        collate_fn=as_tensors,
        prefetch_factor=2 if workers else None,
    )


def as_tensors(arrays: list[np.ndarray]) -> list[Any]:
    """Return arrays as tensors, which travel from workers in shared memory."""
    import torch

    return [torch.from_numpy(each) for each in arrays]


class Own:
    """The samples of one rank in their order, made from the raw bytes of the lake: a map-style data set."""

    def __init__(self, root: str, schedule: Scheduled, rank: int) -> None:
        self._root = root
        self._rows = sorted((row for row in schedule.rows if row["rank"] == rank), key=lambda row: (row["step"], row["slot"]))
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


def readers(side: Callable[[int], Iterator[list[np.ndarray]]], steps: int, core: int) -> Waits:
    """Run the ranks of one side and return what they measured."""
    context = mp.get_context("fork")
    barrier, results = context.Barrier(RANKS), context.SimpleQueue()
    processes = [context.Process(target=rank_of, args=(side, rank, steps, core, barrier, results)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    failed = [each for each in found if isinstance(each, str)]
    if failed:
        raise AssertionError(failed[0])
    by_rank = sorted(found, key=lambda each: each["rank"])
    step_s = [[each["waits"][step] for each in by_rank] for step in range(FIRST, steps)]
    sums = {(step, each["rank"]): each["sums"][step] for each in by_rank for step in range(steps)}
    return Waits(step_s, sum(each["cpu_s"] for each in by_rank), sums)


def rank_of(side: Any, rank: int, steps: int, core: int, barrier: Any, results: Any) -> None:
    """One rank, in a process of its own."""
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    try:
        os.sched_setaffinity(0, {core})
        waits, sums = [], []
        began = cpu_s()
        batches = iter(side(rank))
        for _ in range(steps):
            barrier.wait(120)
            start = time.perf_counter()
            arrays = next(batches)
            waits.append(time.perf_counter() - start)
            sums.append(float(sum(np.asarray(each)[:, ::8, ::8].astype(np.float64).sum() for each in arrays)))
            barrier.wait(120)
            time.sleep(PAUSE_S)
        del batches  # ends the loader's workers, whose CPU time counts then
        results.put({"rank": rank, "waits": waits, "sums": sums, "cpu_s": cpu_s() - began})
    except BaseException as exc:
        barrier.abort()
        results.put(f"rank {rank}: {type(exc).__name__} {exc}")


def cpu_s() -> float:
    """Return CPU seconds of this process and of its children that have ended."""
    return sum(
        found.ru_utime + found.ru_stime for found in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def conclude(outcome: Outcome, taken: dict[str, Waits], said: dict[str, Any]) -> None:
    """Fill in figures and table."""
    ready, loaders = taken["ready"], {name: waits for name, waits in taken.items() if name != "ready"}
    for name, waits in loaders.items():
        if waits.sums != ready.sums:
            outcome.broken.append(f"{name} and .jobs gave other values")
    rows: list[list[str]] = []
    for name, waits in taken.items():
        median = statistics.median(max(ranks) for ranks in waits.step_s)
        rows.append([name, f"{1e3 * median:.1f}", f"{1e3 * waits.p99_s:.1f}", f"{waits.stall_s:.2f}", f"{waits.cpu_s:.2f}"])
        outcome.figures |= {f"{name}_p99_s": waits.p99_s, f"{name}_stall_s": waits.stall_s, f"{name}_cpu_s": waits.cpu_s}
    for name, waits in loaders.items():
        outcome.figures[f"p99_vs_{name}"] = ready.p99_s / waits.p99_s
        outcome.figures[f"stall_vs_{name}"] = ready.stall_s / waits.stall_s
        outcome.figures[f"reader_cpu_vs_{name}"] = ready.cpu_s / waits.cpu_s
    for figure in ("p99", "stall", "reader_cpu"):
        outcome.figures[f"{figure}_vs_loader"] = max(outcome.figures[f"{figure}_vs_{name}"] for name in loaders)
    outcome.figures["hit_ratio"] = said["hit_ratio"]
    outcome.figures["lead_s"] = said["lead_s"]
    head = ["side", "slowest rank of a step, median, ms", "p99, ms", "waits for the slowest, s", "CPU of readers, s"]
    outcome.sections.append(Section("Eight ranks with a barrier per step", head, rows))
