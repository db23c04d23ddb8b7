"""Metadata: listing one huge directory and a stat storm over it, at an origin 100 ms away; its requests are counted."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.measure import NotHere, seconds, spread, stopwatch
from tests.bench.report import Outcome, Section
from tests.lake import Lake, anonymous_bytes, mounted, why_no_mount
from tests.servers.wan_origin import WanOrigin, wan_origin

ENTRIES = 100_000
HUGE = 1_000_000
"""Entries of the directory that is listed once, for the first entry and the memory of our processes."""
STATS = 20_000
STORM_ROUNDS = 3
RTT_MS = 100
CONFIG = """
[sites.disk]
kind = "local"
path = "{{base}}/source"
[sites.far]
kind = "http"
url = "{url}"
[[mounts]]
prefix = "/local"
site = "disk"
[[mounts]]
prefix = "/far"
site = "far"
[cache]
directory = "{{base}}/cache"
size = "1GiB"
[limits]
listing_ttl = "10m"
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both trees, the same directory each."""
    if why := why_no_mount():
        raise NotHere(why)
    entries = int(ENTRIES * scale)
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        say(f"writing {entries} files")
        write_entries(base / "source" / "flat", entries)
        with (
            wan_origin(base / "source", rtt_ms=RTT_MS, mbit=1000, log=base / "origin.log") as origin,
            mounted(CONFIG.format(url=origin.url), base) as lake,
        ):
            outcome, rows = Outcome(), []
            for name in ("far", "local"):
                rows += Tree(name, lake.root / name / "flat", entries, origin, outcome, say).measure()
            say(f"writing and listing {int(HUGE * scale)} files")
            rows.append(list_huge(lake, base / "source" / "huge", int(HUGE * scale), origin, outcome))
            columns = ["what", "seconds", "per entry", "requests to the origin"]
            outcome.sections.append(Section(f"{entries} entries, the origin {RTT_MS} ms away", columns, rows))
    return outcome


def write_entries(directory: Path, count: int) -> None:
    """Write empty files but for their length: what is measured are names and attributes."""
    directory.mkdir(parents=True)
    for index in range(count):
        with (directory / f"sample_{index:07d}.bin").open("wb") as file:
            file.truncate(index % 4096)


def list_huge(lake: Lake, source: Path, entries: int, origin: WanOrigin, outcome: Outcome) -> list[str]:
    """List a directory that is far larger than what the processes may hold; return its row."""
    write_entries(source, entries)
    held, asked = resident(lake), int(origin.stats()["requests"])
    first_s, whole_s = list_streaming(lake.root / "far" / source.name, entries)
    asked = int(origin.stats()["requests"]) - asked
    grown = resident(lake) - held
    figures = {"huge_first_entry_s": first_s, "huge_list_s": whole_s, "huge_grown_mib": grown / (1 << 20)}
    outcome.figures |= figures | {"huge_list_requests": asked}
    what = f"far: {entries} entries, first after {first_s:.3f} s, memory grown by {grown >> 20} MiB"
    return [what, f"{whole_s:.3f}", f"{whole_s / entries * 1e6:.1f} µs", str(asked)]


def resident(lake: Lake) -> int:
    """Return what worker and agent hold apart from files."""
    return sum(anonymous_bytes(lake.pid(name)) for name in ("worker", "agent"))


class Tree:
    """One tree through the mount; `far` is behind the origin, `local` is not."""

    def __init__(
        self, name: str, path: Path, entries: int, origin: WanOrigin, outcome: Outcome, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._name = name
        self._path = path
        self._entries = entries
        self._origin = origin
        self._outcome = outcome
        self._say = say
        self._rows: list[list[str]] = []

    def measure(self) -> list[list[str]]:
        """Return the rows: first entry, whole listing, again, `ls -l`, stat storm."""
        self._say(f"{self._name}: listing, ls -l, stat storm")
        before = self._requests()
        first_s, whole_s = list_streaming(self._path, self._entries)
        self._note("first_entry", [first_s], before, 1, add=False)
        self._note("list", [whole_s], before, self._entries)
        self._timed("list_again", lambda: list_streaming(self._path, self._entries))
        self._timed("scan_with_stat", lambda: scan_with_attributes(self._path, self._entries))
        self._timed("ls_l", lambda: ls_l(self._path, self._entries))
        rng = random.Random(6)
        names = [f"sample_{rng.randrange(self._entries):07d}.bin" for _ in range(min(STATS, self._entries))]
        self._timed("stat_storm", lambda: stat_all(self._path, names), count=len(names), rounds=STORM_ROUNDS)
        return self._rows

    def _timed(self, what: str, work: Callable[[], Any], *, count: int | None = None, rounds: int = 1) -> None:
        before = self._requests()
        taken = [seconds(work) for _ in range(rounds)]
        self._note(what, taken, before, count or self._entries)

    def _note(self, what: str, taken: list[float], before: int, count: int, *, add: bool = True) -> None:
        """Add a row and its figures."""
        found, asked = spread(taken), self._requests() - before
        self._outcome.figures[f"{self._name}_{what}_s"] = found.median
        requests = "-"
        if self._name == "far" and add:
            requests = str(asked)
            self._outcome.figures[f"{self._name}_{what}_requests"] = asked
        per_entry = f"{found.median / count * 1e6:.1f} µs" if count > 1 else ""
        self._rows.append([f"{self._name}: {what.replace('_', ' ')}", f"{found.median:.3f}", per_entry, requests])

    def _requests(self) -> int:
        return int(self._origin.stats()["requests"])


def list_streaming(directory: Path, entries: int) -> tuple[float, float]:
    """Return the seconds until the first entry and until the last."""
    with stopwatch() as whole, os.scandir(directory) as found:
        with stopwatch() as first:
            next(found)
        count = 1 + sum(1 for _ in found)
    assert count == entries, f"{count} entries of {entries}"
    return first[0], whole[0]


def scan_with_attributes(directory: Path, entries: int) -> None:
    """List it and look at every size, as a dataset scan does."""
    with os.scandir(directory) as found:
        total = sum(entry.stat().st_size for entry in found)
    assert total == sum(index % 4096 for index in range(entries)), "wrong sizes"


def ls_l(directory: Path, entries: int) -> None:
    """Run the command."""
    said = subprocess.run(["ls", "-l", directory], stdout=subprocess.PIPE, check=True, env={**os.environ, "LC_ALL": "C"})
    assert said.stdout.count(b"\n") == entries + 1, "ls shows another number of entries"


def stat_all(directory: Path, names: list[str]) -> None:
    """Ask for each name's attributes, in random order."""
    for name in names:
        os.stat(directory / name)
