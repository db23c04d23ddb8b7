"""An evaluation at another site, 100 ms away: from the commit of a checkpoint to its merge, with and without prediction.

A job saves a checkpoint every 500 steps through a writing mount at its own site, to an HTTP server near by. At the other
site every second one is evaluated: at the commit (the marker is at the origin) the unmodified safetensors library reads
all tensors through a mount of that site and writes them as one file. Between the sites lies one line of 1 Gbit/s, a quarter
of which somebody else takes all the while. Nobody announces an evaluation: the job has said once how often it is evaluated.

plain         no foresight at either mount
predicted     step 1000 is evaluated, as the job said
mispredicted  step 1000 is evaluated while that of step 1500, which the job named and nobody wants, is being copied
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from safetensors.numpy import load_file

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere
from tests.bench.merge import digest_of
from tests.bench.report import Outcome, Section
from tests.bench.writing_job import JOB, MARKER, path_of
from tests.lake import Lake, mounted, wait_until, why_no_mount
from tests.private import private
from tests.servers.lifecycle import free_port
from tests.servers.wan_origin import WanOrigin, wan_origin
from vfs.training import Training

RTT_MS, MBIT = 100.0, 1000.0
SAVE_BYTES_S = 60e6
"""A save that the line keeps up with; those of the trace take 26 to 129 s (facts/PAPER.md 1.1)."""
OTHER_BYTES_S = 30e6
SHARDS, LAYERS = 16, 32
EVERY, EVALUATED, UNWANTED = 500, 1000, 1500
ROUNDS = 3
PUBLISHED, READ, MERGED = "published", "all tensors read", "merged"
TRAINING = """
[sites.origin]
kind = "http"
url = "URL/NAME"
writes = "put"
[[mounts]]
prefix = "/"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
size = "8GiB"
"""
EVALUATION = """
[sites.origin]
kind = "http"
url = "URL/NAME"
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
size = "8GiB"
"""


@dataclass(frozen=True)
class Timed:
    """One evaluation.

    Attributes:
        marks: what was when, in seconds from the commit, in the order of a merge.
        cpu_s: of the merging process.
    """

    marks: dict[str, float]
    cpu_s: float
    digest: str


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure the three, in turns."""
    if why := why_no_mount():
        raise NotHere(why)
    outcome, rounds = Outcome(), int(os.environ.get("FOREMOUNT_BENCH_ROUNDS", ROUNDS if scale == 1.0 else 1))
    names = ["plain", "predicted", "mispredicted"]
    found: dict[str, list[Timed]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made, contextlib.ExitStack() as stack:
        base = Path(made)
        written = write_checkpoint(
            base / "source", layers=max(SHARDS, int(LAYERS * scale)), width=768, vocabulary=32000, shards=SHARDS
        )
        expected = digest_of({name: each for file in written.files for name, each in load_file(file).items()})
        (base / "origin").mkdir()
        served = wan_origin(base / "origin", rtt_ms=RTT_MS, mbit=MBIT, log=base / "origin.log")
        origin = stack.enter_context(served)
        stack.enter_context(others(origin, base))
        local_s = median(_local_s(base / "source", base / "merged.safetensors") for _ in range(3))
        for index in range(rounds):
            for name in names if index % 2 == 0 else reversed(names):
                say(f"round {index + 1} of {rounds}: {name}")
                found[name].append(_one(base / f"{name}-{index}", origin, base / "source", name))
                if found[name][-1].digest != expected:
                    outcome.broken.append(f"{name}: the merged tensors differ from the source")
    outcome.figures["local_s"] = local_s
    _report(outcome, found, written.bytes)
    return outcome


@contextlib.contextmanager
def others(origin: WanOrigin, base: Path) -> Iterator[None]:
    """Transfer something else over the line until the block ends."""
    (base / "origin" / "other.bin").write_bytes(bytes(64 << 20))
    ended = threading.Event()

    def transfer() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{origin.url}/other.bin", timeout=60) as answer:
                while not ended.wait((1 << 20) / OTHER_BYTES_S) and answer.read(1 << 20):
                    pass

    thread = threading.Thread(target=transfer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def _one(scratch: Path, origin: WanOrigin, source: Path, name: str) -> Timed:
    """Run a job, and one evaluation in a new mount with an empty cache."""
    port, evaluated_at = free_port(), UNWANTED if name == "mispredicted" else EVALUATED
    for part in ("training", "evaluation/eval"):
        (scratch / part).mkdir(parents=True)
    tokens = private(scratch / "tokens")
    lake = origin.root / scratch.name
    lake.mkdir()
    training = TRAINING.replace("URL", origin.near_url).replace("NAME", scratch.name)
    evaluation = EVALUATION.replace("URL", origin.url).replace("NAME", scratch.name)
    if name != "plain":
        training += f'[foresight]\ncontrollers = ["http://127.0.0.1:{port}"]\ntokens = "{tokens}"\n'
        evaluation += f'[foresight]\naddress = "127.0.0.1:{port}"\ntokens = "{tokens}"\n'
    with mounted(evaluation, scratch / "evaluation") as reads, mounted(training, scratch / "training") as writes:
        words = ["--every", str(EVERY), "--saves", str(evaluated_at // EVERY), "--bytes-s", str(SAVE_BYTES_S)]
        if name != "plain":
            words += ["--controller", f"http://127.0.0.1:{port}", "--tokens", str(tokens), "--site", "eval"]
            words += ["--evaluate-every", str(evaluated_at)]
        with _merging(reads.root / path_of(EVALUATED), scratch / "merged.safetensors") as merge:
            job = [sys.executable, "-m", "tests.bench.writing_job", str(writes.root), str(source), *words]
            subprocess.run(job, check=True, stdout=subprocess.DEVNULL)
            marker = lake / path_of(evaluated_at) / MARKER
            wait_until(marker.exists, "the commit")
            committed_s = time.monotonic()
            watching = Watching(reads) if name == "predicted" else None
            done = merge()
        marks = {"last shard at the origin": _last_s(lake / path_of(EVALUATED))}
        if watching is not None:
            marks |= {"last shard copied": _last_s(scratch / "evaluation/eval"), PUBLISHED: watching.result()}
    marks |= _merged_marks(done)
    shutil.rmtree(scratch)
    shutil.rmtree(lake)
    return Timed({mark: at_s - committed_s for mark, at_s in marks.items()}, done["cpu_s"], done["digest"])


def _last_s(directory: Path) -> float:
    """Return when the last shard below a directory had its last byte, by the clock of the marks."""
    wall_s = max(each.stat().st_mtime for each in directory.rglob("*.safetensors"))
    return wall_s - time.time() + time.monotonic()


def _merged_marks(done: dict[str, Any]) -> dict[str, float]:
    (first_open_s, first_read_s), *_ = done["files_s"]
    return {
        "listed": done["listed_s"],
        "first shard open": first_open_s,
        "first shard read": first_read_s,
        "second shard read": done["files_s"][1][1],
        READ: done["read_s"],
        MERGED: done["ended_s"],
    }


def _local_s(source: Path, into: Path) -> float:
    """Return how long the merge of the same files takes on the disk of this host: no copy can be merged faster."""
    with _merging(source, into) as merge:
        begun_s = time.monotonic()
        return float(merge()["ended_s"] - begun_s)


@contextlib.contextmanager
def _merging(directory: Path, into: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield what lets a process that has begun merge, and returns what it says."""
    argv = [sys.executable, "-m", "tests.bench.merge", str(directory), str(into)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"

        def merge() -> dict[str, Any]:
            said, _ = child.communicate("go\n")
            return dict(json.loads(said))

        yield merge


class Watching:
    """Notes when the copy is published, beside the merge."""

    def __init__(self, lake: Lake) -> None:
        self._line = Training(JOB, [lake.run_dir.foresight_socket])
        self._published_s = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        wait_until(lambda: [each["phase"] for each in self._line.ask("/v1/state")["replicas"]] == ["published"], "a copy")
        self._published_s = time.monotonic()

    def result(self) -> float:
        """Wait for it, and return when it was, by the monotonic clock."""
        self._thread.join()
        return self._published_s


def _report(outcome: Outcome, found: dict[str, list[Timed]], size: int) -> None:
    """Fill in ratios as the median of the ratios of single rounds."""
    rows = []
    plain = [each.marks[MERGED] for each in found["plain"]]
    for name, timed in found.items():
        times = [each.marks[MERGED] for each in timed]
        ratios = [one / other for one, other in zip(times, plain, strict=True)]
        outcome.figures[f"{name}_s"] = median(times)
        spread = f"{median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"
        rows.append([name, spread, f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"])
        if name != "plain":
            figure = "predicted_vs_remote" if name == "predicted" else "mispredicted_vs_plain"
            outcome.figures[figure] = median(ratios)
    reads = [one.marks[READ] / other.marks[READ] for one, other in zip(found["predicted"], found["plain"], strict=True)]
    outcome.figures["predicted_read_vs_remote_read"] = median(reads)
    outcome.figures["published_after_commit_s"] = median([each.marks[PUBLISHED] for each in found["predicted"]])
    limit_s = size / (MBIT * 1e6 / 8 - OTHER_BYTES_S) + 3 * RTT_MS / 1e3
    outcome.figures["plain_vs_limit"] = median(plain) / limit_s
    title = (
        f"{size / 1e6:.0f} MB in {SHARDS} files, all tensors merged; {MBIT:.0f} Mbit/s, {RTT_MS:.0f} ms, one other transfer"
    )
    outcome.sections.append(Section(title, ["", "commit to merged (range)", "against plain"], rows))
    lines = {name: _median_marks(timed) for name, timed in found.items()}
    marks = [[mark, *(f"{line[mark]:.2f}" if mark in line else "" for line in lines.values())] for mark in lines["predicted"]]
    marks.append(["CPU of the merging process", *(f"{median(each.cpu_s for each in timed):.2f}" for timed in found.values())])
    outcome.sections.append(Section("seconds after the commit", ["", *lines], marks))


def _median_marks(timed: list[Timed]) -> dict[str, float]:
    return {mark: median(each.marks[mark] for each in timed) for mark in timed[0].marks}
