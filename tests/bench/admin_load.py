"""Cached reads on the mount, with and without 200 clients of the admin API, alternating in one run.

A client is a page that is open: its stream of events, and all facts anew every three seconds, as `vfs/admin/static/app.js`
asks. The clients are one process of their own. Measured are 4 KiB reads at random places of a fetched file (the kernel
answers alone), and stats of names whose attributes have just expired (the worker answers).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.measure import NotHere, order_of_round, spread
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, why_no_mount
from tests.servers.wan_origin import wan_origin

CLIENTS = 200
ROUNDS = 6
ROUND_S = 6.0
SETTLE_S = 3.0
SIZE = 64 << 20
CONFIG = """
[sites.far]
kind = "http"
url = "{url}"
[[mounts]]
prefix = ""
site = "far"
[cache]
directory = "{{base}}/cache"
size = "1GiB"
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both sides in turn."""
    if why := why_no_mount():
        raise NotHere(why)
    rounds = max(2, round(ROUNDS * scale))
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        (base / "source").mkdir()
        (base / "source/file").write_bytes(os.urandom(SIZE))
        with (
            wan_origin(base / "source", rtt_ms=0, mbit=0, log=base / "origin.log") as origin,
            mounted(CONFIG.format(url=origin.url), base) as lake,
        ):
            lake.command("fetch", str(lake.root / "file"))
            return _measure(lake, rounds, say)


def _measure(lake: Lake, rounds: int, say: Callable[[str], None]) -> Outcome:
    read: dict[str, list[list[float]]] = {"alone": [], "200 clients": []}
    answers = 0
    for index in range(rounds):
        for side in order_of_round(list(read), index):
            say(f"round {index + 1} of {rounds}: {side}")
            if side == "alone":
                read[side].append(_read(lake))
                continue
            with _clients(lake) as client:
                time.sleep(SETTLE_S)
                read[side].append(_read(lake))
                client.terminate()
                said = client.communicate()[0].split()
                answers += int(said[0])
    outcome = Outcome()
    rows = []
    for side, taken in read.items():
        name = side.replace(" ", "_")
        cells = [side]
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            found = spread([_percentile(each, share) * 1e6 for each in taken])
            outcome.figures[f"{name}_{label}_us"] = found.median
            cells.append(f"{found.median:.1f} ({found.low:.1f} to {found.high:.1f})")
        rows.append(cells)
    ratio = spread([_percentile(b, 0.99) / _percentile(a, 0.99) for a, b in zip(*read.values(), strict=True)])
    outcome.figures["p99_ratio"] = ratio.median
    outcome.figures["p99_ratio_low"], outcome.figures["p99_ratio_high"] = ratio.low, ratio.high
    outcome.figures["answers_per_s"] = answers / rounds / (ROUND_S + SETTLE_S)
    columns = ["side", "p50 µs", "p99 µs", "p99.9 µs"]
    outcome.sections.append(Section(f"4 KiB of a cached file, {rounds} rounds of {ROUND_S:.0f} s", columns, rows))
    return outcome


def _read(lake: Lake) -> list[float]:
    """Return the seconds of each read in a round."""
    rng, taken = random.Random(7), []
    end = time.monotonic() + ROUND_S
    with open(lake.root / "file", "rb", buffering=0) as file:
        while time.monotonic() < end:
            offset = rng.randrange(0, SIZE - 4096)
            began = time.perf_counter()
            os.pread(file.fileno(), 4096, offset)
            taken.append(time.perf_counter() - began)
            time.sleep(0.0005)  # a reader that computes meanwhile: a loop of reads would measure who gets the core
    return taken


def _percentile(taken: list[float], share: float) -> float:
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def _clients(lake: Lake) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.bench.admin_clients", lake.run_dir.admin_socket, str(CLIENTS)]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield client
    finally:
        client.kill()
        client.wait()
