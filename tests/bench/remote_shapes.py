"""Readers of other shapes than one that goes through a checkpoint by name, from an origin 100 ms away at 1 Gbit/s.

Each reading is the first one of a new mount with an empty cache. A ratio sets its time against that of the plain shape: one
reader, in the order of names, or from begin to end.

FOREMOUNT_BENCH_SHAPES: only these parts, as "orders,growth". FOREMOUNT_BENCH_PLOT=FILE.svg: the growth is drawn as
FILE-rtt.svg and FILE-tensors.svg.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere, chosen
from tests.bench.remote import CONFIG, MODALITY, RTT_MS, read_tensors, through
from tests.bench.report import Outcome, Section
from tests.bench.svg import curves
from tests.lake import Lake, anonymous_bytes, mounted, why_no_mount
from tests.servers.wan_origin import WanOrigin, wan_origin

MIB = 1 << 20
RANDOM_READS = 40
HANDLES = 500
READERS = 8
RTTS_MS = (1, 10, 100, 200)
COUNTS = (100, 1000, 10_000)
GROWTH_BYTES = 64 * MIB
MEMORY = "96MiB"
"""Of what is in flight, as configured for the 500 handles."""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure all shapes."""
    if why := why_no_mount():
        raise NotHere(why)
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        say("writing the files")
        write_checkpoint(base / "origin" / "step_1000", layers=max(4, int(48 * scale)), width=768, vocabulary=32000)
        chance = np.random.default_rng(3)
        (base / "origin" / "large.bin").write_bytes(chance.bytes(int(512 * scale) * MIB))
        (base / "origin" / "part.bin").write_bytes(chance.bytes(max(16, int(128 * scale)) * MIB))
        with wan_origin(base / "origin", rtt_ms=RTT_MS, mbit=1000, log=base / "origin.log") as origin:
            shapes = _Shapes(base, origin, say)
            parts = {
                "orders": shapes.orders,
                "processes": shapes.processes,
                "random": shapes.random_reads,
                "handles": shapes.handles,
                "growth": lambda: shapes.growth(scale),
            }
            for name in chosen(list(parts), os.environ.get("FOREMOUNT_BENCH_SHAPES", "")):
                parts[name]()
        return shapes.outcome


class _Shapes:
    """One run."""

    def __init__(self, base: Path, origin: WanOrigin, say: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._base = base
        self._origin = origin
        self._say = say

    @contextmanager
    def _lake(self, more: str = "") -> Iterator[Lake]:
        scratch = self._base / "round"
        scratch.mkdir()
        try:
            with mounted(CONFIG.replace("{url}", self._origin.url) + more, scratch) as lake:
                yield lake
        finally:
            shutil.rmtree(scratch)

    def orders(self) -> None:
        """Name order forwards and backwards, and several threads."""
        expected = read_tensors(self._base / "origin" / "step_1000", ["--only", MODALITY])
        rows, plain = [], 0.0
        shapes = [("plain", []), ("reverse", ["--order", "reverse"])]
        shapes += [(f"threads_{count}", ["--threads", str(count)]) for count in (2, 4, 8, 16)]
        for name, words in shapes:
            self._say(f"one modality, {name}")
            with self._lake() as lake:
                found = through(lake, self._origin, "step_1000", ["--only", MODALITY, *words])
            self._require(found.digest == expected["digest"], f"{name}: the tensors differ from the source")
            plain = plain or found.seconds
            self.outcome.figures[f"{name}_vs_plain"] = found.seconds / plain
            crossed = found.crossed / found.wanted
            rows.append(
                [name, f"{found.seconds:.2f} s", f"{found.seconds / plain:.2f}", f"{crossed:.3f}", str(found.requests)]
            )
        self._table("one modality", ["", "time", "vs plain", "crossed/wanted", "requests"], rows)

    def processes(self) -> None:
        """One file from begin to end: by one process, four that share a descriptor, eight that know nothing of each other."""
        rows, plain = [], 0.0
        size = (self._base / "origin" / "part.bin").stat().st_size
        for name, shape, count in (
            ("whole", "whole", 1),
            ("forked_4", "forked", 1),
            (f"processes_{READERS}", "whole", READERS),
        ):
            self._say(f"one file, {name}")
            with self._lake() as lake:
                self._origin.reset_stats()
                found = [said(reader) for reader in [self._reader(lake, "part.bin", shape) for _ in range(count)]]
                crossed = self._origin.stats()["bytes"] / size
            self._require(all(each["right"] for each in found), f"{name}: wrong bytes")
            seconds = max(each["seconds"] for each in found)
            plain = plain or seconds
            self.outcome.figures[f"{name}_vs_plain"] = seconds / plain
            self.outcome.figures[f"{name}_bytes_vs_size"] = crossed
            rows.append([name, f"{seconds:.2f} s", f"{seconds / plain:.2f}", f"{crossed:.3f}"])
        self._table(f"one file of {size // MIB} MiB", ["", "time", "vs plain", "crossed/size"], rows)

    def random_reads(self) -> None:
        """Reads of 4 MiB at random."""
        self._say(f"{RANDOM_READS} random reads of 4 MiB")
        with self._lake() as lake:
            lake_stat = (lake.root / "large.bin").stat()
            self._origin.reset_stats()
            found = said(self._reader(lake, "large.bin", "random", "--count", str(RANDOM_READS), "--length", str(4 * MIB)))
            stats = self._origin.stats()
        self._require(found["right"], "random: wrong bytes")
        own = stats["by_path"]["/large.bin"]
        self.outcome.figures["random_requests_per_read"] = own["requests"] / RANDOM_READS
        self.outcome.figures["random_bytes_vs_wanted"] = own["bytes"] / found["bytes"]
        row = [f"{found['seconds']:.2f} s", f"{own['requests'] / RANDOM_READS:.2f}", f"{own['bytes'] / found['bytes']:.3f}"]
        title = f"{RANDOM_READS} random reads of 4 MiB of {lake_stat.st_size // MIB} MiB"
        self._table(title, ["time", "requests per read", "crossed/wanted"], [row])

    def handles(self) -> None:
        """One random read of 4 KiB on each of many handles."""
        self._say(f"{HANDLES} handles")
        with self._lake(f'[limits]\nmemory = "{MEMORY}"\n') as lake:
            (lake.root / "large.bin").stat()
            before = anonymous_bytes(lake.pid("agent"))
            self._origin.reset_stats()
            reader = self._reader(lake, "large.bin", "handles", "--count", str(HANDLES), "--length", "4096")
            assert reader.stdout is not None
            found = json.loads(reader.stdout.readline())
            explained = json.loads(lake.command("explain", str(lake.root / "large.bin"), "--json").stdout)
            grown = (anonymous_bytes(lake.pid("agent")) - before) / MIB
            crossed = self._origin.stats()["bytes"] / MIB
            reader.communicate("\n", timeout=60)
        self._require(found["right"], "handles: wrong bytes")
        window = window_of(explained)
        self.outcome.figures["handles_agent_grown_mib"] = grown
        self.outcome.figures["handles_window"] = window
        self.outcome.figures["handles_crossed_mib"] = crossed
        row = [f"{found['seconds']:.2f} s", f"{grown:.0f} MiB", MEMORY, str(window), f"{crossed:.0f} MiB"]
        self._table(f"{HANDLES} handles, 4 KiB at random", ["time", "agent grown", "budget", "window", "crossed"], [row])

    def growth(self, scale: float) -> None:
        """The second step of a known layout against round trips and numbers of tensors."""
        for count in COUNTS if scale >= 1 else COUNTS[:2]:
            for step in (1, 2):
                write_even(self._base / "origin" / f"even_{count}" / f"step_{step}", count)
        cases = [(1000, rtt) for rtt in RTTS_MS] + [(count, RTT_MS) for count in COUNTS if scale >= 1 and count != 1000]
        seconds = {case: self._steps(*case) for case in cases}
        self._origin.shape(rtt_ms=RTT_MS, mbit=1000)
        longest = max(second for _, second in seconds.values())
        table = [
            [f"{count} tensors, {rtt:g} ms", f"{first:.2f} s", f"{second:.2f} s", "#" * round(40 * second / longest)]
            for (count, rtt), (first, second) in seconds.items()
        ]
        self._table(f"{GROWTH_BYTES // MIB} MiB in all", ["", "first step", "second step", "second step, plotted"], table)
        if drawn := os.environ.get("FOREMOUNT_BENCH_PLOT"):
            draw(Path(drawn), seconds)

    def _steps(self, count: int, rtt_ms: float) -> tuple[float, float]:
        """Return the seconds of the first and of the second step of one layout."""
        self._say(f"growth: {count} tensors, {rtt_ms:g} ms")
        self._origin.shape(rtt_ms=rtt_ms, mbit=1000)
        with self._lake() as lake:
            first = through(lake, self._origin, f"even_{count}/step_1", [])
            second = through(lake, self._origin, f"even_{count}/step_2", [])
        self.outcome.figures[f"growth_{count}_tensors_{rtt_ms:g}_ms"] = second.seconds
        return first.seconds, second.seconds

    def _reader(self, lake: Lake, name: str, shape: str, *words: str) -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-m",
            "tests.bench.read_bytes",
            str(lake.root / name),
            str(self._base / "origin" / name),
            shape,
        ]
        return subprocess.Popen([*argv, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.outcome.broken.append(otherwise)

    def _table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        self.outcome.sections.append(Section(title, columns, rows))


def draw(file: Path, seconds: Mapping[tuple[int, float], tuple[float, float]]) -> None:
    """Draw the growth over round trips and numbers of tensors; `seconds` of both steps by (tensors, ms of a round trip)."""
    for what, across, cases in (
        ("rtt", "ms of a round trip, 1,000 tensors", sorted(case for case in seconds if case[0] == 1000)),
        ("tensors", f"tensors, {RTT_MS:g} ms", sorted(case for case in seconds if case[1] == RTT_MS)),
    ):
        places = [rtt if what == "rtt" else count for count, rtt in cases]
        if len(places) > 1:
            lines = {name: [seconds[case][step] for case in cases] for step, name in enumerate(("first step", "second step"))}
            file.with_stem(f"{file.stem}-{what}").write_text(curves("seconds of a step", across, places, lines))


def said(reader: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a reader and return what it printed."""
    output, _ = reader.communicate(timeout=600)
    found: dict[str, Any] = json.loads(output)
    return found


def window_of(explained: Any) -> int:
    """Return the window of a handle wherever `explain` shows it."""
    if isinstance(explained, dict):
        if "window" in explained and "prefetched_bytes" in explained:
            return int(explained["window"])
        return max((window_of(each) for each in explained.values()), default=0)
    return 0


def write_even(directory: Path, count: int) -> None:
    """Write a checkpoint of `count` tensors of one size, the same bytes in all whatever the count."""
    directory.mkdir(parents=True)
    content = np.random.default_rng(5).integers(0, 255, (count, GROWTH_BYTES // count), np.uint8)
    save_file({f"layers.{index}.weight": content[index] for index in range(count)}, directory / "model.safetensors")
