"""A checkpoint saved through the mount against the same disk directly: what is measured is the way, not the upload.

The mount stages on the disk that the direct side writes to. The origin takes no uploads, so that nothing else uses the disk.
Then the same save with uploads, against other mounts and against the saver's own remote path: `write_peers.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench import write_peers
from tests.bench.measure import NotHere, alternate, ratios, spread
from tests.bench.report import Outcome, Section
from tests.lake import FSYNC_IS_LOCAL, STAGED, mounted, why_no_mount
from tests.servers.wan_origin import wan_origin

CHECKPOINT_BYTES = 4 << 30
FILES = 8
PROCESSES = 4
PIECE = 8 << 20
SMALL = 4 << 10
SMALL_WRITES = 50_000
CREATED = 500
SEQUENTIAL_ROUNDS = 3
SMALL_ROUNDS = 11


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure a parallel save with fsync, 4 KiB writes, and small files."""
    if why := why_no_mount():
        raise NotHere(why)
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        (base / "direct").mkdir()
        (base / "origin").mkdir()
        (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
        with (
            wan_origin(base / "origin", rtt_ms=0, mbit=0) as origin,
            mounted(STAGED.replace("URL", origin.url), base) as lake,
        ):
            outcome = Outcome()
            status = lake.status()
            if not status["passthrough"]:
                outcome.skipped["passthrough"] = status["why_no_passthrough"]
            measure(base / "direct", lake.root, scale, outcome, say)
        write_peers.run(base, scale, save, FILES, PIECE, outcome, say)
    return outcome


def measure(direct: Path, through: Path, scale: float, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Fill in figures and table."""
    file_bytes = int(CHECKPOINT_BYTES * scale) // FILES // PIECE * PIECE
    writes, created = int(SMALL_WRITES * scale), int(CREATED * scale)
    ways: dict[str, tuple[Callable[[Path], object], int, Callable[[float], str]]] = {
        "seq": (lambda root: save(root, file_bytes), SEQUENTIAL_ROUNDS, lambda s: f"{FILES * file_bytes / s / 1e9:.2f} GB/s"),
        "small4k": (lambda root: write_small(root, writes), SMALL_ROUNDS, lambda s: f"{s / writes * 1e6:.2f} µs"),
        "create": (lambda root: create(root, created), SMALL_ROUNDS, lambda s: f"{s / created * 1e6:.0f} µs"),
    }
    rows = []
    for name, (work, rounds, words) in ways.items():
        say(f"{name}: {rounds} rounds, sides alternate")
        sides = {"direct": lambda work=work: work(direct / "save"), "mount": lambda work=work: work(through / "save")}
        for root in (direct, through):
            shutil.rmtree(root / "save", ignore_errors=True)
            (root / "save").mkdir()
        alternate(sides, 1)
        taken = alternate(sides, rounds)
        ratio, own, other = spread(ratios(taken["direct"], taken["mount"])), spread(taken["direct"]), spread(taken["mount"])
        outcome.figures[f"{name}_ratio"] = ratio.median
        outcome.figures[f"{name}_direct_s"] = own.median
        outcome.figures[f"{name}_mount_s"] = other.median
        spreads = f"{own.relative:.0%}/{other.relative:.0%}"
        rows.append(
            [
                name,
                words(own.median),
                words(other.median),
                f"{ratio.median:.3f}",
                f"{ratio.low:.2f}-{ratio.high:.2f}",
                spreads,
            ]
        )
    columns = ["written", "direct", "mount", "ratio", "lowest-highest", "spread direct/mount"]
    title = f"{FILES} files of {file_bytes >> 20} MiB by {PROCESSES} processes, with fsync; 4 KiB writes without; small files"
    outcome.sections.append(Section(title, columns, rows))


def save(root: Path, file_bytes: int) -> None:
    """Write a checkpoint's files in parallel, each anew under a name of its own, and sync them."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=save_rank, args=[root, rank, file_bytes]) for rank in range(PROCESSES)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0


def save_rank(root: Path, rank: int, file_bytes: int) -> None:
    """Write the files of one rank as safetensors does: a temporary file that is renamed over."""
    block = os.urandom(PIECE)
    for index in range(rank, FILES, PROCESSES):
        temporary = root / f".tmp-{index}"
        with temporary.open("wb", buffering=0) as file:
            for _ in range(file_bytes // PIECE):
                file.write(block)
            os.fsync(file.fileno())
        temporary.rename(root / f"shard-{index}.safetensors")


def write_small(root: Path, writes: int) -> None:
    """Write 4 KiB at a time."""
    block = os.urandom(SMALL)
    fd = os.open(root / "small", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for _ in range(writes):
            os.write(fd, block)
    finally:
        os.close(fd)


def create(root: Path, files: int) -> None:
    """Create files of a few bytes in a new directory, and remove them."""
    directory = root / "many"
    directory.mkdir()
    for index in range(files):
        (directory / f"{index}.json").write_bytes(b"{}")
    shutil.rmtree(directory)
