"""A node with more cores than this machine has: `python -m tests.bench.second_machine CONFIG MADE CORES`.

Everything is the node service but the operators: a transform holds a core of the other machine for as many seconds as making
that sample took of a core here, and gives out what was made then. What the service itself takes (schedule, raw bytes, queue,
streams) it takes of this machine. MADE is a directory that `make` has filled.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import xxhash

from vfs import config as configuration
from vfs.samples.node.service import serve
from vfs.samples.sandbox.messages import Confinement, Task
from vfs.samples.sandbox.outcome import Made, Outcome


def name_of(raw: bytes | bytearray | memoryview, params: str, seed: int) -> str:
    """Return the name of what is made of these bytes. Pure."""
    return xxhash.xxh3_128_hexdigest(bytes(raw) + f"\0{params}\0{seed}".encode())


def make(
    directory: Path, wanted: Iterable[tuple[bytes, str, int]], operator: Callable[[], Callable[[bytes, int], bytes]]
) -> None:
    """Make samples (raw, params, seed) on all cores, and note what each took.

    Args:
        operator: returns the operator as a function of raw bytes and seed.
    """
    directory.mkdir()
    everything, count = list(wanted), len(os.sched_getaffinity(0))

    def some(which: int) -> None:
        transform = operator()
        for raw, params, seed in everything[which::count]:
            began = time.process_time()
            made = transform(raw, seed)
            took_s = time.process_time() - began
            (directory / f"{name_of(raw, params, seed)}-{took_s:.6f}").write_bytes(made)

    context = mp.get_context("fork")
    processes = [context.Process(target=some, args=(which,)) for which in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


class OtherMachine:
    """An engine whose seats are cores of another machine. Implements `vfs.samples.engines.protocol.Engine`."""

    def __init__(self, directory: Path, cores: int) -> None:
        found = (file.name.rpartition("-") for file in directory.iterdir())
        self._made = {name: (directory / f"{name}-{took_s}", float(took_s)) for name, _, took_s in found}
        self._cores = asyncio.Semaphore(cores)
        self.seats = cores

    async def start(self) -> Confinement:
        return Confinement(True, True, True, ("another machine",))

    async def transform(self, task: Task, raw: bytes | bytearray | memoryview) -> Outcome:
        file, took_s = self._made[name_of(raw, task.params, task.seed)]
        async with self._cores:
            await asyncio.sleep(took_s)
        return Made(file.read_bytes(), 0, 0.0, took_s)

    def cpu_s(self) -> float:
        return 0.0

    async def close(self) -> None:
        return


async def run(config: str, made: Path, cores: int) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engine = OtherMachine(made, cores)
    await serve(
        configuration.load(config),
        lambda address: print(f"serving on {address}", flush=True),
        ended,
        lambda node, registry: engine,
    )


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
