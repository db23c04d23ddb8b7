"""A controller that knows 100,000 hints and 1,000,000 copies: how fast it is back after a restart, its memory, its decisions.

Copies are published, ten for each hint, in the embedded store on this machine's disk; a tenth of that in an etcd of one
member, which is filled through its JSON gateway. A controller is started over them. It looks whether hints miss copies; 208
hints come at once, every fourth urgent, each for half a MiB that is really copied from an origin 100 ms and 400 Mbit/s away;
then hints are withdrawn: each of their copies is looked at, found not to be wanted any more, and expired: two decisions and a
write of the store each. All the while is noted how long the loop, which renews the lease of the lead, was not free.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from tests.bench.report import Outcome, Section
from tests.bench.urgent import MBIT, RTT_MS, TRANSFER_BYTES, TRANSFERS, Bench, between_sites
from tests.lake import anonymous_bytes
from tests.servers import Missing
from tests.servers.etcd import etcd
from tests.servers.wan_origin import wan_origin
from vfs.agent.foresight.rooms import open_store
from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import SystemClock
from vfs.foresight import keys
from vfs.foresight.controller.service import Controller, running
from vfs.foresight.model import (
    Checkpoint,
    FileCopy,
    Hint,
    JobName,
    Mechanism,
    Phase,
    ReplicaRecord,
    Urgency,
    hint_id,
    replica_id,
)
from vfs.foresight.placing import Place
from vfs.foresight.plan import Origin
from vfs.foresight.priority import severity
from vfs.foresight.stores.protocol import CHANGES_MAX, Delete, Put, Store, write_all
from vfs.model import LakePath, SiteName, SitePath

HINTS = 100_000
ETCD_HINTS = 10_000
COPIES_OF_A_HINT = 10
WITHDRAWN_ONE_IN = 50
JOBS = 100
AT_ONCE = 100
"""Writes that a store is given at once."""
CKPT, EVAL, COPIES = LakePath("ckpt"), SiteName("eval"), SitePath("copies")


class World:
    """What the controller asks, and its executor: transfers are really copied, the copies of the catalog have no bytes."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.placed = 0

    async def places(self, hint: Hint) -> list[Place]:
        self.placed += 1
        if hint.path == CKPT:
            return [Place(site=EVAL, root=COPIES)]
        return [Place(site=_site(index), root=COPIES) for index in range(COPIES_OF_A_HINT)]

    async def copy(
        self, replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
    ) -> None:
        await self._bench.copier.copy(replica, files, done)

    async def check(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> list[str]:
        return await self._bench.copier.check(replica, copies)

    async def drop(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> None:
        return

    async def origin(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> Origin:
        return Origin.WHOLE


class LoopGaps:
    """Notes for how long the loop was not free at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s - 0.005)


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure a controller over each of the two stores."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made, contextlib.ExitStack() as stack:
        base = Path(made)
        where = {"embedded": (str(base / "store"), int(HINTS * scale))}
        try:
            (base / "etcd").mkdir()
            where["etcd"] = stack.enter_context(etcd(base / "etcd")).url, int(ETCD_HINTS * scale)
        except Missing as exc:
            outcome.skipped["etcd"] = str(exc)
        for name, (address, hints) in where.items():
            figures = asyncio.run(_measure(base / f"{name}-lake", address, hints, hints // WITHDRAWN_ONE_IN, say))
            outcome.figures |= {f"{name}_{key}": value for key, value in figures.items()}
            rows = [[key, f"{value:,.3g}" if value < 100 else f"{value:,.0f}"] for key, value in figures.items()]
            title = f"{name}: {hints:,} hints, {hints * COPIES_OF_A_HINT:,} copies"
            outcome.sections.append(Section(title, ["", "measured"], rows))
    return outcome


async def _measure(lake: Path, address: str, hints: int, withdrawn: int, say: Callable[[str], None]) -> dict[str, float]:
    clock, figures = SystemClock(), dict[str, float]()
    say(f"writing {hints * (COPIES_OF_A_HINT + 1):,} records")
    store = await open_store(address, clock, wait=False)
    await _fill(store, hints)
    await store.close()
    async with _sites(lake) as bench, contextlib.AsyncExitStack() as stack:
        gaps, world, before = LoopGaps(), World(bench), anonymous_bytes(os.getpid())
        watching = asyncio.ensure_future(gaps.run())
        stack.callback(watching.cancel)
        begun_s, cpu_s = time.monotonic(), time.process_time()
        store = await open_store(address, clock, wait=False)
        stack.push_async_callback(store.close)
        controller = Controller(store, world, clock, name="bench", places=world.places, origin=world.origin)
        await stack.enter_async_context(running(controller))
        await _until(lambda: controller.ready)
        figures["recovery_s"] = time.monotonic() - begun_s
        figures["recovery_cpu_s"] = time.process_time() - cpu_s
        figures["memory_more_mib"] = (anonymous_bytes(os.getpid()) - before) / (1 << 20)
        await _until(lambda: world.placed >= hints)
        figures["all_hints_looked_at_s"] = time.monotonic() - begun_s
        say(f"{TRANSFERS} transfers")
        figures |= await _transfer(store, bench)
        say(f"withdrawing {withdrawn:,} hints")
        figures |= await _withdraw(store, controller, withdrawn)
        figures["loop_held_s_max"] = gaps.longest_s
    return figures


@contextlib.asynccontextmanager
async def _sites(lake: Path) -> AsyncIterator[Bench]:
    """The sites between which is copied, the origin with one small file."""
    (lake / "origin" / CKPT).mkdir(parents=True)
    (lake / EVAL).mkdir()
    (lake / "origin" / CKPT / "small.bin").write_bytes(b"s" * TRANSFER_BYTES)
    with wan_origin(lake / "origin", rtt_ms=RTT_MS, mbit=MBIT, log=lake / "origin.log") as origin:
        async with between_sites(lake, origin.url) as bench:
            yield bench


async def _transfer(store: Store, bench: Bench) -> dict[str, float]:
    """Have one checkpoint copied for 208 hints at once; return when the last was published, and the last urgent one."""
    (file,) = bench.files
    known = Checkpoint(path=CKPT, job=JobName("bench"), step=1, save_id="1" * 32, files=1, bytes=file.size)
    await write_all(
        store,
        [Put(keys.checkpoint_key(CKPT), keys.encode(known)), Put(keys.files_prefix(CKPT) + file.path, keys.encode(file))],
    )
    hints = [_wanted(number, urgent=number % 4 == 3) for number in range(TRANSFERS)]
    waiting = {hint.id: hint for hint in hints}
    revision = (await store.range(keys.HINTS, limit=1)).revision
    begun_s, done = time.monotonic(), {True: 0.0, False: 0.0}
    await write_all(store, [Put(keys.hint_key(hint.id), keys.encode(hint)) for hint in hints])
    async for changes in store.watch(keys.REPLICAS, revision):
        for change in changes:
            record = None if change.value is None else keys.decode(change.value, ReplicaRecord)
            if record is not None and record.phase is Phase.PUBLISHED and (hint := waiting.pop(record.hint, None)):
                done[hint.urgency.severity > 0] = time.monotonic() - begun_s
        if not waiting:
            break
    last_s = max(done.values())
    line_s = TRANSFERS * TRANSFER_BYTES * 8 / (MBIT * 1e6)
    return {"transfers_s": last_s, "transfers_urgent_last_share": done[True] / last_s, "transfers_vs_line": last_s / line_s}


async def _withdraw(store: Store, controller: Controller, count: int) -> dict[str, float]:
    """Take hints back; return how fast their copies were gone through."""
    before, steps = controller.steps.get("expire", 0), sum(controller.steps.values())
    begun_s, cpu_s = time.monotonic(), time.process_time()
    await write_all(store, [Delete(keys.hint_key(_hint(number).id)) for number in range(count)])
    await _until(lambda: controller.steps.get("expire", 0) - before >= count * COPIES_OF_A_HINT)
    seconds, decided = time.monotonic() - begun_s, sum(controller.steps.values()) - steps
    return {
        "decisions_per_s": decided / seconds,
        "decisions_per_cpu_s": decided / (time.process_time() - cpu_s),
        "expired_per_s": count * COPIES_OF_A_HINT / seconds,
    }


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def _fill(store: Store, hints: int) -> None:
    """Write hints and copies, CHANGES_MAX in one write and AT_ONCE writes at once."""
    pending: list[Put] = []
    for number in range(hints):
        hint = _hint(number)
        pending.append(Put(keys.hint_key(hint.id), keys.encode(hint)))
        pending += [_copy(hint, index) for index in range(COPIES_OF_A_HINT)]
        if len(pending) >= CHANGES_MAX * AT_ONCE or number == hints - 1:
            parts = [pending[start : start + CHANGES_MAX] for start in range(0, len(pending), CHANGES_MAX)]
            await asyncio.gather(*map(store.write, parts))
            pending = []


def _site(index: int) -> SiteName:
    return SiteName(f"eval{index}")


def _wanted(number: int, *, urgent: bool) -> Hint:
    """Return a hint whose copy is really made."""
    sign = Urgency(parameters=7e10, severity=severity(8, 0)) if urgent else Urgency(parameters=7e9 * (1 + number % 5))
    return _made(JobName("bench"), CKPT, number, sign)


def _hint(number: int) -> Hint:
    job = f"run{number % JOBS}"
    return _made(JobName(job), LakePath(f"ckpt/{job}/step_{number}"), number, Urgency())


def _made(job: JobName, path: LakePath, step: int, urgency: Urgency) -> Hint:
    return Hint(
        id=hint_id(job, Mechanism.CHECKPOINTS, path, step, EVAL),
        job=job,
        mechanism=Mechanism.CHECKPOINTS,
        path=path,
        site=EVAL,
        why="bench",
        confidence=0.9,
        ttl_s=3600.0,
        step=step,
        urgency=urgency,
    )


def _copy(hint: Hint, index: int) -> Put:
    site = _site(index)
    record = ReplicaRecord(
        id=replica_id(hint.id, hint.path, site, COPIES),
        hint=hint.id,
        job=hint.job,
        mechanism=hint.mechanism,
        path=hint.path,
        site=site,
        root=COPIES,
        phase=Phase.PUBLISHED,
        step=hint.step,
        save_id="0" * 32,
        files=16,
        bytes=1 << 30,
    )
    return Put(keys.replica_key(record.id), keys.encode(record))
