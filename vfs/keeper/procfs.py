"""What /proc says about a process: whether a recorded pid still is the process that was meant, and whether it runs."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

STOPPED = frozenset("T")
"""By SIGSTOP. A process under a debugger shows "t"."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One moment of a process.

    Attributes:
        state: the letter of /proc/PID/stat: R, S, D, T, t, Z.
        starttime: clock ticks after boot; with the pid it names one process.
    """

    state: str
    starttime: int


def look(pid: int) -> ProcessFacts | None:
    """Return what the process is doing, or None where there is none of this pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_stat(line: bytes) -> ProcessFacts:
    """Return the facts in a line of /proc/PID/stat. The name in parentheses may hold anything, parentheses too.

    Pure: no I/O, no clock.
    """
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessFacts(state=fields[0].decode(), starttime=int(fields[19]))


def is_same(pid: int, starttime: int) -> bool:
    """Return whether the process that was recorded still exists and is no zombie."""
    found = look(pid)
    return found is not None and found.starttime == starttime and found.state not in "ZX"


def signal_same(pid: int, starttime: int, number: int) -> bool:
    """Send a signal to the recorded process, never to another that has its pid now; return whether it was there."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # atomic: the pidfd holds the process that the check below sees
        if not is_same(pid, starttime):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_gone(pid: int, starttime: int, timeout_s: float) -> bool:
    """Wait until the recorded process has ended; return False when the time is up first."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not is_same(pid, starttime):
            return True
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(handle)
