"""Processes of this host. The default.

Tasks: none of its own; each call runs in a thread that waits for its process.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from vfs.samples.operators.registry import Operator
from vfs.samples.sandbox.jail import Cell, Jail
from vfs.samples.sandbox.messages import Confinement, Settings, Task
from vfs.samples.sandbox.outcome import Outcome


class LocalEngine:
    """A pool of sandboxed processes.

    Invariant: a cell is in `_free` or used by exactly one call of `transform`.
    """

    def __init__(self, settings: Settings, operators: Sequence[Operator], seats: int) -> None:
        self._jail = Jail(settings, operators)
        self._cells = [Cell(self._jail) for _ in range(seats)]
        self._free: asyncio.Queue[Cell] = asyncio.Queue()
        for cell in self._cells:
            self._free.put_nowait(cell)
        self._threads = ThreadPoolExecutor(seats, thread_name_prefix="sandbox")

    @property
    def seats(self) -> int:
        return len(self._cells)

    async def start(self) -> Confinement:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._jail.start)

    async def transform(self, task: Task, raw: bytes | bytearray | memoryview) -> Outcome:
        cell = await self._free.get()
        cell.arm()
        running = asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(cell.run, task, raw))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cell.kill()
            await asyncio.wait([running])
            raise
        finally:
            self._free.put_nowait(cell)

    def cpu_s(self) -> float:
        return sum(cell.cpu_s() for cell in self._cells)

    async def close(self) -> None:
        for cell in self._cells:
            cell.kill()
        await asyncio.to_thread(self._threads.shutdown)
        for cell in self._cells:
            cell.close()
        await asyncio.to_thread(self._jail.close)
