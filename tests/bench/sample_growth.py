"""Samples per second and memory with the number of jobs and of samples in the schedule.

Every cell is a mount and a node of its own, on this machine. A schedule is one file of shuffled numbers (`indices`), 400 MB
for 10^8 samples; jobs share it and each starts elsewhere in it. A sample is a small picture that the node decodes, so that
what is measured is everything around the operator: the schedule, the queue, the stream, the files, the page cache. Readers
don't pause; a sample that is not ready is waited for. All cells read equally many samples, and every one is compared.
"""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import samples
from tests.bench.measure import NotHere, cpu_s_of
from tests.bench.report import Outcome, Section
from tests.bench.svg import curves
from tests.lake import Lake, anonymous_bytes, mounted, why_no_mount
from tests.node import NO_LOAD, TOKEN, node
from vfs.client import TRANSFORMED, form_of, provenance_of

JOBS = (1, 4, 16)
SAMPLES = (10**4, 10**6, 10**8)
READ = 1024
"""Samples of all jobs together, after the first step of each."""
RANKS, SLOTS = 2, 8
SIDE = 32
HEAD = b"P5 32 32  255\n"
CHUNK_BYTES = len(HEAD) + SIDE * SIDE
assert CHUNK_BYTES % 2 == 0
"""Of two-byte tokens."""
STRIDE = 2_654_435_761
"""Odd and no multiple of 5: numbers that are taken in this stride are a permutation of any power of ten."""
LOOK_S = 0.2
DOCUMENT = """
name = "{name}"
fallback = "wait"
deadline = "60s"
extension = "npy"
operator = {{ name = "image" }}
[feed]
kind = "indices"
path = "/schedule/{count}.npy"
index_dtype = "uint32"
data = ["/data/{count}.bin"]
dtype = "uint16"
chunk_tokens = {chunk}
batches = {{ world_size = {ranks}, batch_size = {slots}, first = {first} }}
"""
CONFIG = samples.CONFIG + 'nodes = ["{node}"]\n'


@dataclass(frozen=True)
class Cell:
    """What was measured of one number of jobs and of samples.

    Attributes:
        first_s: until every job had its first step, the schedule being opened for it.
        cpu_ms: for each sample, by process.
        memory: private bytes by process: the most that was seen.
    """

    per_s: float
    first_s: float
    cpu_ms: dict[str, float]
    memory: dict[str, int]


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure every cell."""
    if why := why_no_mount():
        raise NotHere(why)
    jobs, counts = (JOBS, SAMPLES) if scale >= 1 else (JOBS[:2], SAMPLES[:2])
    read = max(int(READ * scale), jobs[-1] * RANKS * SLOTS)
    cells: dict[tuple[int, int], Cell] = {}
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        (Path(made) / "token").write_text(TOKEN)
        for count in counts:
            for some in jobs:
                base = Path(made) / f"{count}-{some}"
                lake = base / "lake"
                lake.mkdir(parents=True)
                steps = read // (some * RANKS * SLOTS)
                write_lake(lake, count, some, steps + 1)
                cells[some, count] = measured(base, Path(made) / "token", count, some, steps)
                say(f"{some} jobs, {count:,} samples: {cells[some, count].per_s:.0f} a second")
                for file in (lake / "data", lake / "schedule"):
                    for each in file.iterdir():
                        each.unlink()  # the next one needs the room
    return concluded(cells, jobs, counts)


# --- the lake --------------------------------------------------------------------------------------------------------


def number_of(position: int, count: int) -> int:
    """Return which sample comes at a position of the shuffled order. Pure."""
    return position % count * STRIDE % count


def first_of(job: int, jobs: int, count: int) -> int:
    """Return where in the order a job starts. Pure."""
    return count // 2 // jobs * job


def pixels_of(number: int) -> bytes:
    """Return the picture of a sample, grey, another one for each. Pure."""
    return np.random.default_rng(number).bytes(SIDE * SIDE)


def write_lake(lake: Path, count: int, jobs: int, steps: int) -> None:
    """Write the order of all samples, the bytes of those that are read (the others are a hole), and the jobs."""
    for name in ("schedule", "data", "jobs"):
        (lake / name).mkdir()
    with (lake / "schedule" / f"{count}.npy").open("wb") as file:
        for start in range(0, count, 10**7):
            positions = np.arange(start, min(count, start + 10**7), dtype=np.uint64)
            file.write((positions * np.uint64(STRIDE) % np.uint64(count)).astype("<u4").tobytes())
    with (lake / "data" / f"{count}.bin").open("wb") as file:
        file.truncate(count * CHUNK_BYTES)
        for job in range(jobs):
            first = first_of(job, jobs, count)
            for position in range(first, first + steps * RANKS * SLOTS):
                number = number_of(position, count)
                file.seek(number * CHUNK_BYTES)
                file.write(HEAD + pixels_of(number))
            said = DOCUMENT.format(
                name=f"job{job}", count=count, chunk=CHUNK_BYTES // 2, ranks=RANKS, slots=SLOTS, first=first
            )  # fmt: skip
            (lake / "jobs" / f"job{job}.toml").write_text(said)


# --- the readers -----------------------------------------------------------------------------------------------------


def measured(base: Path, token: Path, count: int, jobs: int, steps: int) -> Cell:
    """Read all jobs at once, each by a process, and return what that took."""
    context = mp.get_context("fork")
    with ExitStack() as stack:
        service = stack.enter_context(node(base, base / "lake", NO_LOAD))
        lake = stack.enter_context(mounted(CONFIG.format(lake=base / "lake", node=service.url, token=token), base))
        began, ready, results = context.Event(), context.Barrier(jobs + 1), context.SimpleQueue()
        processes = [
            context.Process(target=read_job, args=(lake.root, job, jobs, count, steps, ready, began, results))
            for job in range(jobs)
        ]
        start = time.perf_counter()
        for process in processes:
            process.start()
        try:
            ready.wait(120)
        except threading.BrokenBarrierError:
            raise AssertionError(f"{results.get()}: {lake.log('agent')[-2000:]}") from None
        first_s = time.perf_counter() - start
        with most_memory(lake, service.process.pid) as memory:
            before, start = used_s(memory.pids), time.perf_counter()
            began.set()
            memory.watch(processes)
            taken_s, after = time.perf_counter() - start, used_s(memory.pids)
        wrong = [said for said in (results.get() for _ in processes) if said]
        for process in processes:
            process.join()
    if wrong:
        raise AssertionError(wrong[0])
    read = steps * jobs * RANKS * SLOTS
    return Cell(
        read / taken_s, first_s, {name: 1e3 * (after[name] - before[name]) / read for name in before}, memory.most
    )  # fmt: skip


def used_s(pids: dict[str, int]) -> dict[str, float]:
    """Return CPU seconds by process; the sandbox of a node apart from it."""
    found = {name: cpu_s_of(pid) for name, pid in pids.items()}
    return {name: own for name, (own, _) in found.items()} | {"sandbox": found["node"][1]}


def read_job(
    root: Path, job: int, jobs: int, count: int, steps: int, ready: Any, began: Any, results: Any
) -> None:  # fmt: skip
    """Read the first step of a job, then, at the word of the others, all the rest; every sample is compared."""
    try:
        read_step(root, job, jobs, count, 0)
        ready.wait(120)
        began.wait(120)
        for step in range(1, steps + 1):
            read_step(root, job, jobs, count, step)
        results.put("")
    except BaseException as exc:
        ready.abort()
        results.put(f"job {job}: {type(exc).__name__} {exc}")


def read_step(root: Path, job: int, jobs: int, count: int, step: int) -> None:
    """Read what all ranks of a job read in one step."""
    for rank in range(RANKS):
        directory = f"{root}/.jobs/job{job}/step_{step:07d}/rank_{rank:04d}"
        for slot in range(SLOTS):
            with open(f"{directory}/{slot:06d}.npy", "rb", buffering=0) as file:
                assert form_of(file.fileno()) == TRANSFORMED, provenance_of(file.fileno())
                array = np.load(io.BytesIO(file.readall()))
            position = first_of(job, jobs, count) + step * RANKS * SLOTS + slot * RANKS + rank
            expected = np.frombuffer(pixels_of(number_of(position, count)), np.uint8).reshape(SIDE, SIDE)
            assert (array == expected).all() and array.shape == (3, SIDE, SIDE), f"{directory}, slot {slot}"


class Memory:
    """The most private memory that each process was seen with."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.most = dict.fromkeys(pids, 0)

    def watch(self, processes: list[Any]) -> None:
        """Look until these processes have ended."""
        while any(process.is_alive() for process in processes):
            processes[-1].join(LOOK_S)
            self.look()

    def look(self) -> None:
        """Look once."""
        for name, pid in self.pids.items():
            self.most[name] = max(self.most[name], anonymous_bytes(pid))


@contextmanager
def most_memory(lake: Lake, node_pid: int) -> Iterator[Memory]:
    """Yield what watches the processes of a mount and a node."""
    memory = Memory({"agent": lake.pid("agent"), "jobs": lake.pid("jobs"), "node": node_pid})
    yield memory
    memory.look()


# --- what came out ---------------------------------------------------------------------------------------------------


def concluded(cells: dict[tuple[int, int], Cell], jobs: tuple[int, ...], counts: tuple[int, ...]) -> Outcome:
    """Return figures and tables, and draw the curves where that is asked for."""
    outcome, rows = Outcome(), []
    for (some, count), cell in cells.items():
        name = f"jobs{some}_samples1e{len(str(count)) - 1}"
        mib = {process: held / (1 << 20) for process, held in cell.memory.items()}
        outcome.figures |= {f"{name}_per_s": cell.per_s, f"{name}_first_s": cell.first_s}
        outcome.figures |= {f"{name}_{process}_mib": held for process, held in mib.items()}
        outcome.figures[f"{name}_cpu_ms"] = sum(cell.cpu_ms.values())
        rows.append([f"{some} x 1e{len(str(count)) - 1}", f"{cell.per_s:.0f}", f"{cell.first_s:.2f}"])
        rows[-1] += [f"{cell.cpu_ms[process]:.2f}" for process in ("agent", "jobs", "node", "sandbox")]
        rows[-1] += [f"{mib[process]:.0f}" for process in ("agent", "jobs", "node")]
    few, many, small, large = jobs[0], jobs[-1], counts[0], counts[-1]
    for what, value in (
        ("per_s", lambda cell: cell.per_s),
        ("cpu", lambda cell: sum(cell.cpu_ms.values())),
        ("memory", lambda cell: sum(cell.memory.values())),
    ):
        outcome.figures[f"{what}_largest_vs_smallest_schedule"] = sum(value(cells[some, large]) for some in jobs) / sum(
            value(cells[some, small]) for some in jobs
        )
        outcome.figures[f"{what}_most_vs_fewest_jobs"] = sum(value(cells[many, count]) for count in counts) / sum(
            value(cells[few, count]) for count in counts
        )
    head = ["", "a second", "first steps, s", "CPU of a sample, ms: agent", "worker", "node", "sandbox"]
    head += ["memory, MiB: agent", "worker", "node"]
    outcome.sections.append(Section("one node, one mount, readers that never pause", head, rows))
    if drawn := os.environ.get("FOREMOUNT_BENCH_PLOT"):
        file = Path(drawn)
        for what, title, of in (
            ("rate", "samples a second", lambda cell: cell.per_s),
            ("memory", "MiB of agent, worker of .jobs and node", lambda cell: sum(cell.memory.values()) / (1 << 20)),
        ):
            lines = {f"{some} jobs": [of(cells[some, count]) for count in counts] for some in jobs}
            file.with_stem(f"{file.stem}-{what}").write_text(curves(title, "samples in the schedule", counts, lines))
    return outcome
