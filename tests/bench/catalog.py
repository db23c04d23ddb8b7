"""A controller that knows 100,000 hints and 1,000,000 copies: how fast it is back after a restart, its memory, its decisions.

Copies are published, ten for each hint, in the embedded store on this machine's disk. Then 2,000 hints are withdrawn: each
of their copies is looked at, found not to be wanted any more, and expired: two decisions and a write of the store each.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable, Sequence

from tests.bench.report import Outcome, Section
from vfs.clock import SystemClock
from vfs.foresight import keys
from vfs.foresight.controller.service import Controller, running
from vfs.foresight.model import FileCopy, Hint, JobName, Mechanism, Phase, ReplicaRecord, hint_id, replica_id
from vfs.foresight.placing import Place
from vfs.foresight.plan import Origin
from vfs.foresight.stores.embedded import Embedded
from vfs.foresight.stores.protocol import CHANGES_MAX, Delete, Put
from vfs.model import LakePath, SiteName, SitePath

HINTS = 100_000
COPIES_OF_A_HINT = 10
WITHDRAWN = 2_000
JOBS = 100


class Nobody:
    """An executor that is never asked: nothing here is copied or dropped."""

    async def copy(self, replica: ReplicaRecord, files: object, done: object) -> None:
        raise AssertionError

    async def check(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> list[str]:
        raise AssertionError

    async def drop(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> None:
        return


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Fill a store, start a controller over it, and withdraw hints."""
    outcome = Outcome()
    hints = int(HINTS * scale)
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        asyncio.run(_run(made, hints, int(WITHDRAWN * scale), outcome, say))
    rows = [[name, f"{value:,.1f}"] for name, value in outcome.figures.items()]
    title = f"{hints:,} hints, {hints * COPIES_OF_A_HINT:,} copies, embedded store"
    outcome.sections.append(Section(title, ["", "measured"], rows))
    return outcome


async def _run(directory: str, hints: int, withdrawn: int, outcome: Outcome, say: Callable[[str], None]) -> None:
    store = await Embedded.open(directory, SystemClock())
    say(f"writing {hints * (COPIES_OF_A_HINT + 1):,} records")
    await _fill(store, hints)
    await store.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    store = await Embedded.open(directory, SystemClock())

    async def nowhere(hint: Hint) -> list[Place]:
        return []

    async def whole(replica: ReplicaRecord, copies: Sequence[FileCopy]) -> Origin:
        return Origin.WHOLE

    controller = Controller(store, Nobody(), SystemClock(), name="bench", places=nowhere, origin=whole)
    async with running(controller):
        while not controller.ready:
            await asyncio.sleep(0.01)
        outcome.figures["recovery_s"] = time.monotonic() - begun
        outcome.figures["memory_more_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        say("withdrawing")
        begun = time.monotonic()
        for start in range(0, withdrawn, CHANGES_MAX):
            gone = [Delete(keys.hint_key(_hint(number).id)) for number in range(start, min(withdrawn, start + CHANGES_MAX))]
            await store.write(gone)
        while controller.steps.get("expire", 0) < withdrawn * COPIES_OF_A_HINT:
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - begun
        outcome.figures["decisions_per_s"] = sum(controller.steps.values()) / seconds
        outcome.figures["expired_per_s"] = withdrawn * COPIES_OF_A_HINT / seconds
    await store.close()


async def _fill(store: Embedded, hints: int) -> None:
    changes: list[Put] = []
    for number in range(hints):
        hint = _hint(number)
        changes.append(Put(keys.hint_key(hint.id), keys.encode(hint)))
        changes += [_copy(hint, index) for index in range(COPIES_OF_A_HINT)]
        if len(changes) > 20_000 or number == hints - 1:
            parts = [changes[start : start + CHANGES_MAX] for start in range(0, len(changes), CHANGES_MAX)]
            await asyncio.gather(*map(store.write, parts))
            changes = []


def _hint(number: int) -> Hint:
    job, path, site = JobName(f"run{number % JOBS}"), LakePath(f"ckpt/run{number % JOBS}/step_{number}"), SiteName("eval")
    name = hint_id(job, Mechanism.CHECKPOINTS, path, number, site)
    return Hint(
        id=name,
        job=job,
        mechanism=Mechanism.CHECKPOINTS,
        path=path,
        site=site,
        why="bench",
        confidence=0.9,
        ttl_s=3600.0,
        step=number,
    )


def _copy(hint: Hint, index: int) -> Put:
    site = SiteName(f"eval{index}")
    root = SitePath("copies")
    record = ReplicaRecord(
        id=replica_id(hint.id, hint.path, site, root),
        hint=hint.id,
        job=hint.job,
        mechanism=hint.mechanism,
        path=hint.path,
        site=site,
        root=root,
        phase=Phase.PUBLISHED,
        step=hint.step,
        save_id="0" * 32,
        files=16,
        bytes=1 << 30,
    )
    return Put(keys.replica_key(record.id), keys.encode(record))
