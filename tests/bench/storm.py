"""A start-up storm: 64 reader processes against replica servers of a fixed rate each, and a model of more ranks than that.

Real part: each reader is a host of its own, with the agent's fetch service and a cache of its own. All are let go at once;
each reads the global metadata and the hot range of one file from the copies that were published, and its own shard from the
origin; every byte is compared. The copies were made by the executor of the controller, over placed replica servers. The same
readers run against 3 copies and against as many as hints ask for.

Simulated part: `storm_model.py`, set against the real run and calibrated with the paper's two measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing as mp
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.fetching import fetching
from tests.bench.report import Outcome, Section
from tests.bench.storm_model import Storm, hinted, paper_storm, simulate
from tests.bench.svg import curves
from tests.private import private
from vfs import config
from vfs.agent.foresight.copying import Copier
from vfs.agent.foresight.rooms import meter_of
from vfs.agent.reading.published import Place, Published
from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import SystemClock
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.placement import Serving
from vfs.extents.reader import read_copied
from vfs.foresight.model import (
    FileCopy,
    Hint,
    HintId,
    HotRange,
    JobName,
    Labels,
    Mechanism,
    Phase,
    ReplicaId,
    ReplicaRecord,
)
from vfs.foresight.placing import Rules, places, site_facts
from vfs.foresight.replicaserver import serving
from vfs.httpservice import Rates
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import build_mount_table
from vfs.policy.written import SiteOrder
from vfs.sites.build import build_writer
from vfs.units import Bytes

READERS = 64
BEARS = 5
"""Readers that one copy bears here: 64 / 5 are 13 copies, as 2,048 / 156 are 14."""
RATE = 6 << 20
METADATA_BYTES, HOT_BYTES, SHARD_BYTES = 1 << 20, 3 << 20, 1 << 20
STEP = LakePath("ckpt/step_1")
DEFAULT_COPIES = 3
ROUNDS = 2
ORDER = Serving(SiteOrder(["nearest", "origin"]))


@dataclass(frozen=True)
class Done:
    """What one reader says: seconds from the start to the end."""

    all_s: float
    right: bool


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Run both parts."""
    outcome = Outcome()
    readers = READERS if scale >= 1 else 16
    with tempfile.TemporaryDirectory(prefix="foremount-bench-", dir="/dev/shm") as made:
        measured = _real(Path(made), readers, scale, say, outcome)
    _simulated(measured, readers, scale, say, outcome)
    return outcome


# --- real ------------------------------------------------------------------------------------------------------------


def _real(base: Path, readers: int, scale: float, say: Callable[[str], None], outcome: Outcome) -> dict[str, float]:
    content = _write_origin(base / "origin", readers)
    few, many = DEFAULT_COPIES, math.ceil(readers / BEARS)
    with _servers(base, many) as addresses:
        loaded = _configuration(base, addresses)
        copies = {count: asyncio.run(_make_copies(loaded, content, count)) for count in (few, many)}
        say(f"{readers} readers, {few} copies against {many}, each server {RATE >> 20} MiB/s")
        taken: dict[int, list[list[Done]]] = {few: [], many: []}
        for index in range(ROUNDS if scale >= 1 else 1):
            for count in (few, many) if index % 2 == 0 else (many, few):
                taken[count].append(_storm(base, loaded, copies[count], content, readers))
        alone = _storm(base, loaded, copies[few], content, 1)[0].all_s
    rows = []
    last: dict[int, list[float]] = {}
    for count, rounds in taken.items():
        last[count] = [max(each.all_s for each in done) for done in rounds]
        flat = [each for done in rounds for each in done]
        waited = statistics.median(_waited(done) for done in rounds)
        name = "3_copies" if count == few else "hints"
        outcome.figures[f"real_last_rank_{name}_s"] = statistics.median(last[count])
        outcome.figures[f"real_waiting_for_last_{name}"] = waited
        rows.append(
            [
                f"{count} copies",
                f"{statistics.median(last[count]):.2f} s",
                f"{statistics.median(each.all_s for each in flat):.2f} s",
                f"{waited:.1%}",
                str(sum(not each.right for each in flat)),
            ]
        )
        if not all(each.right for each in flat):
            outcome.broken.append(f"{count} copies: a reader got wrong bytes")
    ratio = statistics.median(hint / plain for hint, plain in zip(last[many], last[few], strict=True))
    outcome.figures["real_last_rank_vs_3_copies"] = ratio
    outcome.figures["real_copies_with_hints"] = many
    outcome.figures["real_alone_s"] = alone
    columns = ["", "last reader", "median reader", "of all time, waiting for the last", "wrong"]
    outcome.sections.append(Section(f"{readers} real readers", columns, rows))
    return {"few": statistics.median(last[few]), "many": statistics.median(last[many]), "alone": alone}


def _waited(done: Sequence[Done]) -> float:
    last = max(each.all_s for each in done)
    return sum(last - each.all_s for each in done) / (last * len(done))


def _write_origin(root: Path, readers: int) -> dict[str, bytes]:
    """Write a checkpoint: metadata that all read, a file of which a range is hot, and a shard for each."""
    chance = random.Random(7)
    content = {".metadata": chance.randbytes(METADATA_BYTES), "embedding.bin": chance.randbytes(2 * HOT_BYTES)}
    content |= {f"shard_{index}.bin": chance.randbytes(SHARD_BYTES) for index in range(readers)}
    for name, body in content.items():
        path = root / STEP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return content


@contextlib.contextmanager
def _servers(base: Path, count: int) -> Iterator[list[str]]:
    """Run replica servers, a few in each of two processes; yields their addresses."""
    private(base / "tokens", "write secret\n")
    (base / "headers").write_text("Authorization: Bearer secret\n")
    context = mp.get_context("fork")
    groups = [range(start, count, 2) for start in range(2)]
    lines = [context.Pipe() for _ in groups]
    workers = [
        context.Process(target=_serve, args=(base, group, line[1]), daemon=True)
        for group, line in zip(groups, lines, strict=True)
    ]
    for worker in workers:
        worker.start()
    try:
        found = {index: address for line in lines for index, address in line[0].recv().items()}
        yield [found[index] for index in range(count)]
    finally:
        for line in lines:
            line[0].send(None)
        for worker in workers:
            worker.join(10)
            worker.kill()


def _serve(base: Path, indexes: range, line: Any) -> None:
    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            addresses = {}
            for index in indexes:
                settings = config.ReplicaServer(
                    address="127.0.0.1:0",
                    directory=str(base / f"node-{index}"),
                    tokens=str(base / "tokens"),
                    rate=Bytes(RATE),
                )
                addresses[index] = (await stack.enter_async_context(serving(settings, Rates("replica server", 300))))[1]
            line.send(addresses)
            await asyncio.to_thread(line.recv)

    asyncio.run(serve())


def _configuration(base: Path, addresses: Sequence[str]) -> config.Config:
    sites: dict[str, config.SiteConfig] = {"origin": config.LocalSite(path=str(base / "origin"))}
    for index, address in enumerate(addresses):
        sites[f"node-{index}"] = config.HttpSite(
            url=f"http://{address}/",
            headers_file=str(base / "headers"),
            writes="put",
            copies="copies",
            rack=f"rack-{index % 4}",
            uplink=f"uplink-{index % 2}",
            readers=BEARS,
        )
    return config.Config(sites=sites, mounts=[config.Mount(prefix="", site="origin")])


Copies = list[tuple[ReplicaRecord, list[FileCopy]]]


async def _make_copies(loaded: config.Config, content: dict[str, bytes], count: int) -> Copies:
    """Have the executor put the hot bytes where the placement says, for a crowd that needs `count` copies."""
    path = LakePath(f"{STEP}/embedding.bin")
    hot = (
        HotRange(LakePath(f"{STEP}/.metadata"), readers=count * BEARS),
        HotRange(path, HOT_BYTES // 2 // BLOCK * BLOCK, HOT_BYTES, readers=count * BEARS),
    )
    origin = SiteName("origin")
    hint = Hint(
        id=HintId(f"crowd-{count}"),
        job=JobName("storm"),
        mechanism=Mechanism.HOT_FILES,
        path=STEP,
        site=origin,
        why="bench",
        confidence=1.0,
        ttl_s=3600,
        hot=hot,
    )
    placed = places(hint, Labels(), Rules(), origin=origin, sites=site_facts(loaded), bytes_needed=8 << 20, used={})
    assert len(placed) == count, placed
    found: Copies = []
    async with fetching(loaded, None) as (fetcher, sites):
        files = []
        for name in (".metadata", "embedding.bin"):
            at = SitePath(f"{STEP}/{name}")
            files.append(ManifestFile(name, len(content[name]), "", at, (await sites[origin].stat(at)).version))
        writers = {
            name: writer for name, site in sites.items() if (writer := build_writer(site, loaded.sites[name])) is not None
        }
        table, meter = build_mount_table(loaded), meter_of(fetcher)
        copier = Copier(table, sites, writers, read=fetcher.read, places={}, clock=SystemClock(), meter=meter)
        for place in placed:
            record = ReplicaRecord(
                id=ReplicaId(f"{hint.id}-{place.site}"),
                hint=hint.id,
                job=hint.job,
                mechanism=hint.mechanism,
                path=STEP,
                site=place.site,
                root=SitePath(f"{place.root}/{hint.id}"),
                phase=Phase.PUBLISHED,
                hot=place.hot,
            )
            copies: list[FileCopy] = []

            async def report(copy: FileCopy, copies: list[FileCopy] = copies) -> None:
                copies.append(copy)

            await copier.copy(record, files, report)
            found.append((record, copies))
    return found


def _storm(base: Path, loaded: config.Config, copies: Copies, content: dict[str, bytes], readers: int) -> list[Done]:
    """Let all readers go at once; return what each says."""
    context = mp.get_context("fork")
    gate, results = context.Barrier(readers + 1), context.SimpleQueue()
    with tempfile.TemporaryDirectory(dir=base) as made:
        crowd = [
            context.Process(
                target=_reader,
                args=(Path(made) / str(place), loaded, copies, content, place, readers, gate, results),
                daemon=True,
            )
            for place in range(readers)
        ]
        for reader in crowd:
            reader.start()
        gate.wait(120)
        done = [results.get() for _ in crowd]
        for reader in crowd:
            reader.join(30)
    return done


def _reader(
    cache: Path,
    loaded: config.Config,
    copies: Copies,
    content: dict[str, bytes],
    place: int,
    count: int,
    gate: Any,
    results: Any,
) -> None:
    async def read() -> Done:
        async with fetching(loaded, cache) as (fetcher, sites):
            published = Published(build_mount_table(loaded), fetcher, Place(f"host-{place}", place, count))
            for record, files in copies:
                published.put(record, files)
            origin = SiteName("origin")
            wanted = [(".metadata", 0, METADATA_BYTES), ("embedding.bin", HOT_BYTES // 2 // BLOCK * BLOCK, HOT_BYTES)]
            wanted.append((f"shard_{place}.bin", 0, SHARD_BYTES))
            identities = {}
            for name, _, _ in wanted:
                at = SitePath(f"{STEP}/{name}")
                identities[name] = Identity(origin, at, (await sites[origin].stat(at)).version)
            await asyncio.to_thread(gate.wait, 120)
            begun_s = time.monotonic()

            async def one(name: str, offset: int, length: int) -> bool:
                identity = identities[name]
                root = await fetcher.hold(identity, serving=ORDER, copies=published.of(identity))
                await fetcher.ensure(identity, offset, length)
                return read_copied(root, identity.key, offset, length) == content[name][offset : offset + length]

            hot = await asyncio.gather(*(one(*each) for each in wanted[:2]))
            right = all(hot) and await one(*wanted[2])
            return Done(time.monotonic() - begun_s, right)

    os.makedirs(cache)
    results.put(asyncio.run(read()))


# --- simulated -------------------------------------------------------------------------------------------------------


def _simulated(measured: dict[str, float], readers: int, scale: float, say: Callable[[str], None], outcome: Outcome) -> None:
    """Set the model against the real run, then run it where no machine of ours can."""
    hot = float(METADATA_BYTES + HOT_BYTES)
    before = max(0.0, measured["alone"] - hot / RATE)
    for name, copies in (("few", DEFAULT_COPIES), ("many", math.ceil(readers / BEARS))):
        said = simulate(Storm(readers, copies, hot, float(RATE), before_s=before)).last_s
        outcome.figures[f"model_vs_real_{'3_copies' if name == 'few' else 'hints'}"] = said / measured[name]
    counts = (2048, 10_000, 20_000, 100_000) if scale >= 1 else (2048, 20_000)
    say(f"simulating {', '.join(map(str, counts))} ranks")
    rows, plain, with_hints, by_host = [], [], [], []
    for count in counts:
        plain.append(simulate(paper_storm(count, DEFAULT_COPIES)).last_s)
        with_hints.append(simulate(paper_storm(count, hinted(count), spread=0.05)).last_s)
        by_host.append(simulate(paper_storm(count // 8, hinted(count // 8), spread=0.05)).last_s)
        rows.append(
            [f"{count:,}", f"{plain[-1]:.1f} s", str(hinted(count)), f"{with_hints[-1]:.1f} s", f"{by_host[-1]:.1f} s"]
        )
        outcome.figures[f"simulated_{count}_3_copies_s"] = plain[-1]
        outcome.figures[f"simulated_{count}_hints_s"] = with_hints[-1]
    outcome.figures["growth_2048_to_20000"] = with_hints[counts.index(20_000)] / with_hints[0]
    outcome.figures["growth_2048_to_20000_3_copies"] = plain[counts.index(20_000)] / plain[0]
    columns = ["ranks", "3 copies", "copies by hints", "with hints", "and one read for each host of 8"]
    outcome.sections.append(Section("the last rank, by the model", columns, rows))
    drawn = os.environ.get("FOREMOUNT_BENCH_PLOT")
    if drawn:
        lines = {"3 copies": plain, "hints": with_hints, "hints, one read a host": by_host}
        Path(drawn).write_text(curves("seconds until the last rank has its bytes", "ranks", counts, lines))
        say(f"the curve is in {drawn}")
