"""A local replica through the mount against the same file directly, both from the page cache: what is measured is the way."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import safe_open

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere, alternate, ratios, spread
from tests.bench.report import Outcome, Section
from tests.lake import mounted, why_no_mount

BIG_BYTES = 512 << 20
SEQUENTIAL = 1 << 20
RANDOM = 4 << 10
RANDOM_READS = 40_000
ROUNDS = 11
CONFIG = """
[sites.disk]
kind = "local"
path = "{base}/source"
[[mounts]]
prefix = "/"
site = "disk"
[cache]
directory = "{base}/cache"
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure sequential, random, mapped and safetensors reads."""
    if why := why_no_mount():
        raise NotHere(why)
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        size = int(BIG_BYTES * scale) // SEQUENTIAL * SEQUENTIAL
        say(f"writing {size >> 20} MiB and a checkpoint")
        write_big(base / "source" / "big", size)
        write_checkpoint(base / "source" / "ckpt", layers=max(4, int(48 * scale)), width=768, vocabulary=8000)
        with mounted(CONFIG, base) as lake:
            outcome = Outcome()
            status = lake.status()
            if not status["passthrough"]:
                outcome.skipped["passthrough"] = status["why_no_passthrough"]
            measure(base / "source", lake.root, size, int(RANDOM_READS * scale), outcome, say)
    return outcome


def measure(
    direct: Path, through: Path, size: int, random_reads: int, outcome: Outcome, say: Callable[[str], None]
) -> None:  # fmt: skip
    """Fill in figures and table."""
    offsets = random_offsets(size, random_reads)
    ways: dict[str, tuple[Callable[[Path], object], Callable[[float], str]]] = {
        "seq": (lambda root: read_sequentially(root / "big"), lambda s: f"{size / s / 1e9:.2f} GB/s"),
        "rand4k": (lambda root: read_randomly(root / "big", offsets), lambda s: f"{s / len(offsets) * 1e6:.2f} µs"),
        "safetensors": (lambda root: load_tensors(root / "ckpt"), lambda s: f"{s * 1e3:.0f} ms"),
        "mmap": (lambda root: touch_mapping(root / "big"), lambda s: f"{s * 1e3:.1f} ms"),
    }
    rows = []
    for name, (work, words) in ways.items():
        say(f"{name}: {ROUNDS} rounds, sides alternate")
        sides = {"direct": lambda work=work: work(direct), "mount": lambda work=work: work(through)}
        alternate(sides, 1)
        taken = alternate(sides, ROUNDS)
        ratio, own, other = spread(ratios(taken["direct"], taken["mount"])), spread(taken["direct"]), spread(taken["mount"])
        outcome.figures[f"{name}_ratio"] = ratio.median
        outcome.figures[f"{name}_best_ratio"] = own.low / other.low
        outcome.figures[f"{name}_direct_s"] = own.median
        outcome.figures[f"{name}_mount_s"] = other.median
        spreads = f"{own.relative:.0%}/{other.relative:.0%}"
        lowest_highest, best = f"{ratio.low:.2f}-{ratio.high:.2f}", f"{own.low / other.low:.3f}"
        rows.append([name, words(own.median), words(other.median), f"{ratio.median:.3f}", lowest_highest, best, spreads])
    columns = ["read", "direct", "mount", "ratio", "lowest-highest", "best to best", "spread direct/mount"]
    outcome.sections.append(Section(f"medians of {ROUNDS} rounds; 1.0 is the speed of the file itself", columns, rows))


def write_big(path: Path, size: int) -> None:
    """Write `size` bytes that do not repeat in a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    block = os.urandom(SEQUENTIAL)
    with path.open("wb") as file:
        for index in range(size // SEQUENTIAL):
            file.write(index.to_bytes(8, "little") + block[8:])


def random_offsets(size: int, count: int) -> list[int]:
    """Return page-aligned offsets, equal every time. Pure."""
    rng = random.Random(4)
    return [rng.randrange(size // RANDOM) * RANDOM for _ in range(count)]


def read_sequentially(path: Path) -> None:
    """Read all of it, 1 MiB at a time into one buffer."""
    buffer = bytearray(SEQUENTIAL)
    fd = os.open(path, os.O_RDONLY)
    try:
        while os.readv(fd, [buffer]):
            pass
    finally:
        os.close(fd)


def read_randomly(path: Path, offsets: list[int]) -> None:
    """Read 4 KiB at each offset into one buffer."""
    buffers = [bytearray(RANDOM)]
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset in offsets:
            os.preadv(fd, buffers, offset)
    finally:
        os.close(fd)


def load_tensors(directory: Path) -> None:
    """Load every tensor with the unmodified library: it maps the file and copies each out."""
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                opened.get_tensor(name)


def touch_mapping(path: Path) -> None:
    """Map it anew and read one byte of each page."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            pages = np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE]
            pages.sum()
            del pages
    finally:
        os.close(fd)
