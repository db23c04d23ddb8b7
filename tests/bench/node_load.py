"""Another load on the node, with and without a training job whose samples the node transforms, alternating in one run.

The load is one process for each core that computes without pause: more than 80 % of the CPUs. The job reads a step of 16
pictures, pauses as a GPU would, and reads on. Its reader would be on another host: what it takes of these CPUs is stated and
counts as the node's. Every sample is compared: raw ones with the bin, transformed ones with what a plain script makes.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import media
from tests.bench.measure import NotHere, cpu_s_of, order_of_round, ratios, spread
from tests.bench.report import Outcome, Section
from tests.node import Node, Scheduled, node
from tests.operators import made
from vfs.samples.model import Envelope, Form

Group = dict[int, tuple[Envelope, bytes]]

ROUNDS = 5
ROUND_S = 4.0
PAUSE_S = 0.3
SLOTS = 16
PICTURES = 8
WIDTH, HEIGHT = 640, 480
CPU = 0.8
BURN = """
import sys, time, zlib
block, count, end = bytes(65536), 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    zlib.crc32(block); count += 1
print(count)
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both sides in turn."""
    if importlib.util.find_spec("PIL") is None:
        raise NotHere("needs the [media] extra")
    rounds = max(2, round(ROUNDS * scale))
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        base.chmod(0o755)
        lake = base / "lake"
        lake.mkdir()
        schedule = Scheduled(lake)
        steps = round(rounds * ROUND_S / PAUSE_S) + 50
        for step in range(steps):
            for slot in range(SLOTS):
                schedule.add(step, 0, slot, media.jpeg((step + slot) % PICTURES, WIDTH, HEIGHT))
        schedule.write()
        with node(base, lake, f"cpu = {CPU}\nprocesses = {len(os.sched_getaffinity(0))}") as service:
            return _measure(service, schedule, rounds, say)


def _measure(service: Node, schedule: Scheduled, rounds: int, say: Callable[[str], None]) -> Outcome:
    alone: list[float] = []
    beside: list[float] = []
    before: Counter[str] = Counter()
    under: Counter[str] = Counter()
    fetched = _read_for(service, 1, ROUND_S)
    _compare(fetched, schedule, before)
    say(f"without another load: {dict(before)}")
    step, reader_cpu_s, node_cpu_s, made_cpu_s = fetched[-1][0] + 1, 0.0, 0.0, 0.0
    for index in range(rounds):
        for side in order_of_round(["alone", "beside"], index):
            burning = [
                subprocess.Popen([sys.executable, "-c", BURN, str(ROUND_S)], stdout=subprocess.PIPE, text=True)
                for _ in os.sched_getaffinity(0)
            ]
            if side == "beside":
                used, node_used, made_used = time.process_time(), *cpu_s_of(service.process.pid)
                fetched = _read_for(service, step, ROUND_S)
                reader_cpu_s += time.process_time() - used
                node_now, made_now = cpu_s_of(service.process.pid)
                node_cpu_s, made_cpu_s = node_cpu_s + node_now - node_used, made_cpu_s + made_now - made_used
                step = fetched[-1][0] + 1
            counts = [int(process.communicate()[0]) for process in burning]
            (alone if side == "alone" else beside).append(sum(counts) / ROUND_S)
        _compare(fetched, schedule, under)
        say(f"round {index + 1}: {alone[-1]:.0f} a second alone, {beside[-1]:.0f} beside the node; {dict(under)}")
    kept = spread(ratios(beside, alone))
    wrong = under["wrong"] + before["wrong"] + under["missing"] + before["missing"]
    raw = sum(count for what, count in under.items() if what.startswith("raw"))
    cpus = len(os.sched_getaffinity(0))
    return Outcome(
        figures={
            "other_load_kept": round(kept.median, 4),
            "other_load_kept_low": round(kept.low, 4),
            "other_load_kept_high": round(kept.high, 4),
            "wrong_values": wrong,
            "samples": sum(under.values()),
            "raw_share": round(raw / max(1, sum(under.values())), 3),
            "raw_share_without_load": round(1 - before["transformed"] / max(1, sum(before.values())), 3),
            "node_cpu_share": round(node_cpu_s / (rounds * ROUND_S * cpus), 4),
            "left_over_cpu_share": round(made_cpu_s / (rounds * ROUND_S * cpus), 4),
            "reader_cpu_share": round(reader_cpu_s / (rounds * ROUND_S * cpus), 4),
        },
        sections=[
            Section(
                "the other load, 64 KiB checksums a second",
                ["side", "median", "lowest", "highest"],
                [_row("alone", alone), _row("beside the node", beside)],
            )
        ],
        broken=["a sample was missing or had other values"] if wrong else [],
    )


def _row(name: str, values: list[float]) -> list[str]:
    found = spread(values)
    return [name, f"{found.median:.0f}", f"{found.low:.0f}", f"{found.high:.0f}"]


def _read_for(service: Node, step: int, seconds: float) -> list[tuple[int, Group]]:
    """Read steps, one after the other with a pause; return them."""
    fetched = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        service.tell(step - 1)
        time.sleep(PAUSE_S)
        fetched.append((step, service.group(step, 0)))
        step += 1
    return fetched


def _compare(fetched: list[tuple[int, Group]], schedule: Scheduled, seen: Counter[str]) -> None:
    """Count what came, by form and reason, and what is not as it should be."""
    rows = {(row["step"], row["slot"]): row for row in schedule.rows}
    for step, group in fetched:
        for slot, (envelope, body) in group.items():
            row, raw = rows[step, slot], schedule.raw[step, 0, slot]
            if envelope.form is Form.RAW:
                seen[f"raw: {envelope.reason}" if body == raw else "wrong"] += 1
                continue
            here = made("image@1", raw, params=row["params"], seed=row["seed"])
            seen["transformed" if body == here else "wrong"] += 1
        seen["missing"] += SLOTS - len(group)
