"""Which job a process belongs to: what it says in its environment, else what its cgroup is called.

The environment is read in a thread of its own: reading it waits for the process's memory map, which a page fault on the mount
may hold for as long as an origin takes. Nothing but the name waits then.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from vfs.usage import Usage

VARIABLES = {
    "FOREMOUNT_JOB": "",
    "SLURM_JOB_ID": "slurm:",
    "PBS_JOBID": "pbs:",
    "LSB_JOBID": "lsf:",
    "RAY_JOB_ID": "ray:",
    "TORCHELASTIC_RUN_ID": "torchelastic:",
}
"""Variables that name the job, the first one that is set counts, and what is put before their value."""
_NAME_CHARS_MAX = 80
_KNOWN_MAX = 10_000
_READING_MAX = 200
_WAIT_S = 0.5
"""For the environments of new processes. Later ones are used from the next report on."""
_ENVIRON_BYTES_MAX = 1 << 20
_SLURM = re.compile(r"/job_(\d+)(/|$)")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")
_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?$")


def job_of(cgroup: str, uid: int, environ: Mapping[str, str]) -> str:
    """Return the name of a process's job. Pure.

    Args:
        cgroup: its path, "" where unknown.
        environ: what it was started with, as far as known.
    """
    for name, prefix in VARIABLES.items():
        if value := environ.get(name, ""):
            return prefix + _printable(value)
    if found := _SLURM.search(cgroup):
        return f"slurm:{found[1]}"
    if found := _POD.search(cgroup):
        return f"pod:{found[1].replace('_', '-')}"
    if found := _CONTAINER.search(cgroup):
        return f"container:{found[1][:12]}"
    unit = cgroup.rstrip("/").rsplit("/", 1)[-1]
    return _printable(unit) if unit else f"uid:{uid}"


class JobNames:
    """Names of the jobs of processes, each looked up once.

    Invariant: at most one environment is being read; those that wait for their turn are in `_reading` too.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, str, str], str] = OrderedDict()
        self._reading: dict[tuple[int, str, str], asyncio.Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "environ")

    async def names(self, usages: Iterable[Usage]) -> list[str]:
        """Return the job of each, after half a second at most."""
        listed = list(usages)
        unknown = [usage for usage in listed if usage.pid and _key(usage) not in self._names]
        if unknown:
            await asyncio.wait([self._read(usage) for usage in unknown], timeout=_WAIT_S)
        return [self._names.get(_key(usage)) or _by_cgroup(usage) for usage in listed]

    def learn_nowait(self, usage: Usage) -> None:
        """Begin to look a process up; too many at a time are left for later."""
        if usage.pid and _key(usage) not in self._names and len(self._reading) < _READING_MAX:
            self._read(usage)

    def close(self) -> None:
        """Let go of the thread; one that is stuck is left behind."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, usage: Usage) -> asyncio.Future[None]:
        key = _key(usage)
        if key not in self._reading:
            self._reading[key] = asyncio.ensure_future(self._learn(usage))
        return self._reading[key]

    async def _learn(self, usage: Usage) -> None:
        key = _key(usage)
        try:
            environ = await asyncio.get_running_loop().run_in_executor(self._thread, read_environ, usage.pid)
            self._names[key] = job_of(usage.cgroup, usage.uid, environ)
            while len(self._names) > _KNOWN_MAX:
                self._names.popitem(last=False)
        finally:
            del self._reading[key]


def read_environ(pid: int) -> dict[str, str]:
    """Return those of `VARIABLES` that a process was started with; nothing where it is gone or may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(_ENVIRON_BYTES_MAX)
    except OSError:
        return {}
    found = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if (text := name.decode(errors="replace")) in VARIABLES:
            found[text] = value.decode(errors="replace")
    return found


def _by_cgroup(usage: Usage) -> str:
    return job_of(usage.cgroup, usage.uid, {}) if usage.pid else "kernel"


def _key(usage: Usage) -> tuple[int, str, str]:
    return usage.pid, usage.command, usage.cgroup


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)[:_NAME_CHARS_MAX]
