"""One modality of a checkpoint, and all of it, tensor by tensor from an origin 100 ms away.

The limit is what the line allows: bytes wanted / bandwidth + 3 round trips. Cold means a new mount with an empty cache for
every reading; the second step is another checkpoint of the same layout, read through the mount that read the first.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere
from tests.bench.peers import rclone_http, s3fs
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, why_no_mount
from tests.servers.far_line import far_line
from tests.servers.lifecycle import Missing
from tests.servers.seaweedfs import seaweedfs
from tests.servers.wan_origin import WanOrigin, wan_origin

RTT_MS = 100.0
ROUND_TRIPS = 3
MODALITY = ".attn."
PEER_S = 60.0
"""Given to a peer: one that takes longer is stopped, and what it has read by then is told."""
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
            if not words:
                _measure_plain(base, origin, 10_000, step1, outcome, say)
            origin.shape(rtt_ms=RTT_MS, mbit=1000)
            if not words:
                _measure_dcp(base, origin, scale, outcome, say)
            _measure_peers(base, origin, words, outcome, say)
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
    limit = limit_s(expected["bytes"], mbit)
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


def _measure_plain(
    base: Path, origin: WanOrigin, mbit: int, source: Path, outcome: Outcome, say: Callable[[str], None]
) -> None:
    """Fetch the files onto the disk with aiohttp alone and read them there: what this machine does without a mount."""
    say(f"aiohttp alone, {mbit} Mbit/s")
    argv = [sys.executable, "-m", "tests.bench.fetch_plain"]
    for file in sorted(source.iterdir()):
        argv += [f"{origin.url}/{source.name}/{file.name}", str(file.stat().st_size)]
    with tempfile.TemporaryDirectory(dir=base) as target:
        said = subprocess.run([*argv, "--into", target], capture_output=True, text=True, check=True, timeout=600)
        fetched, found = json.loads(said.stdout), read_tensors(Path(target), [])
    limit, seconds = limit_s(found["bytes"], mbit), fetched["seconds"] + found["seconds"]
    outcome.figures[f"plain_time_vs_limit_{mbit // 1000}g"] = seconds / limit
    row = [f"{fetched['seconds']:.2f} s", f"{fetched['cpu_s']:.2f} s", f"{found['seconds']:.2f} s", f"{seconds / limit:.2f}"]
    columns = ["fetched", "CPU of it", "read from the disk", "both/limit"]
    outcome.sections.append(Section(f"aiohttp alone, {mbit} Mbit/s, {RTT_MS:.0f} ms", columns, [row]))


def _measure_dcp(base: Path, origin: WanOrigin, scale: float, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Load everything with torch.distributed.checkpoint at 1 Gbit/s: cold, and the next step."""
    say("everything by torch.distributed.checkpoint")
    layers = max(4, int(48 * scale))
    first = base / "origin" / "dcp" / "step_1"
    try:
        run_dcp("save", first, layers)
    except NotHere as exc:
        outcome.skipped["dcp"] = str(exc)
        return
    shutil.copytree(first, base / "origin" / "dcp" / "step_2")
    expected = run_dcp("load", first, layers)
    limit = limit_s(expected["bytes"])
    rows = []
    scratch = base / "dcp-round"
    scratch.mkdir()
    with mounted(CONFIG.replace("{url}", origin.url), scratch) as lake:
        for label, step in (("dcp_", "step_1"), ("dcp_second_step_", "step_2")):
            origin.reset_stats()
            found = run_dcp("load", lake.root / "dcp" / step, layers)
            stats = origin.stats()
            if found["digest"] != expected["digest"]:
                outcome.broken.append(f"dcp, {step}: the tensors differ from the source")
            outcome.figures[f"{label}time_vs_limit"] = found["seconds"] / limit
            outcome.figures[f"{label}bytes_vs_wanted"] = stats["bytes"] / found["bytes"]
            ratio = f"{found['seconds'] / limit:.2f}"
            rows.append([step, f"{found['seconds']:.2f} s", f"{limit:.2f} s", ratio, str(stats["requests"])])
    shutil.rmtree(scratch)
    shutil.rmtree(base / "origin" / "dcp")
    outcome.sections.append(Section("DCP, 1000 Mbit/s, 100 ms", ["", "time", "limit", "time/limit", "requests"], rows))


def _measure_peers(base: Path, origin: WanOrigin, words: list[str], outcome: Outcome, say: Callable[[str], None]) -> None:
    """Read the same with other programs, once each at 1 Gbit/s: cold, from HTML listings as they need them."""
    origin.shape(listing="html")
    expected = read_tensors(base / "origin" / "step_1000", words)
    rows = []
    for name, measure in PEERS.items():
        say(f"{name}, 1000 Mbit/s")
        try:
            seconds, found, crossed, requests = measure(base, origin, words)
        except (Missing, NotHere) as exc:
            outcome.skipped[name] = str(exc)
            continue
        ratio, share = seconds / limit_s(expected["bytes"]), found["bytes"] / expected["bytes"]
        if found["is_whole"]:
            outcome.figures[f"{name}_time_vs_limit"] = ratio
            if found["digest"] != expected["digest"]:
                outcome.broken.append(f"{name}: the tensors differ from the source")
        else:
            outcome.figures |= {f"{name}_time_vs_limit_at_least": ratio, f"{name}_share_read": share}
        more, note = ("", "") if found["is_whole"] else ("> ", f", stopped at {share:.1%}")
        rows.append(
            [name, f"{more}{seconds:.2f} s{note}", f"{more}{ratio:.2f}", f"{crossed / max(1, found['bytes']):.3f}", requests]
        )
    origin.shape(listing="json")
    outcome.skipped["mountpoint-s3"] = "neither Debian nor PyPI has it"
    outcome.sections.append(
        Section("peers, 1000 Mbit/s, 100 ms", ["", "time", "time/limit", "crossed/read", "requests"], rows)
    )


PeerRead = tuple[float, dict[str, Any], int, str]
"""Seconds, what the reader says, bytes that crossed the line, requests."""


def _over_http(
    peer: Callable[[str, Path], AbstractContextManager[Path]], base: Path, origin: WanOrigin, words: list[str]
) -> PeerRead:
    """Read through a mount of the origin."""
    with tempfile.TemporaryDirectory(dir=base) as scratch, peer(origin.url, Path(scratch) / "peer") as root:
        origin.reset_stats()
        found = read_tensors(root / "step_1000", words, within_s=PEER_S)
        stats = origin.stats()
    return found["seconds"], found, stats["bytes"], str(stats["requests"])


def _with_fsspec(base: Path, origin: WanOrigin, words: list[str]) -> PeerRead:
    """Fetch the shards with fsspec's `simplecache`, for readers that need files, and read them."""
    try:
        import fsspec
    except ImportError as exc:
        raise NotHere("fsspec is not installed") from exc
    names = [f"model-{index:05d}-of-00002.safetensors" for index in (1, 2)]
    urls = [f"simplecache::{origin.url}/step_1000/{name}" for name in names]
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        origin.reset_stats()
        begun = time.perf_counter()
        fetched = fsspec.open_local(urls, simplecache={"cache_storage": scratch, "same_names": True})
        fetched_s = time.perf_counter() - begun
        found = read_tensors(Path(fetched[0]).parent, words)
        stats = origin.stats()
    return fetched_s + found["seconds"], found, stats["bytes"], str(stats["requests"])


def _with_s3fs(base: Path, origin: WanOrigin, words: list[str]) -> PeerRead:
    """Read through s3fs, from a real S3 server behind a line like the origin's."""
    with tempfile.TemporaryDirectory(dir=base) as scratch, seaweedfs(Path(scratch)) as server:
        store = server.filesystem()
        for file in (base / "origin" / "step_1000").iterdir():
            with file.open("rb") as source, store.open_output_stream(f"lake/step_1000/{file.name}") as target:
                shutil.copyfileobj(source, target, 8 << 20)
        with (
            far_line(server.port, rtt_ms=RTT_MS, mbit=1000) as line,
            s3fs(dataclasses.replace(server, port=line.port), "step_1000", Path(scratch) / "s3fs") as root,
        ):
            before = line.sent_bytes
            found = read_tensors(root, words, within_s=PEER_S)
            return found["seconds"], found, line.sent_bytes - before, "not counted"


PEERS: dict[str, Callable[[Path, WanOrigin, list[str]], PeerRead]] = {
    "rclone_off": functools.partial(_over_http, functools.partial(rclone_http, cache_mode="off")),
    "rclone_full": functools.partial(_over_http, functools.partial(rclone_http, cache_mode="full")),
    "fsspec_simplecache": _with_fsspec,
    "s3fs": _with_s3fs,
}


def run_dcp(what: str, directory: Path, layers: int) -> dict[str, Any]:
    """Save or load in a process of its own.

    Raises:
        NotHere: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotHere("torch is not installed")
    argv = [sys.executable, "-m", "tests.bench.read_dcp", what, str(directory), "--layers", str(layers)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def through(lake: Lake, origin: WanOrigin, step: str, words: list[str]) -> Read:
    """Read a checkpoint through the mount and count what crossed the line."""
    origin.reset_stats()
    found = read_tensors(lake.root / step, words)
    stats = origin.stats()
    return Read(found["seconds"], found["bytes"], stats["bytes"], stats["requests"], found["digest"])


def limit_s(size: int, mbit: int = 1000) -> float:
    """Return the seconds that a line of this rate, 100 ms away, needs for so many bytes at least. Pure."""
    return size / (mbit * 1e6 / 8) + ROUND_TRIPS * RTT_MS / 1e3


def read_tensors(directory: Path, words: list[str], *, within_s: float = math.inf) -> dict[str, Any]:
    """Read in a process of its own, which stops after `within_s`."""
    argv = [sys.executable, "-m", "tests.bench.read_tensors", str(directory), *words, "--within", str(within_s)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(said.stdout)
    return found
