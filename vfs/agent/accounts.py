"""Takes the worker's reports into the ledger, apart from the line that they come on: naming a job may take a while.

Task: `run`, for the agent's life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vfs import wire
from vfs.agent.jobnames import JobNames
from vfs.agent.ledger import JobKey, Ledger, Moment
from vfs.clock import Clock
from vfs.usage import Usage

_REPORTS_MAX = 30


class Accounts:
    """The ledger, kept.

    Attributes:
        on_moment: called with what each report adds, and its slow operations.
    """

    def __init__(self, clock: Clock) -> None:
        self.ledger = Ledger()
        self.on_moment: Callable[[Moment, wire.Used], None] = lambda moment, used: None
        self._clock = clock
        self._names = JobNames()
        self._reports: asyncio.Queue[wire.Used] = asyncio.Queue(_REPORTS_MAX)

    def take_nowait(self, used: wire.Used) -> None:
        """Take a report; one that comes when too many wait is lost and counted."""
        try:
            self._reports.put_nowait(used)
        except asyncio.QueueFull:
            self.ledger.lost += 1

    def seen(self, usage: Usage) -> None:
        """Find out the job of a process that has just been seen."""
        self._names.learn_nowait(usage)

    async def run(self) -> None:
        """Add up reports until the agent ends."""
        try:
            while True:
                used = await self._reports.get()
                names = await self._names.names(used.usages)
                charged = [
                    (JobKey(name, usage.uid, usage.cgroup), usage) for name, usage in zip(names, used.usages, strict=True)
                ]
                moment = self.ledger.add(self._clock.wall_ns() / 1e9, charged, used.slow, used.waiting)
                self.on_moment(moment, used)
        finally:
            self._names.close()
