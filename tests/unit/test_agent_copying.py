"""Copies between sites: whole, verified where they lie, and nothing where that is not so. `vfs/agent/foresight/copying.py`"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from vfs import config
from vfs.agent.foresight.copying import Copier
from vfs.agent.writing.sending import SendLimits
from vfs.checkpoints.manifest import ManifestFile, object_digest
from vfs.clock import SystemClock
from vfs.errors import Corrupt, Denied, ForemountError, NoSpace, Unavailable, Unsupported
from vfs.extents.budget import Budget
from vfs.extents.counters import FetchCounters
from vfs.extents.layout import BLOCK, digest
from vfs.extents.limits import FetchLimits
from vfs.extents.requests import Requests
from vfs.foresight.governance import PlaceFacts
from vfs.foresight.model import (
    FileCopy,
    HintId,
    HotRange,
    JobName,
    Labels,
    Mechanism,
    Phase,
    ReplicaId,
    ReplicaRecord,
)
from vfs.model import LakePath, SiteName, SitePath, Version
from vfs.namespace.mounts import build_mount_table
from vfs.sites.faults import Cut, Fail, FaultySite, Stall
from vfs.sites.faultywriter import FaultyWriter
from vfs.sites.local import LocalSite
from vfs.sites.localwriter import LocalWriter
from vfs.sites.memory import MemorySite
from vfs.sites.writing import Upload

ORIGIN, EVAL = SiteName("origin"), SiteName("eval")
STEP = LakePath("ckpt/step_7")
CHANCE = random.Random(3)
CONTENT = {
    "model-00001.safetensors": CHANCE.randbytes(3 * (8 << 20) + 12_345),
    "model-00002.safetensors": CHANCE.randbytes(1_000_000),
    "deep/below/optimizer.bin": CHANCE.randbytes(BLOCK),
    "empty": b"",
    **{f"tiny/{index:03}": CHANCE.randbytes(100 + index) for index in range(40)},
}
LIMITS = SendLimits(backoff_s=0.001, backoff_s_max=0.002, part_deadline_s=5.0)


def digest_of(content: bytes) -> str:
    """Return the digest that a manifest states."""
    blocks = (digest(content[start : start + BLOCK]) for start in range(0, len(content), BLOCK))
    return object_digest(b"".join(block.to_bytes(8, "little") for block in blocks))


class TwoSites:
    """A checkpoint at an origin in memory, and a directory that is to hold its copy."""

    def __init__(
        self, base: Path, *, limits: SendLimits = LIMITS, places: Mapping[SiteName, PlaceFacts] | None = None
    ) -> None:
        self.directory = base / "eval"
        self.directory.mkdir()
        memory = MemorySite(ORIGIN)
        self.files = [
            ManifestFile(name, len(body), digest_of(body), at, memory.put(at, body))
            for name, body in CONTENT.items()
            for at in [SitePath(f"{STEP}/{name}")]
        ]
        self.origin = FaultySite(memory)
        sites = {ORIGIN: self.origin, EVAL: LocalSite(EVAL, str(self.directory))}
        self.writer = FaultyWriter(LocalWriter(EVAL, str(self.directory)))
        clock, counters = SystemClock(), FetchCounters()
        self.requests = Requests(
            sites, local=(EVAL,), memory=Budget(64 << 20), clock=clock, limits=FetchLimits(), counters=counters
        )
        mounts = build_mount_table(
            config.Config(sites={"origin": config.MemorySite()}, mounts=[config.Mount(prefix="", site="origin")])
        )
        self.copier = Copier(
            mounts,
            sites,
            {EVAL: self.writer},
            read=self.requests.read,
            places=places or {},
            clock=clock,
            limits=limits,
            meter=lambda: (float(counters.fetched_bytes), counters.fetched_bytes),  # a CPU second for each byte
        )
        self.done: list[FileCopy] = []

    async def report(self, copy: FileCopy) -> None:
        self.done.append(copy)

    async def copy(self, replica: ReplicaRecord | None = None, files: list[ManifestFile] | None = None) -> None:
        await self.copier.copy(replica or a_replica(), self.files if files is None else files, self.report)

    def lies_there(self) -> dict[str, bytes]:
        """Return every file below the destination, hidden ones too."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


def a_replica(**fields: object) -> ReplicaRecord:
    return msgspec.structs.replace(
        ReplicaRecord(
            id=ReplicaId("r1"),
            hint=HintId("h1"),
            job=JobName("job"),
            mechanism=Mechanism.CHECKPOINTS,
            path=STEP,
            site=EVAL,
            root=SitePath(".copies/r1"),
            phase=Phase.COPYING,
        ),
        **fields,
    )


async def test_every_file_is_brought_verified_and_reported(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    await two.copy()
    assert two.lies_there() == {f".copies/r1/{name}": body for name, body in CONTENT.items()}
    assert {copy.path: copy.digest for copy in two.done} == {name: digest_of(body) for name, body in CONTENT.items()}
    assert await two.copier.check(a_replica(), two.done) == []


async def test_cpu_time_of_a_file_is_that_of_its_own_bytes_alone(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    await two.copy()
    sizes = {copy.path: 2 * copy.size for copy in two.done}  # brought, and read back
    assert {copy.path: round(copy.cpu_s) for copy in two.done} == sizes


async def test_large_files_come_in_large_requests(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    await two.copy(files=two.files[:1])
    assert two.origin.calls["read"] == 7  # 24 MiB and some, 4 MiB at a time


async def test_a_file_that_is_not_what_the_manifest_states_never_gets_its_name(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    wrong = msgspec.structs.replace(two.files[1], digest=digest_of(b"another"))
    with pytest.raises(Corrupt):
        await two.copy(files=[wrong])
    assert (two.lies_there(), two.done, two.writer.finished) == ({}, [], [])


class Rotting:
    """A destination that stores something else than it was given."""

    def __init__(self, inner: FaultyWriter, root: Path) -> None:
        self._inner, self._root = inner, root

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        version = await self._inner.finish(upload, receipts)
        with (self._root / upload.path).open("r+b") as file:
            file.seek(70_000)
            file.write(b"\0" if CONTENT["model-00002.safetensors"][70_000] else b"\1")
        found = os.stat(self._root / upload.path)
        return msgspec.structs.replace(version, mtime_ns=found.st_mtime_ns)


async def test_a_copy_that_is_broken_where_it_lies_is_removed_and_not_reported(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    two.copier._writers = {EVAL: Rotting(two.writer, two.directory)}  # type: ignore[dict-item]
    with pytest.raises(Corrupt):
        await two.copy(files=[two.files[1]])
    assert (two.lies_there(), two.done) == ({}, [])


async def test_a_destination_that_is_full_gives_back_what_had_arrived(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    two.writer.inject("send", Fail(NoSpace("eval", "no room")), path=f".copies/r1/{two.files[0].path}", times=99)
    with pytest.raises(NoSpace):
        await two.copy()
    assert not [name for name in two.lies_there() if ".foremount-upload-" in name]
    assert two.files[0].path not in {copy.path for copy in two.done}


async def test_a_link_that_is_cut_again_and_again_only_takes_longer(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    two.origin.inject("read", Cut(after=200_000), times=5)
    await two.copy(files=two.files[:2])
    assert len(two.done) == 2
    assert two.lies_there()[f".copies/r1/{two.files[0].path}"] == CONTENT[two.files[0].path]


async def test_what_was_reported_before_the_link_died_stays_and_the_rest_comes_with_the_next_try(tmp_path: Path) -> None:
    two = TwoSites(tmp_path, limits=msgspec.structs.replace(LIMITS, part_deadline_s=0.05))
    two.origin.inject("read", Fail(Unavailable("origin", "gone")), times=10_000, path=two.files[0].at)
    with pytest.raises(Unavailable):
        await two.copy()
    two.origin.heal()
    missing = [file for file in two.files if file.path not in {copy.path for copy in two.done}]
    await two.copy(files=missing)
    assert sorted(copy.path for copy in two.done) == sorted(CONTENT)
    assert await two.copier.check(a_replica(), two.done) == []


async def test_a_copy_that_a_rule_forbids_costs_no_request(tmp_path: Path) -> None:
    two = TwoSites(tmp_path, places={EVAL: PlaceFacts(labels=("us",))})
    with pytest.raises(Denied, match="rule residency"):
        await two.copy(a_replica(labels=Labels(residency=("eu",))))
    assert (two.origin.calls["read"], two.lies_there()) == (0, {})


async def test_a_cancelled_copy_leaves_nothing_half_done(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    stall = Stall(asyncio.Event(), after=100_000)
    two.origin.inject("read", stall, times=99)
    copying = asyncio.create_task(two.copy(files=two.files[:1]))
    await stall.reached.wait()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert (two.lies_there(), two.done, two.copier.going_on) == ({}, [], {})


async def test_only_the_hot_blocks_of_a_file_are_copied(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    name = "model-00001.safetensors"
    hot = (
        HotRange(LakePath(f"{STEP}/{name}"), 3 * BLOCK + 5, 10),
        HotRange(LakePath(f"{STEP}/{name}"), 9 * BLOCK, BLOCK + 1),
    )
    await two.copy(a_replica(mechanism=Mechanism.HOT_FILES, hot=hot), files=two.files[:1])
    body = CONTENT[name]
    assert two.lies_there() == {f".copies/r1/{name}": body[3 * BLOCK : 4 * BLOCK] + body[9 * BLOCK : 11 * BLOCK]}
    assert two.done[0].ranges == ((3 * BLOCK, BLOCK), (9 * BLOCK, 2 * BLOCK))


async def test_a_dropped_copy_is_gone_with_its_directories_and_nothing_else_is(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    (two.directory / "precious").write_bytes(b"not ours")
    await two.copy()
    outside = msgspec.structs.replace(two.done[0], at=SitePath("precious"))
    await two.copier.drop(a_replica(), [*two.done, outside])
    assert two.lies_there() == {"precious": b"not ours"}
    assert not (two.directory / ".copies/r1").exists()
    await two.copier.drop(a_replica(), two.done)


async def test_a_changed_copy_is_found_by_its_version(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    await two.copy()
    (two.directory / f".copies/r1/{two.done[0].path}").write_bytes(b"changed")
    (two.directory / f".copies/r1/{two.done[1].path}").unlink()
    assert sorted(await two.copier.check(a_replica(), two.done)) == sorted(copy.path for copy in two.done[:2])


async def test_a_site_that_cant_be_written_says_so(tmp_path: Path) -> None:
    two = TwoSites(tmp_path)
    with pytest.raises(Unsupported):
        await two.copy(a_replica(site=ORIGIN))
    with pytest.raises(ForemountError):
        await two.copy(a_replica(site=SiteName("nowhere")))
