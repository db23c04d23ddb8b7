"""What every engine can do.

Pure: no I/O, no clock. Engines run on asyncio.
"""

from __future__ import annotations

from typing import Protocol

from vfs.samples.operators.declare import Declaration
from vfs.samples.sandbox.messages import Confinement, Task
from vfs.samples.sandbox.outcome import Outcome


class Engine(Protocol):
    """A bounded number of seats, each a sandboxed process that runs one sample at a time."""

    @property
    def seats(self) -> int:
        """How many samples can run at once."""
        ...

    async def start(self) -> Confinement:
        """Start; return what keeps operators from the rest of the host.

        Raises:
            Unsupported: it can't be kept from network and files here.
            Unavailable: it does not start.
        """
        ...

    async def transform(self, task: Task, raw: bytes | bytearray | memoryview) -> Outcome:
        """Return what the operator makes of `raw`; waits for a seat.

        Raises:
            Unavailable: the seat was lost; the sample can be tried again.
        Cancellation:
            The process is killed: no CPU is used any more when this returns.
        """
        ...

    def cpu_s(self) -> float:
        """Return CPU seconds that the processes on this host which run now have used since they were started."""
        ...

    async def close(self) -> None:
        """End all processes."""
        ...


def task_of(declaration: Declaration, *, params: str, seed: int, provenance: str, size: int) -> Task:
    """Return the task of one sample with the bounds that its operator declares."""
    return Task(
        operator=declaration.full_name,
        params=params,
        seed=seed,
        provenance=provenance,
        size=size,
        output_bytes=int(declaration.output.bytes),
        cpu_s=declaration.time,
    )
