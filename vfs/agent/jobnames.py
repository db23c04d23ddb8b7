"""The jobs of the processes that are accounted for, each looked up once.

Environments are read in a thread of their own (`vfs/processes.py` says why). Nothing but the name waits then.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from vfs.processes import job_of, read_environ
from vfs.usage import Usage

_KNOWN_MAX = 10_000
_READING_MAX = 200
_WAIT_S = 0.5
"""For the environments of new processes. Later ones are used from the next report on."""


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


def _by_cgroup(usage: Usage) -> str:
    return job_of(usage.cgroup, usage.uid, {}) if usage.pid else "kernel"


def _key(usage: Usage) -> tuple[int, str, str]:
    return usage.pid, usage.command, usage.cgroup
