"""Eight ranks with a barrier per step: samples prepared by a node against a PyTorch DataLoader through the same mount.

Real JPEGs, one in a hundred some thirty times heavier, and a pause per step in place of the GPU. The readers of all sides
have one core, which making their samples keeps busy for longer than the pause. Two cores are no second machine, so there are
three nodes: one that makes everything before the readers start (`ready`), one with eight cores of another machine, whose
transforms take their time and no CPU of this one, while the readers read (`other`, tests/bench/second_machine.py), and one on
the other core of this machine while they read (`live`). The loaders make the same tensors from the same raw bytes: PyTorch's
with 0, 2 and 4 workers, WebDataset with 0 and 2 from tars. Steps before `FIRST` only warm up. Everything is read once in each
round, forward and backward; a ratio is the median of those of single rounds.

FOREMOUNT_BENCH_ROUNDS: how many rounds. FOREMOUNT_BENCH_SIDES: only these sides, as "ready,loader4".
"""

from __future__ import annotations

import io
import json
import multiprocessing as mp
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import second_machine
from tests.bench.measure import NotHere, chosen, order_of_round, ratios, spread
from tests.bench.report import Outcome, Section
from tests.bench.sample_loaders import PARAMS, SHARDS, SLOTS, OnWorker, decoded, from_tars, loaded, operator, write_tars
from tests.lake import Lake, foremount, mounted, wait_until, why_no_mount
from tests.node import NO_LOAD, TOKEN, Scheduled, node
from vfs.client import open_sample
from vfs.samples.feeds.arrow import canonical

RANKS, STEPS, FIRST = 8, 13, 3
ROUNDS = 2
PAUSE_S = 0.3
HEAVY_EVERY = 100
WORKERS, TAR_WORKERS = (0, 2, 4), (0, SHARDS)
READY, LIVE, OTHER = OURS = "ready", "live", "other"
"""Prepared beforehand, by a node on the other core meanwhile, by one on another machine meanwhile."""
CORES, AHEAD = 8, 4
"""Of the other machine; steps that the nodes prepare ahead."""
ONE_CORE = "cpu = 0\nprocesses = 1"
"""Of the node here: its operators run in time that nothing else wants, as by default, but whatever the readers do."""
WORDS = {
    READY: "ready: prepared beforehand",
    OTHER: f"other: by a node of {CORES} cores meanwhile",
    LIVE: "live: by a node on the other core meanwhile",
}
DOCUMENT = """
name = "{name}"
ahead = {ahead}
nodes = ["{node}"]
[feed]
kind = "arrow"
path = "steps-run7"
"""
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
token_file = "{token}"
"""


@dataclass(frozen=True)
class Waits:
    """What one side's readers measured.

    Attributes:
        step_s: by step that counts and rank: from the barrier until all samples of the rank are arrays.
        cpu_s: of all reader processes while they load, in all steps, with that of their workers; without what starting costs.
        sums: of the values of each step and rank, to compare.
        raw: samples that came raw, by reason.
    """

    step_s: list[list[float]]
    cpu_s: float
    sums: dict[tuple[int, int], float]
    raw: dict[str, int] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """Return what a step waits for its slowest rank, the median."""
        return statistics.median(max(ranks) for ranks in self.step_s)

    @property
    def p99_s(self) -> float:
        """Return the 99th percentile of what a step waits for: its slowest rank."""
        return float(np.percentile([max(ranks) for ranks in self.step_s], 99))

    @property
    def stall_s(self) -> float:
        """Return what ranks wait for the slowest of their step, summed."""
        return sum(max(ranks) - each for ranks in self.step_s for each in ranks)


FIGURES: dict[str, Callable[[Waits], float]] = {
    "p99": lambda waits: waits.p99_s,
    "stall": lambda waits: waits.stall_s,
    "reader_cpu": lambda waits: waits.cpu_s,
}
Side = Callable[[int, OnWorker], Iterator[list[np.ndarray]]]
"""Called with a rank, returns what that reads."""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure every side that this machine has."""
    if why := why_no_mount():
        raise NotHere(why)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise NotHere("needs two cores: one for the node, one for the readers")
    steps = max(int(STEPS * scale), FIRST + 3)
    rounds = int(os.environ.get("FOREMOUNT_BENCH_ROUNDS", ROUNDS if scale == 1.0 else 1))
    outcome = Outcome()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-bench-")))
        say("making JPEGs, their schedule, and what another machine would make of them")
        schedule = fill(base / "lake", steps)
        (base / "token").write_text(TOKEN)
        raws = ((schedule.raw[row["step"], row["rank"], row["slot"]], row) for row in schedule.rows)
        second_machine.make(base / "made", [(raw, canonical(row["params"]), row["seed"]) for raw, row in raws], operator)
        os.sched_setaffinity(0, {cores[0]})
        (base / OTHER).mkdir()
        here = stack.enter_context(node(base, base / "lake", ONE_CORE))
        there = stack.enter_context(node(base / OTHER, base / "lake", NO_LOAD, partial(elsewhere, base / "made")))
        os.sched_setaffinity(0, cores)
        for index in range(rounds):
            for name, url in ((READY, here.url), (LIVE, here.url), (OTHER, there.url)):
                job = job_of(name, index)
                document = DOCUMENT.format(name=job, node=url, ahead=ahead_of(name, steps))
                (base / "lake" / "jobs" / f"{job}.toml").write_text(document)
        lake = stack.enter_context(mounted(CONFIG.format(lake=base / "lake", token=base / "token"), base))
        loaders = loaders_of(lake, schedule, steps, outcome)
        names = chosen([*OURS, *loaders], os.environ.get("FOREMOUNT_BENCH_SIDES", ""))
        taken: dict[str, list[Waits]] = {name: [] for name in names}
        for index in range(rounds):
            for name in order_of_round(names, index):
                found = one(lake, job_of(name, index), loaders.get(name), ahead_of(name, steps), steps, cores[1])
                say(f"round {index + 1}: {in_words(name, found)}")
                taken[name].append(found)
        conclude(outcome, taken)
    return outcome


def elsewhere(made: Path, config: Path) -> list[str]:
    """Return the command of a node on another machine."""
    return [sys.executable, "-m", "tests.bench.second_machine", str(config), str(made), str(CORES)]


def job_of(name: str, index: int) -> str:
    """Return the job that a side reads in one round. Pure."""
    return f"{name}{index}"


def ahead_of(name: str, steps: int) -> int:
    """Return how many steps of a job are prepared ahead. Pure."""
    return steps if name == READY else AHEAD


def loaders_of(lake: Lake, schedule: Scheduled, steps: int, outcome: Outcome) -> dict[str, Side]:
    """Return what ours is compared with; what this machine does not have is noted."""
    try:
        import torch  # noqa: F401  # here, as the ranks are forks: no side pays for importing it
    except ImportError:
        outcome.skipped["loader"] = "torch is not installed"
        return {"plain": partial(decoded, lake, schedule, steps=steps)}
    sides: dict[str, Side] = {f"loader{count}": partial(loaded, lake, schedule, workers=count) for count in WORKERS}
    try:
        import webdataset  # noqa: F401
    except ImportError:
        outcome.skipped["webdataset"] = "webdataset is not installed"
        return sides
    write_tars(schedule.lake, schedule, RANKS)
    return sides | {f"webdataset{count}": partial(from_tars, lake, workers=count) for count in TAR_WORKERS}


def one(lake: Lake, job: str, loader: Side | None, ahead: int, steps: int, core: int) -> Waits:
    """Read one side once.

    Args:
        loader: None: the samples of `job`, once those of `ahead` steps are here.
    """
    if loader is not None:
        return readers(loader, steps, core)
    prepare(lake, job, ahead)
    found = readers(partial(prepared, lake, job, steps=steps), steps, core)
    return replace(found, raw=lake.job_status(job)[0]["raw"])


def prepare(lake: Lake, job: str, steps: int) -> None:
    """Return when the samples of the first steps of a job are here."""
    mount = ("--mountpoint", str(lake.root))
    foremount("job", "tell", job, "--step", "0", "--ranks", f"0-{RANKS - 1}", *mount)

    def here() -> bool:
        said = lake.job_status(job)
        return bool(said) and said[0]["prepared_groups"] >= steps * RANKS

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
                found.add(step, rank, slot, raw, params=json.dumps(PARAMS, sort_keys=True), job=None)
                number += 1
    found.write()
    (lake / "jobs" / "run7.toml").unlink()  # the jobs that read this schedule are written when their nodes are known
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


def prepared(lake: Lake, job: str, rank: int, _: OnWorker, steps: int) -> Iterator[list[np.ndarray]]:
    """Return the arrays of each step as an unmodified script reads them; makes them itself where they are raw."""
    transform = operator()

    def arrays(step: int) -> Iterator[np.ndarray]:
        directory = lake.root / f".jobs/{job}/step_{step:07d}/rank_{rank:04d}"
        for slot in range(SLOTS):
            local = partial(transform, seed=1 + slot + 100 * step)
            with open_sample(directory / f"{slot:06d}.npy", local, magic=b"\x93NUMPY") as file:
                yield np.load(file)

    return (list(arrays(step)) for step in range(steps))


def readers(side: Side, steps: int, core: int) -> Waits:
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
        waits, sums, used_s = [], [], 0.0
        starting_s = mp.get_context("fork").Value("d", 0.0)

        def on_worker(_: int) -> None:
            with starting_s.get_lock():
                starting_s.value += time.process_time()

        batches = side(rank, on_worker)
        for _ in range(steps):
            barrier.wait(120)
            start, began = time.perf_counter(), time.process_time()
            arrays = next(batches)
            waits.append(time.perf_counter() - start)
            used_s += time.process_time() - began
            sums.append(float(sum(np.asarray(each)[:, ::8, ::8].astype(np.float64).sum() for each in arrays)))
            barrier.wait(120)
            time.sleep(PAUSE_S)
        del batches  # ends the loader's workers, whose CPU time counts then
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s += children.ru_utime + children.ru_stime - starting_s.value
        results.put({"rank": rank, "waits": waits, "sums": sums, "cpu_s": used_s})
    except BaseException as exc:
        barrier.abort()
        results.put(f"rank {rank}: {type(exc).__name__} {exc}")


def in_words(name: str, found: Waits) -> str:
    """Return one round of one side in a line. Pure."""
    slowest = " ".join(f"{1e3 * max(ranks):.0f}" for ranks in found.step_s)
    raw = "".join(f", {count} raw ({reason})" for reason, count in found.raw.items())
    return f"{name}: steps {slowest} ms, stalls {found.stall_s:.2f} s, CPU {found.cpu_s:.3f} s{raw}"


def conclude(outcome: Outcome, taken: dict[str, list[Waits]]) -> None:
    """Fill in figures and table."""
    rows: list[list[str]] = []
    first = next(iter(taken.values()))[0]
    for name, found in taken.items():
        if any(waits.sums != first.sums for waits in found):
            outcome.broken.append(f"{name} has other values than {next(iter(taken))}")
        spreads = [spread([of(waits) for waits in found]) for of in (lambda waits: waits.median_s, *FIGURES.values())]
        rows.append([WORDS.get(name, name)])
        for each, (factor, places) in zip(spreads, ((1e3, 0), (1e3, 0), (1, 2), (1, 3)), strict=True):
            low, middle, high = (f"{factor * value:.{places}f}" for value in (each.low, each.median, each.high))
            rows[-1].append(f"{middle} ({low}-{high})")
        for figure, each in zip(FIGURES, spreads[1:], strict=True):
            outcome.figures[f"{name}_{figure}_s"] = each.median
        if name in OURS:
            outcome.figures[f"{name}_raw_samples"] = max(sum(waits.raw.values()) for waits in found)
    head = ["side", "slowest rank of a step, median, ms", "p99, ms", "waits for the slowest, s", "CPU of readers, s"]
    outcome.sections.append(Section("Eight ranks with a barrier per step", head, rows))
    compare(outcome, taken)


def compare(outcome: Outcome, taken: dict[str, list[Waits]]) -> None:
    """Fill in each of ours against each loader, round by round, and against the worst."""
    for name in (name for name in OURS if name in taken):
        prefix = "" if name == READY else f"{name}_"
        for figure, of in FIGURES.items():
            found_s = [of(waits) for waits in taken[name]]
            versus = {
                loader: statistics.median(ratios(found_s, [of(waits) for waits in waits_of]))
                for loader, waits_of in taken.items()
                if loader not in OURS
            }
            outcome.figures |= {f"{prefix}{figure}_vs_{loader}": value for loader, value in versus.items()}
            if versus:
                outcome.figures[f"{prefix}{figure}_vs_loader"] = max(versus.values())
