"""An urgent copy on a link that is full of others, against the same copy on an empty link; 208 copies of mixed priority.

The origin is 100 ms and 400 Mbit/s away (at more the two cores, not the link, are measured), the copies go to a directory of
this host by the executor of the controller, in the budget of the agent's fetch service. What fills the link: low predicted
copies that have begun before, and trees that are fetched in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.bench.fetching import fetching
from tests.bench.report import Outcome, Section
from tests.servers.wan_origin import wan_origin
from vfs import config
from vfs.agent.foresight.copying import Copier
from vfs.agent.foresight.rooms import meter_of
from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import SystemClock
from vfs.extents.fair import Flow, Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.foresight.model import FileCopy, HintId, JobName, Mechanism, Phase, ReplicaId, ReplicaRecord, Urgency
from vfs.foresight.priority import priority, severity
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import build_mount_table
from vfs.sites.build import build_writer

RTT_MS, MBIT = 100.0, 400
FILE_BYTES = 16 << 20
TRANSFERS = 208
TRANSFER_BYTES = 512 << 10
ORIGIN, EVAL = SiteName("origin"), SiteName("eval")
URGENT = priority(Urgency(parameters=7e10, severity=severity(8, 0)))
PERIODIC = priority(Urgency(parameters=7e9))


class Bench:
    """The executor between two sites, with the files of the origin."""

    def __init__(self, copier: Copier, fetcher: Fetcher, files: list[ManifestFile]) -> None:
        self.copier, self.fetcher, self.files = copier, fetcher, files
        self._names = itertools.count()

    async def copy(self, files: list[ManifestFile], urgency: float) -> float:
        """Return the seconds that a copy of files took."""
        name = f"r{next(self._names)}"
        record = ReplicaRecord(
            id=ReplicaId(name),
            hint=HintId(name),
            job=JobName("bench"),
            mechanism=Mechanism.CHECKPOINTS,
            path=LakePath("ckpt"),
            site=EVAL,
            root=SitePath(f"copies/{name}"),
            phase=Phase.COPYING,
            priority=urgency,
        )

        async def report(copy: FileCopy) -> None:
            assert copy.version.size == copy.size

        begun_s = time.monotonic()
        await self.copier.copy(record, files, report)
        return time.monotonic() - begun_s


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure both."""
    outcome = Outcome()
    count = 16 if scale >= 1 else 2
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        (base / "eval").mkdir()
        (base / "origin" / "ckpt").mkdir(parents=True)
        for index in range(count):
            (base / "origin" / "ckpt" / f"model-{index}.bin").write_bytes(bytes([index + 1]) * FILE_BYTES)
        (base / "origin" / "ckpt" / "small.bin").write_bytes(b"s" * TRANSFER_BYTES)
        with wan_origin(base / "origin", rtt_ms=RTT_MS, mbit=MBIT, log=base / "origin.log") as origin:
            asyncio.run(_measure(base, origin.url, count, scale, say, outcome))
    return outcome


async def _measure(base: Path, url: str, count: int, scale: float, say: Callable[[str], None], outcome: Outcome) -> None:
    async with between_sites(base, url) as bench:
        large = [file for file in bench.files if file.size == FILE_BYTES]
        await bench.copy(large[:1], PERIODIC)  # the line is known from now on
        empty, full = [], []
        for _ in range(2 if scale >= 1 else 1):
            empty.append(await bench.copy(large, URGENT))
            async with _filled(bench, large):
                full.append(await bench.copy(large, URGENT))
        ratio = statistics.median(busy / alone for busy, alone in zip(full, empty, strict=True))
        outcome.figures |= {
            "urgent_vs_background": ratio,
            "urgent_empty_s": statistics.median(empty),
            "urgent_full_s": statistics.median(full),
        }
        say(f"{TRANSFERS} copies at once")
        await _many(bench, scale, outcome)
    rows = [[f"{name}", f"{value:.3g}"] for name, value in outcome.figures.items()]
    outcome.sections.append(Section(f"{count} files of 16 MiB, {MBIT} Mbit/s, {RTT_MS:g} ms", ["", ""], rows))


@contextlib.asynccontextmanager
async def _filled(bench: Bench, files: list[ManifestFile]) -> AsyncIterator[None]:
    """Keep the link full of predicted copies and background fetches until the block ends."""

    async def copies() -> None:
        while True:
            await bench.copy(files, PERIODIC)

    async def background() -> None:
        while True:
            for file in files:
                source = Identity(ORIGIN, file.at, file.version)
                async for _ in bench.fetcher.read(source, 0, file.size, Priority.BACKGROUND, flow=Flow("fetch")):
                    pass

    tasks = [asyncio.ensure_future(work()) for work in (copies, copies, background, background)]
    try:
        await asyncio.sleep(2.0)  # the window has grown to the line's by then
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _many(bench: Bench, scale: float, outcome: Outcome) -> None:
    """Start as many copies at once as share the paper's link; every fourth is urgent."""
    small = [file for file in bench.files if file.size == TRANSFER_BYTES]
    number = TRANSFERS if scale >= 1 else 40
    begun_s, done = time.monotonic(), {True: list[float](), False: list[float]()}

    async def one(index: int) -> None:
        urgent = index % 4 == 3
        await bench.copy(small, URGENT if urgent else PERIODIC * (1 + index % 5))
        done[urgent].append(time.monotonic() - begun_s)

    await asyncio.gather(*map(one, range(number)))
    last = max(done[False])
    outcome.figures |= {
        "transfers": number,
        "transfers_all_s": last,
        "transfers_urgent_last_share": max(done[True]) / last,
        "transfers_bytes_vs_line": number * TRANSFER_BYTES * 8 / (MBIT * 1e6) / last,
    }


@contextlib.asynccontextmanager
async def between_sites(base: Path, url: str) -> AsyncIterator[Bench]:
    """The executor between an origin at this address, with the files of its `ckpt`, and a directory `eval` of this host."""
    loaded = config.Config(
        sites={"origin": config.HttpSite(url=url), "eval": config.LocalSite(path=str(base / "eval"), copies="copies")},
        mounts=[config.Mount(prefix="", site="origin")],
    )
    async with contextlib.AsyncExitStack() as stack:
        fetcher, sites = await stack.enter_async_context(fetching(loaded, base))
        writer = build_writer(sites[EVAL], loaded.sites["eval"])
        assert writer is not None
        stack.push_async_callback(writer.close)
        table = build_mount_table(loaded)
        meter = meter_of(fetcher)
        copier = Copier(table, sites, {EVAL: writer}, read=fetcher.read, places={}, clock=SystemClock(), meter=meter)
        files = []
        async for page in sites[ORIGIN].list(SitePath("ckpt")):
            for entry in page:
                at = SitePath(f"ckpt/{entry.name}")
                files.append(ManifestFile(entry.name, entry.version.size, "", at, entry.version))
        yield Bench(copier, fetcher, files)
