"""One modality of a checkpoint, and all of it, tensor by tensor from an origin 100 ms away.

The limit is what the line allows: bytes wanted / bandwidth + 3 round trips. Cold means a new mount with an empty cache for
every reading; the second step is another checkpoint of the same layout, read through the mount that read the first.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, why_no_mount
from tests.servers.wan_origin import WanOrigin, wan_origin

RTT_MS = 100.0
ROUND_TRIPS = 3
MODALITY = ".attn."
CONFIG = """
[sites.wan]
kind = "http"
url = "{url}"
[[mounts]]
prefix = "/"
site = "wan"
[cache]
directory = "{base}/cache"
size = "8GiB"
"""


@dataclass(frozen=True)
class Read:
    """One reading of a checkpoint."""

    seconds: float
    wanted: int
    crossed: int
    requests: int
    digest: str


def run_modality(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure one modality, cold and on the second step, at 1 and 10 Gbit/s."""
    return _run("remote-modality", ["--only", MODALITY], scale, say)


def run_all(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure all tensors."""
    return _run("remote-all", [], scale, say)


def _run(name: str, words: list[str], scale: float, say: Callable[[str], None]) -> Outcome:
    if why := why_no_mount():
        raise NotHere(why)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        say("writing two checkpoints of one layout")
        step1 = base / "origin" / "step_1000"
        written = write_checkpoint(step1, layers=max(4, int(48 * scale)), width=768, vocabulary=32000)
        shutil.copytree(step1, base / "origin" / "step_2000")
        with wan_origin(base / "origin", rtt_ms=RTT_MS, mbit=1000, log=base / "origin.log") as origin:
            for mbit in (1000, 10_000):
                origin.shape(rtt_ms=RTT_MS, mbit=mbit)
                _measure(base, origin, mbit, step1, words, outcome, say)
    outcome.figures["tensors"] = written.tensors
    outcome.figures["small_share"] = written.small / written.tensors
    return outcome


def _measure(
    base: Path, origin: WanOrigin, mbit: int, source: Path, words: list[str], outcome: Outcome, say: Callable[[str], None]
) -> None:
    """Fill in the figures of one bandwidth."""
    expected = read_tensors(source, words)
    rows, rounds = [], []
    for index in range(3):
        say(f"{mbit} Mbit/s, round {index + 1} of 3")
        scratch = base / f"round-{mbit}-{index}"
        scratch.mkdir()
        with mounted(CONFIG.replace("{url}", origin.url), scratch) as lake:
            first = through(lake, origin, "step_1000", words)
            second = through(lake, origin, "step_2000", words)
        shutil.rmtree(scratch)
        for found in (first, second):
            if found.digest != expected["digest"]:
                outcome.broken.append(f"{mbit} Mbit/s: the tensors differ from the source")
        rounds.append((first, second))
    limit = expected["bytes"] / (mbit * 1e6 / 8) + ROUND_TRIPS * RTT_MS / 1e3
    suffix = "" if mbit == 1000 else f"_{mbit // 1000}g"
    for step, label in enumerate(("", "second_step_")):
        best = sorted((pair[step] for pair in rounds), key=lambda read: read.seconds)
        middle = best[len(best) // 2]
        outcome.figures[f"{label}time_vs_limit{suffix}"] = middle.seconds / limit
        outcome.figures[f"{label}bytes_vs_wanted{suffix}"] = middle.crossed / middle.wanted
        rows.append(
            [
                "second step" if step else "cold",
                f"{middle.seconds:.2f} s ({best[0].seconds:.2f}-{best[-1].seconds:.2f})",
                f"{limit:.2f} s",
                f"{middle.seconds / limit:.2f}",
                f"{middle.wanted / 1e6:.0f} MB",
                f"{middle.crossed / middle.wanted:.3f}",
                str(middle.requests),
            ]
        )
    columns = ["", "time (range)", "limit", "time/limit", "wanted", "crossed/wanted", "requests"]
    outcome.sections.append(Section(f"{mbit} Mbit/s, {RTT_MS:.0f} ms", columns, rows))


def through(lake: Lake, origin: WanOrigin, step: str, words: list[str]) -> Read:
    """Read a checkpoint through the mount and count what crossed the line."""
    origin.reset_stats()
    found = read_tensors(lake.root / step, words)
    stats = origin.stats()
    return Read(found["seconds"], found["bytes"], stats["bytes"], stats["requests"], found["digest"])


def read_tensors(directory: Path, words: list[str]) -> dict[str, Any]:
    """Read in a process of its own."""
    argv = [sys.executable, "-m", "tests.bench.read_tensors", str(directory), *words]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(said.stdout)
    return found
