"""Decisions with 200 rules on one core, and opens while 1,000 rules are read anew."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.measure import NotHere, seconds, spread
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, why_no_mount
from vfs.model import LakePath, SiteName
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce
from vfs.policy.store import PolicyStore

RULES = 200
RULES_RELOADED = 1000
DECISIONS = 100_000
ROUNDS = 5
RELOADS = 8
CONFIG = """
policies = ["policies"]
[sites.here]
kind = "local"
path = "{base}/here"
[[mounts]]
prefix = ""
site = "here"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both."""
    if why := why_no_mount():
        raise NotHere(why)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        say(f"{RULES} rules")
        _decisions(base, int(DECISIONS * scale), outcome)
        for directory in ("here", "policies"):
            (base / directory).mkdir()
        for number in range(200):
            (base / f"here/file{number}").write_bytes(b"x" * 100)
        (base / "policies/many.toml").write_text(document(RULES_RELOADED, "60s"))
        with mounted(CONFIG, base) as lake:
            say(f"reloading {RULES_RELOADED} rules under opens")
            _reloads(lake, max(2, round(RELOADS * scale)), outcome)
    return outcome


def document(rules: int, deadline: str) -> str:
    """Return a document whose rules are as people write them: by directory, by suffix, by size."""
    lines = ["format = 1"]
    for number in range(rules):
        match = (f'path = "team{number}/**"', f'path = "**/run{number}/*.pt"', f'path = "**/*.k{number}", size = ">1MiB"')[
            number % 3
        ]
        lines.append(f'[[rules]]\nname = "r{number}"\nmatch = {{ {match} }}\nset = {{ deadline = "{deadline}" }}')
    return "\n".join(lines) + "\n"


def _decisions(base: Path, count: int, outcome: Outcome) -> None:
    file = base / "decisions.toml"
    file.write_text(document(RULES, "60s"))
    in_force = InForce(PolicyStore([str(file)]))
    rng = random.Random(1)
    paths = [
        LakePath(
            f"team{rng.randrange(400)}/run{rng.randrange(400)}/step_{rng.randrange(10**6)}/part{rng.randrange(64)}.{suffix}"
        )
        for suffix in ("pt", "safetensors", "k7", "npy")
        for _ in range(count // 4)
    ]
    site = SiteName("here")

    def decide() -> None:
        for path in paths:
            in_force.decision(path, Access.OPEN, site, 1 << 21)

    def core_seconds() -> float:  # of this process: others may have the core in between
        began = time.process_time()
        decide()
        return time.process_time() - began

    found = spread([len(paths) / core_seconds() for _ in range(ROUNDS)])
    outcome.figures["decisions_per_s"] = found.median
    row = [f"{RULES} rules, {len(paths)} paths", f"{found.median:,.0f}", f"{found.low:,.0f} to {found.high:,.0f}"]
    outcome.sections.append(Section("one core", ["decisions", "per second", "spread"], [row]))


def _reloads(lake: Lake, reloads: int, outcome: Outcome) -> None:
    taken: dict[str, list[float]] = {"quiet": [], "reloading": []}
    side, ended = ["quiet"], threading.Event()

    def open_files() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            began = time.perf_counter()
            with open(lake.root / f"file{number % 200}", "rb") as file:
                file.read()
            taken[side[0]].append(time.perf_counter() - began)
            time.sleep(0.001)

    reader = threading.Thread(target=open_files)
    reader.start()
    reload_s = []
    try:
        for number in range(reloads):
            side[0] = "quiet"
            time.sleep(2.0)
            (lake.base / "policies/many.toml").write_text(document(RULES_RELOADED, f"{61 + number}s"))
            side[0] = "reloading"
            reload_s.append(seconds(lambda: lake.command("policy", "reload", "--mountpoint", str(lake.root))))
            time.sleep(2.0)  # the worker looks every two seconds
    finally:
        ended.set()
        reader.join()
    rows = []
    for name, each in taken.items():
        ordered = sorted(each)
        p99, longest = ordered[int(0.99 * len(ordered))], ordered[-1]
        outcome.figures[f"{name}_open_p99_ms"], outcome.figures[f"{name}_open_longest_ms"] = p99 * 1e3, longest * 1e3
        rows.append(
            [name, str(len(each)), f"{ordered[len(ordered) // 2] * 1e3:.2f}", f"{p99 * 1e3:.2f}", f"{longest * 1e3:.1f}"]
        )
    outcome.figures["reload_command_s"] = spread(reload_s).median
    columns = ["open, read, close", "number", "p50 ms", "p99 ms", "longest ms"]
    outcome.sections.append(Section(f"{RULES_RELOADED} rules reloaded {reloads} times", columns, rows))
