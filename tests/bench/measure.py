"""Sides that alternate in one run, medians and spread."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class NotHere(Exception):
    """This machine can't run the bench or a side of it; the message says why."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing.

    Attributes:
        low: the smallest.
        high: the greatest.
    """

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Return (high - low) / median; 0 where everything was alike."""
        return (self.high - self.low) / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and greatest of at least one value. Pure."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return over/under round by round: what slows a whole round down does not show. Pure."""
    return [a / b for a, b in zip(over, under, strict=True)]


def order_of_round(names: Sequence[str], index: int) -> list[str]:
    """Return the sides in the order of round `index`: forward, then backward, so that none is always first. Pure."""
    return list(names) if index % 2 == 0 else list(reversed(names))


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each side took in each of the rounds."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds):
        for name in order_of_round(list(sides), index):
            taken[name].append(seconds(sides[name]))
    return taken


def seconds(work: Callable[[], object]) -> float:
    """Return how long the call took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def written_calls(io: str) -> int:
    """Return `syscw` of a /proc/PID/io: a worker's writes are its answers. Pure."""
    return int(next(line.split(": ")[1] for line in io.splitlines() if line.startswith("syscw")))


def cpu_s_of(root: int) -> tuple[float, float]:
    """Return CPU seconds of a process, and of all below it."""
    parents, used = {}, {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11 : 13 if pid == root else 15])) / os.sysconf("SC_CLK_TCK")
    below = {root}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
    return used[root], sum(used.get(pid, 0.0) for pid in below - {root})


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Yield a list that holds the block's seconds afterwards."""
    taken: list[float] = []
    start = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - start)


def chosen(parts: list[str], said: str) -> list[str]:
    """Return the parts of a bench that are named, separated by commas; all where none is.

    Raises:
        NotHere: for one that there is not.
    """
    wanted = [name for name in said.split(",") if name]
    if unknown := sorted(set(wanted) - set(parts)):
        raise NotHere(f"has no {', '.join(unknown)}, but {', '.join(parts)}")
    return [name for name in parts if not wanted or name in wanted]
