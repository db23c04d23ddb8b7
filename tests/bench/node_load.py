"""Another load on the node, with and without a training job whose samples the node transforms, alternating in one run.

The load is one process for each core that computes without pause, in a session of its own as another service is: more
than 80 % of the CPUs. It runs all the time and counts; the job reads a step of 16 pictures, pauses as a GPU would, and reads
on, in every other slice of a second. Pairs of neighbouring slices are compared, so that what slows this machine down for
longer does not show. The job's reader would be on another host: what it takes of these CPUs is stated and counts as the
node's. Every sample is compared after the last slice: raw ones with the bin, others with what a plain script makes.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing as mp
import os
import statistics
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import media
from tests.bench.measure import NotHere, cpu_s_of, order_of_round, ratios, spread
from tests.bench.report import Outcome, Section
from tests.node import Node, Scheduled, node
from tests.operators import made
from vfs.samples.model import Envelope, Form

Group = dict[int, tuple[Envelope, bytes]]

PAIRS = 20
ALONE = 4
"""Slices without the other load, before it."""
SLICE_S = 1.0
PAUSE_S = 0.3
SLOTS = 16
PICTURES = 8
WIDTH, HEIGHT = 640, 480
CPU = 0.8
BLOCK = bytes(65536)


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both sides in turn."""
    if importlib.util.find_spec("PIL") is None:
        raise NotHere("needs the [media] extra")
    pairs = max(2, round(PAIRS * scale))
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        base.chmod(0o755)
        lake = base / "lake"
        lake.mkdir()
        schedule = Scheduled(lake)
        steps = round((pairs + ALONE) * SLICE_S / PAUSE_S) + 50
        for step in range(steps):
            for slot in range(SLOTS):
                schedule.add(step, 0, slot, media.jpeg((step + slot) % PICTURES, WIDTH, HEIGHT))
        schedule.write()
        with node(base, lake, f"cpu = {CPU}\nprocesses = {len(os.sched_getaffinity(0))}") as service:
            return _measure(service, schedule, pairs, say)


class Burning:
    """The other load: counts checksums and its own CPU seconds, by process."""

    def __init__(self, count: int) -> None:
        context = mp.get_context("fork")
        self._seen = context.RawArray("d", 2 * count)
        self._processes = [context.Process(target=_burn, args=(self._seen, index), daemon=True) for index in range(count)]
        for process in self._processes:
            process.start()

    def look(self) -> tuple[float, float, float]:
        """Return (now, checksums so far, CPU seconds so far)."""
        return time.monotonic(), sum(self._seen[::2]), sum(self._seen[1::2])

    def end(self) -> None:
        """End it."""
        for process in self._processes:
            process.kill()
            process.join()


def _burn(seen: Any, index: int) -> None:
    os.setsid()
    while True:
        for _ in range(16):
            zlib.crc32(BLOCK)
        seen[2 * index] += 16
        seen[2 * index + 1] = time.process_time()


@dataclass(frozen=True)
class Slice:
    """What the other load got in one slice.

    Attributes:
        done: checksums a second.
        cpus: cores that it had; not less where the whole machine is slow for a while.
    """

    done: float
    cpus: float


def _measure(service: Node, schedule: Scheduled, pairs: int, say: Callable[[str], None]) -> Outcome:
    cpus = len(os.sched_getaffinity(0))
    quiet = _read_for(service, 1, ALONE * SLICE_S)
    step, fetched = quiet[-1][0] + 1, []
    slices: dict[str, list[Slice]] = {"alone": [], "beside": []}
    node_s = made_s = reader_s = beside_s = 0.0
    burning = Burning(cpus)
    try:
        time.sleep(SLICE_S)  # until the node has seen it
        for index in range(pairs):
            for side in order_of_round(["alone", "beside"], index):
                before, used, (node_used, made_used) = burning.look(), time.process_time(), cpu_s_of(service.process.pid)
                if side == "beside":
                    fetched += _read_for(service, step, SLICE_S)
                    step = fetched[-1][0] + 1
                else:
                    time.sleep(SLICE_S)
                after = burning.look()
                took_s = after[0] - before[0]
                slices[side].append(Slice((after[1] - before[1]) / took_s, (after[2] - before[2]) / took_s))
                if side == "beside":
                    node_now, made_now = cpu_s_of(service.process.pid)
                    node_s, made_s = node_s + node_now - node_used, made_s + made_now - made_used
                    reader_s, beside_s = reader_s + time.process_time() - used, beside_s + took_s
            say(f"pair {index + 1}: {slices['alone'][-1].done:.0f} a second, {slices['beside'][-1].done:.0f} beside the node")
    finally:
        burning.end()
    seen = {"quiet": _compared(quiet, schedule), "loaded": _compared(fetched, schedule)}
    say(f"samples: {dict(seen['quiet'])} without the other load, {dict(seen['loaded'])} beside it")
    wrong = sum(each["wrong"] + each["missing"] for each in seen.values())
    outcome = Outcome(broken=["a sample was missing or had other values"] if wrong else [])
    for name, of in (("other_load_kept", lambda each: each.done), ("other_load_cpu_kept", lambda each: each.cpus)):
        kept = ratios([of(each) for each in slices["beside"]], [of(each) for each in slices["alone"]])
        error = 2 * statistics.stdev(kept) / math.sqrt(len(kept))
        outcome.figures |= {
            name: statistics.median(kept),
            f"{name}_mean": statistics.mean(kept),
            f"{name}_mean_at_least": statistics.mean(kept) - error,
            f"{name}_mean_at_most": statistics.mean(kept) + error,
        }
    outcome.figures |= {
        "node_cpu_share": node_s / beside_s / cpus,
        "sandbox_cpu_share": made_s / beside_s / cpus,
        "reader_cpu_share": reader_s / beside_s / cpus,
        "samples_per_s": SLOTS * len(fetched) / beside_s,
        "raw_share": _raw_share(seen["loaded"]),
        "raw_share_without_load": _raw_share(seen["quiet"]),
        "wrong_values": wrong,
    }
    rows = [_row("alone", slices["alone"]), _row("beside the node", slices["beside"])]
    head = [
        "side",
        "64 KiB checksums a second, median",
        "lowest",
        "highest",
        "cores that it had, median",
        "lowest",
        "highest",
    ]
    outcome.sections.append(Section(f"another load, {pairs} pairs of slices of {SLICE_S:.0f} s", head, rows))
    return outcome


def _raw_share(seen: Counter[str]) -> float:
    return sum(count for what, count in seen.items() if what.startswith("raw")) / seen.total()


def _row(name: str, slices: list[Slice]) -> list[str]:
    done, cpus = spread([each.done for each in slices]), spread([each.cpus for each in slices])
    cells = [f"{value:.0f}" for value in (done.median, done.low, done.high)]
    return [name, *cells, *(f"{value:.3f}" for value in (cpus.median, cpus.low, cpus.high))]


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


def _compared(fetched: list[tuple[int, Group]], schedule: Scheduled) -> Counter[str]:
    """Count what came, by form and reason, and what is not as it should be."""
    seen: Counter[str] = Counter()
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
    return seen
