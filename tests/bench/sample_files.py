"""Ready samples of 16 KiB and 150 KB: open+read+close through `.jobs` against the same files on the local disk.

Every file is opened for the first time on every side, as a training run does it: each round has directories of its own. The
agent's end is `tests/jobs.py` in a thread of this process, which has nothing to do while samples are read. Beside the disk,
whose file system may keep its pages in large pieces, stands tmpfs, which keeps them one by one as FUSE does.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench.measure import NotHere, order_of_round, ratios, seconds, spread, written_calls
from tests.bench.peers import rclone_of_directory
from tests.bench.report import Outcome, Section
from tests.jobs import JobsLake, jobs_mounted, why_with_open
from tests.lake import why_no_mount
from tests.servers.lifecycle import Missing

SIZES = {"16k": 16 << 10, "150k": 150_000}
FILES = {"16k": 500, "150k": 100}
ROUNDS = 7
NATIVE, TMPFS, LISTED, UNLISTED = "disk", "tmpfs", "listed", "unlisted"
UNPLACED, RAW, RCLONE = "unplaced", "raw", "rclone"
WORDS = {
    NATIVE: "the files on the local disk",
    TMPFS: "the files in tmpfs",
    LISTED: "ready, after a listing",
    UNLISTED: "ready, without a listing",
    UNPLACED: "known to the agent, not placed",
    RAW: "the raw bytes through the lake",
    RCLONE: "rclone mount of the disk",
}


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure every side that this machine has."""
    if why := why_no_mount() or why_with_open():
        raise NotHere(why)
    outcome = Outcome()
    with ExitStack() as stack:
        lake = stack.enter_context(jobs_mounted())
        source = lake.base / "disk"
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-bench-")))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-bench-", dir="/dev/shm")))
        roots = {NATIVE: source / NATIVE, TMPFS: memory, LISTED: lake.jobs, UNLISTED: lake.jobs, UNPLACED: lake.jobs}
        roots[RAW] = lake.root / RAW
        try:
            roots[RCLONE] = stack.enter_context(rclone_of_directory(source / RCLONE, base / RCLONE))
        except (Missing, RuntimeError, AssertionError) as exc:
            outcome.skipped[RCLONE] = str(exc)
        worst = 0.0
        for size in SIZES:
            count, rounds = max(int(FILES[size] * scale), 20), ROUNDS
            say(f"{size}: making {count} files for each of {rounds} rounds and {len(roots)} sides")
            prepare(lake, roots, size, count, rounds)
            say(f"{size}: reading")
            taken, requests = measure(lake, roots, size, count, rounds)
            worst = max(worst, conclude(outcome, taken, requests, size, count))
        outcome.figures["listed_vs_native"] = worst
    return outcome


def directory_of(side: str, size: str, index: int) -> str:
    """Return where a side reads in one round, relative to its root. Pure."""
    return f"{side}-{size}/step_{index:07d}/rank_0000"


def names_of(count: int) -> list[str]:
    """Return the names in a directory, in the order in which they are read. Pure."""
    return [f"{slot:06d}.npy" for slot in range(count)]


def prepare(lake: JobsLake, roots: dict[str, Path], size: str, count: int, rounds: int) -> None:
    """Write or place every side's files; each has content of its own."""
    rng = random.Random(size)
    for index in range(rounds):
        for side in roots:
            directory = directory_of(side, size, index)
            if side in (NATIVE, TMPFS, RAW, RCLONE):
                made = (roots[side] if side == TMPFS else lake.base / "disk" / side) / directory
                made.mkdir(parents=True)
                for name in names_of(count):
                    (made / name).write_bytes(rng.randbytes(SIZES[size]))
                continue
            for name in names_of(count):
                lake.samples.put(f"{directory}/{name}", rng.randbytes(SIZES[size]))
            if side != UNPLACED:
                lake.samples.expected += count
                lake.samples.place(directory)
    lake.settle_pushes(lake.samples.expected)
    os.sync()


def measure(
    lake: JobsLake, roots: dict[str, Path], size: str, count: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return seconds per file of each round, and the worker's requests of the kernel per file, by side."""
    taken: dict[str, list[float]] = {side: [] for side in roots}
    answers = dict.fromkeys((LISTED, UNLISTED, UNPLACED), 0)
    io = Path(f"/proc/{lake.pid('jobs')}/io")
    for index in range(rounds):
        for side in order_of_round(list(roots), index):
            directory = os.path.join(roots[side], directory_of(side, size, index))
            if side == LISTED:
                os.listdir(directory)
            before = written_calls(io.read_text())
            took = seconds(lambda directory=directory: read_all(directory, names_of(count), SIZES[size]))
            if side in answers:
                answers[side] += written_calls(io.read_text()) - before
            taken[side].append(took / count)
    return taken, {side: asked / count / rounds for side, asked in answers.items()}


def read_all(directory: str, names: list[str], size: int) -> None:
    """Open, read and close every file once."""
    for name in names:
        fd = os.open(f"{directory}/{name}", os.O_RDONLY)
        got = len(os.read(fd, size))
        os.close(fd)
        assert got == size, f"{directory}/{name}: {got} bytes instead of {size}"


def conclude(
    outcome: Outcome, taken: dict[str, list[float]], requests: dict[str, float], size: str, count: int
) -> float:  # fmt: skip
    """Fill in figures and table; return `listed_vs_native` of this size."""
    rows = []
    for side, values in taken.items():
        found, versus = spread(values), spread(ratios(values, taken[NATIVE]))
        outcome.figures[f"{side}_{size}_us"] = found.median * 1e6
        if side != NATIVE:
            outcome.figures[f"{side}_vs_native_{size}"] = versus.median
        if side in (LISTED, UNLISTED):
            outcome.figures[f"{side}_vs_tmpfs_{size}"] = spread(ratios(values, taken[TMPFS])).median
        if side in requests:
            outcome.figures[f"{side}_{size}_requests"] = requests[side]
        rows.append(
            [
                WORDS[side],
                f"{found.median * 1e6:.1f} µs ({found.low * 1e6:.1f}-{found.high * 1e6:.1f})",
                f"{versus.median:.2f} ({versus.low:.2f}-{versus.high:.2f})",
                f"{requests[side]:.2f}" if side in requests else "",
            ]
        )
    title = f"{count} files of {size}, opened, read and closed for the first time, {len(taken[NATIVE])} rounds"
    outcome.sections.append(Section(title, ["side", "per file", "against the disk", "requests"], rows))
    return spread(ratios(taken[LISTED], taken[NATIVE])).median
