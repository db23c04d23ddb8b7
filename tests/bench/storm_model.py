"""A start-up storm as a discrete-event model: readers that arrive together, copies that share what they can send.

Pure: no I/O, no clock; what is random comes from a seed.

A reader first does what does not depend on the copies (opening, its own shards, building the model), then reads the hot
bytes from its copy. A copy sends `rate` bytes a second in all, to all of its readers alike (processor sharing), and no reader
takes more than `line`. Readers choose copies as the mounts do (`vfs/foresight/spread.py`).
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

import numpy as np

from vfs.foresight.spread import copies_needed, shares


@dataclass(frozen=True)
class Storm:
    """What is simulated.

    Attributes:
        readers: that arrive.
        copies: that serve them.
        hot_bytes: that each reads.
        rate: bytes a second of one copy.
        before_s: of each reader before it reads them, on average.
        spread: of `before_s` between readers, as a share of it (standard deviation of a normal distribution, cut at 0).
        line: bytes a second of one reader.
    """

    readers: int
    copies: int
    hot_bytes: float
    rate: float
    before_s: float = 0.0
    spread: float = 0.0
    line: float = float("inf")
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """When readers were done, seconds from the beginning."""

    last_s: float
    median_s: float


def simulate(storm: Storm) -> Outcome:
    """Return when the readers were done."""
    chance = random.Random(storm.seed)
    choice = shares(storm.readers, "storm", [f"copy-{index}" for index in range(storm.copies)])
    arrivals: list[list[float]] = [[] for _ in range(storm.copies)]
    for reader in range(storm.readers):
        arrivals[choice[reader]].append(max(0.0, chance.gauss(storm.before_s, storm.spread * storm.before_s)))
    done = np.array([end for each in arrivals for end in served(each, storm.hot_bytes, storm.rate, storm.line)])
    return Outcome(float(done.max()), float(np.median(done)))


def served(arrivals: list[float], size: float, rate: float, line: float) -> list[float]:
    """Return when each of the readers of one copy has its bytes.

    Events are arrivals and ends; between two of them every reader that is there has the same rate. `given` is what a reader
    that was there from the beginning would have by now, so that an end is a number that does not move.
    """
    waiting = sorted(arrivals)
    ends: list[float] = []
    there: list[float] = []  # of `given` at which each reader that is there is done, a heap
    now = given = 0.0
    place = 0
    while place < len(waiting) or there:
        each = min(line, rate / len(there)) if there else 0.0
        end = now + (there[0] - given) / each if there else float("inf")
        if place < len(waiting) and waiting[place] <= end:
            given += (waiting[place] - now) * each
            now = waiting[place]
            heapq.heappush(there, given + size)
            place += 1
        else:
            given = heapq.heappop(there)
            now = end
            ends.append(now)
    return ends


@dataclass(frozen=True)
class Calibration:
    """What the paper's two measurements say (2,048 ranks: 38.48 s with 3 copies, 22.78 s with 128).

    Attributes:
        before_s: that does not depend on the copies.
        copy_s: that one copy is busy with one reader.
    """

    before_s: float
    copy_s: float


PAPER_READERS, PAPER_FEW, PAPER_MANY = 2048, (3, 38.48), (128, 22.78)


def calibrated() -> Calibration:
    """Return the two unknowns from the two measurements: T(R) = before + ceil(readers / R) * copy."""
    (few, few_s), (many, many_s) = PAPER_FEW, PAPER_MANY
    loads = -(-PAPER_READERS // few), -(-PAPER_READERS // many)
    copy_s = (few_s - many_s) / (loads[0] - loads[1])
    return Calibration(few_s - loads[0] * copy_s, copy_s)


def paper_storm(readers: int, copies: int, *, spread: float = 0.0) -> Storm:
    """Return a storm of so many ranks over so many copies, with the paper's times."""
    found = calibrated()
    return Storm(readers, copies, hot_bytes=found.copy_s, rate=1.0, before_s=found.before_s, spread=spread)


def hinted(readers: int) -> int:
    """Return the copies that hints ask for."""
    return copies_needed(readers)
