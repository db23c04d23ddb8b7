"""Looks at the host: how busy others keep it, and how much memory is left."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from vfs.samples.admission import Load

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOKS = 4
"""A load is the mean over so many looks: /proc counts in hundredths of a second."""


class HostLoad:
    """Tells what others take of the CPUs that this process may use.

    Args:
        own_cpu_s: CPU seconds of our transforms that run now.
    """

    def __init__(self, own_cpu_s: Callable[[], float]) -> None:
        self._own_cpu_s = own_cpu_s
        self._cpus = os.sched_getaffinity(0)
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=_LOOKS + 1)
        self._own_total = 0.0
        self._own_seen = 0.0

    def look(self, now_s: float, *, egress: float) -> Load:
        """Return the load since some looks ago, but for `queued`, which the queue fills in."""
        busy_s = _busy_s(self._cpus)
        own = self._own_cpu_s()
        # A process that was replaced took its count with it: what it had used since the last look is not ours then.
        self._own_total += max(0.0, own - self._own_seen)
        self._own_seen = own
        daemon = os.times()
        self._looks.append((now_s, busy_s, self._own_total + daemon.user + daemon.system))
        first, last = self._looks[0], self._looks[-1]
        elapsed = last[0] - first[0]
        others = max(0.0, (last[1] - first[1]) - (last[2] - first[2])) / elapsed if elapsed > 0 else 0.0
        return Load(
            cpus=len(self._cpus),
            others_cpus=min(others, float(len(self._cpus))),
            memory_free=_memory_free(),
            egress=egress,
        )


def _busy_s(cpus: set[int]) -> float:
    """Return for how long these CPUs have been busy since the host was started, together."""
    total = 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
                user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
                total += user + nice + system + irq + softirq
    return total / _TICKS_PER_S


def _memory_free() -> float:
    """Return the available memory as a share of all."""
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, value = line.split(":", 1)
            found[name] = int(value.split()[0])
    return found["MemAvailable"] / found["MemTotal"]
