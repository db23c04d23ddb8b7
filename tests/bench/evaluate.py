"""An evaluation at another site, 100 ms away: from the commit of a checkpoint to its merge, with and without prediction.

A job saves a checkpoint file by file at its own site and commits it. At once an evaluation at the other site reads every
tensor through the mount with the unmodified safetensors library; its time is from its first open to its last tensor. Between
the sites lies one line of 1 Gbit/s, a quarter of which somebody else takes all the while.

plain         a mount without foresight
predicted     the evaluation was announced
mispredicted  the same reading while another checkpoint, which nobody wants, is copied over the same line
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere
from tests.bench.remote import CONFIG as PLAIN
from tests.bench.remote import RTT_MS, read_tensors
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, wait_until, why_no_mount
from tests.servers.wan_origin import WanOrigin, wan_origin
from vfs.checkpoints.manifest import ManifestFile
from vfs.foresight.model import Committed, FileClosed
from vfs.model import LakePath, SiteName, SitePath
from vfs.sites.http import HttpSite
from vfs.training import Training

MBIT = 1000.0
SAVE_BYTES_S = 60e6
"""A save that the line keeps up with; those of the trace take 26 to 129 s (facts/PAPER.md 1.1)."""
OTHER_BYTES_S = 30e6
SHARDS = 16
ROUNDS = 3
FORESIGHT = (
    PLAIN
    + """
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
[foresight]
"""
)


@dataclass(frozen=True)
class Timed:
    """One evaluation: seconds from the commit to the copy being published (0: none was), and of reading all tensors."""

    published_s: float
    merged_s: float


class Job:
    """What saves checkpoints at the origin's site, and tells the mount's controller of it where there is one."""

    def __init__(self, origin: WanOrigin, source: Path, told: Training | None) -> None:
        self._origin = origin
        self._files = sorted(source.iterdir())
        self._told = told
        self._saved: list[ManifestFile] = []

    def save(self, path: str, step: int, *, paced: bool = True) -> None:
        """Write the files, each told when it is complete; return when the dates of all of them tell their versions."""
        directory = self._origin.root / path
        directory.mkdir(parents=True)
        self._saved = []
        if self._told is not None:
            self._told.save_begun(step, path)
        for file in self._files:
            begun = time.monotonic()
            shutil.copyfile(file, directory / file.name)
            if paced:
                time.sleep(max(0.0, file.stat().st_size / SAVE_BYTES_S - (time.monotonic() - begun)))
            if self._told is not None:
                self._saved.append(self._closed(path, file))
                self._told.tell(FileClosed(path=LakePath(path), file=self._saved[-1]))
        self._closed(path, self._files[-1])

    def commit(self, path: str, step: int) -> None:
        """Say that the checkpoint is complete."""
        if self._told is not None:
            files = tuple(self._saved)
            what = Committed(step=step, path=LakePath(path), save_id=f"save-{path}", marker=files[-1].path, files=files)
            self._told.tell(what)

    def _closed(self, path: str, file: Path) -> ManifestFile:
        at = SitePath(f"{path}/{file.name}")
        version = asyncio.run(self._version(at))
        return ManifestFile(file.name, version.size, "", at, version)

    async def _version(self, at: SitePath) -> Any:
        site = HttpSite(SiteName("wan"), self._origin.url)
        try:
            while (version := (await site.stat(at)).version).generation:  # too young for its date to tell
                await asyncio.sleep(0.1)
            return version
        finally:
            await site.close()


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure the three, in turns."""
    if why := why_no_mount():
        raise NotHere(why)
    outcome = Outcome()
    found: dict[str, list[Timed]] = {"plain": [], "predicted": [], "mispredicted": []}
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        source = base / "source"
        written = write_checkpoint(source, layers=max(SHARDS, int(32 * scale)), width=768, vocabulary=32000, shards=SHARDS)
        expected = read_tensors(source, [])
        (base / "origin").mkdir()
        with wan_origin(base / "origin", rtt_ms=RTT_MS, mbit=MBIT, log=base / "origin.log") as origin, others(origin, base):
            for index in range(ROUNDS if scale == 1.0 else 1):
                for name in found:
                    say(f"round {index + 1}: {name}")
                    timed, digest = _one(base / f"{name}-{index}", origin, source, name)
                    found[name].append(timed)
                    if digest != expected["digest"]:
                        outcome.broken.append(f"{name}: the tensors differ from the source")
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


def _one(scratch: Path, origin: WanOrigin, source: Path, name: str) -> tuple[Timed, str]:
    """Return how long one evaluation took in a new mount with an empty cache, and the digest of what it read."""
    scratch.mkdir()
    (scratch / "eval").mkdir()
    config = PLAIN if name == "plain" else FORESIGHT
    wanted, other = f"{scratch.name}/step_1000", f"{scratch.name}/step_2000"
    with mounted(config.replace("{url}", origin.url), scratch) as lake:
        told = None if name == "plain" else Training("run7", [lake.run_dir.foresight_socket])
        silent = Job(origin, source, None)
        if name != "predicted":
            silent.save(wanted, 1000, paced=False)
        job = Job(origin, source, told)
        if told is not None:
            told.evaluation_scheduled("mmlu", 1000 if name == "predicted" else 2000, "eval")
        if name == "predicted":
            job.save(wanted, 1000)
            job.commit(wanted, 1000)
        elif name == "mispredicted":
            job.save(other, 2000, paced=False)
        begun = time.monotonic()
        watching = Watching(lake, begun) if name == "predicted" else None
        read = read_tensors(lake.root / wanted, [])
        timed = Timed(watching.result() if watching is not None else 0.0, read["seconds"])
    shutil.rmtree(scratch)
    shutil.rmtree(origin.root / scratch.name)
    return timed, read["digest"]


class Watching:
    """Notes when the copy is published, beside the reading."""

    def __init__(self, lake: Lake, begun: float) -> None:
        self._line = Training("run7", [lake.run_dir.foresight_socket])
        self._begun = begun
        self._published_s = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        wait_until(lambda: [each["phase"] for each in self._line.ask("/v1/state")["replicas"]] == ["published"], "a copy")
        self._published_s = time.monotonic() - self._begun

    def result(self) -> float:
        """Wait for it, and return when it was."""
        self._thread.join()
        return self._published_s


def _report(outcome: Outcome, found: dict[str, list[Timed]], size: int) -> None:
    middle = {name: sorted(timed, key=lambda each: each.merged_s)[len(timed) // 2] for name, timed in found.items()}
    plain_s = middle["plain"].merged_s
    outcome.figures["predicted_vs_remote"] = middle["predicted"].merged_s / plain_s
    outcome.figures["mispredicted_vs_plain"] = middle["mispredicted"].merged_s / plain_s
    outcome.figures["published_after_commit_s"] = middle["predicted"].published_s
    rows = []
    for name, timed in found.items():
        times = [each.merged_s for each in timed]
        row = f"{middle[name].merged_s:.2f} s ({min(times):.2f}-{max(times):.2f})"
        rows.append([name, row, f"{middle[name].merged_s / plain_s:.3f}"])
    title = f"{size / 1e6:.0f} MB in {SHARDS} files, all tensors read; {MBIT:.0f} Mbit/s, {RTT_MS:.0f} ms, one other transfer"
    outcome.sections.append(Section(title, ["", "merge (range)", "against plain"], rows))
