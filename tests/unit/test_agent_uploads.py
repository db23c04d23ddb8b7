"""Uploads from a real journal to a site in memory: order, retries, restarts, what becomes visible when."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.staging import Staging
from vfs.agent.writing.sending import SendLimits
from vfs.agent.writing.uploadfacts import UploadFacts
from vfs.agent.writing.uploads import Uploads
from vfs.clock import SystemClock
from vfs.config import parse
from vfs.errors import Denied, NoSpace, Stale, Unavailable
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.journal import content_path
from vfs.namespace.mounts import build_mount_table
from vfs.namespace.staged import UploadState
from vfs.policy.engine import Decision
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce, open_store
from vfs.sites.faults import Cut, Fail, Stall
from vfs.sites.faultywriter import FaultyWriter, Lost
from vfs.sites.memory import MemorySite
from vfs.sites.memorywriter import MemoryWriter
from vfs.sites.writing import HIDDEN_PREFIX

pytestmark = pytest.mark.timeout(30)
LAKE = SiteName("lake")
PART = 128 << 10
CONFIG = (
    'policies = ["own.toml"]\n[sites.lake]\nkind = "memory"\n[[mounts]]\nprefix = ""\nsite = "lake"\nroot = "deep/base"\n'
)
LIMITS = SendLimits(part_deadline_s=0.3, backoff_s=0.001, backoff_s_max=0.002, rest_s=0.005, rest_s_max=0.02)
INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@dataclass
class Host:
    """One host: a staging area, a catalog, and the origin that it shares with others."""

    base: Path
    site: MemorySite
    writer: FaultyWriter
    staging: Staging
    catalog: CatalogWriter
    limits: SendLimits = LIMITS

    def __post_init__(self) -> None:
        self.bound("unlimited")
        self.policy = open_store(parse(CONFIG), str(self.base / "foremount.toml"))

    def bound(self, bandwidth: str) -> None:
        """Write the document that bounds uploads."""
        rule = f'[[rules]]\nname = "line"\nmatch = {{}}\nset = {{ upload_bandwidth = "{bandwidth}" }}\n'
        (self.base / "own.toml").write_text(f'format = 1\nabout = "uploads"\n{rule}')

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Uploads]:
        """Run the uploads; leaving is what SIGTERM does to them."""
        mounts = build_mount_table(parse(CONFIG))
        policy = InForce(self.policy)

        def decide(path: LakePath) -> Decision:
            return policy.decision(path, Access.WRITE, LAKE)

        async with Uploads(
            mounts,
            {LAKE: self.site},
            {LAKE: self.writer},
            self.catalog,
            directory=self.staging.directory,
            decide=decide,
            clock=SystemClock(),
            limits=self.limits,
        ) as uploads:
            yield uploads

    async def settled(self, uploads: Uploads, *paths: str) -> None:
        """Wait until the origin has these."""
        async with asyncio.timeout(10):
            for path in paths:
                node = self.staging.node(path)
                await uploads.settle(node.id, node.seq)

    async def until(self, uploads: Uploads, holds: Callable[[], object]) -> None:
        """Wait until something holds; looked at after each turn of the loop that a step takes."""
        async with asyncio.timeout(10):
            while not holds():
                uploads.wake()
                await asyncio.sleep(0.001)

    def names(self) -> list[str]:
        """Return the objects of the origin."""
        return sorted(path.removeprefix("deep/base/") for path in self.site.paths())

    async def content(self, path: str) -> bytes:
        at = SitePath(f"deep/base/{path}")
        version = (await self.site.stat(at)).version
        return b"".join(
            [bytes(piece) async for piece in self.site.read(at, version, 0, version.size)] if version.size else []
        )


async def none() -> AsyncIterator[bytes]:
    """Yield nothing."""
    for piece in ():
        yield piece


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make_host(tmp_path, MemorySite(LAKE))


def make_host(base: Path, site: MemorySite) -> Host:
    (base / "staging").mkdir(parents=True)
    writer = FaultyWriter(MemoryWriter(site, part_bytes=PART))
    return Host(base, site, writer, Staging(base / "staging"), CatalogWriter(str(base / "catalog.lmdb")))


def body(seed: int, size: int = 3 * PART + 17) -> bytes:
    return bytes((seed * 7 + index * index) % 251 for index in range(1000)) * (size // 1000 + 1)


async def test_a_complete_file_comes_to_its_origin_and_into_the_catalog(host: Host) -> None:
    node = host.staging.write("run/a.bin", body(1))
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert await host.content("run/a.bin") == body(1)
    record, known = host.catalog.upload(node.id), host.catalog.known(LakePath("run/a.bin"))
    assert record is not None and record.at is not None and known is not None and known.entry is not None
    assert record.state is UploadState.DONE
    assert record.at.path == "deep/base/run/a.bin"
    assert record.at.version == known.entry.version == (await host.site.stat(SitePath("deep/base/run/a.bin"))).version
    assert record.digest.startswith("xxh3-64k:")


async def test_an_empty_file_is_uploaded(host: Host) -> None:
    node = host.staging.write("empty", b"")
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert await host.content("empty") == b""


async def test_a_file_that_is_being_written_is_left_alone(host: Host) -> None:
    host.staging.begin("half")
    host.staging.write("whole", b"x")
    async with host.agent() as uploads:
        await host.settled(uploads, "whole")
        await host.until(uploads, lambda: not uploads.busy)
    assert host.names() == ["whole"]


async def test_a_file_that_changes_while_it_is_sent_is_never_visible_in_between(host: Host) -> None:
    node = host.staging.write("a", body(1))
    stall = Stall(asyncio.Event(), after=1)
    host.writer.inject("send", stall, at=2)
    async with host.agent() as uploads:
        await stall.reached.wait()
        newer = host.staging.write("a", body(2))
        stall.gate.set()
        await uploads.settle(newer.id, newer.seq)
    assert await host.content("a") == body(2)
    assert host.writer.finished.count(SitePath("deep/base/a")) == 1
    assert node.id == newer.id


async def test_a_part_that_fails_is_sent_again_alone(host: Host) -> None:
    node = host.staging.write("a", body(1))
    host.writer.inject("send", Cut(1000), at=2)
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert host.writer.calls["send"] == 1 + len(range(0, len(body(1)), PART))
    assert host.writer.calls["begin"] == 1
    assert await host.content("a") == body(1)


async def test_a_lost_answer_to_the_last_step_is_no_failure(host: Host) -> None:
    node = host.staging.write("a", body(1))
    host.writer.inject("finish", Lost(Cut(0)))
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert await host.content("a") == body(1)


async def test_an_agent_that_is_killed_goes_on_with_the_parts_that_are_missing(host: Host) -> None:
    node = host.staging.write("a", body(1, 8 * PART))
    count = -(-len(body(1, 8 * PART)) // PART)
    stall = Stall(asyncio.Event())
    host.writer.inject("send", stall, at=count)
    async with host.agent():
        await stall.reached.wait()
    host.writer.heal()
    sent_before = host.writer.bytes
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert host.writer.calls["begin"] == 1
    assert host.writer.calls["finish"] == 1
    assert sent_before > 0
    assert await host.content("a") == body(1, 8 * PART)


async def test_an_upload_that_the_store_has_forgotten_begins_anew(host: Host) -> None:
    node = host.staging.write("a", body(1))
    stall = Stall(asyncio.Event())
    host.writer.inject("send", stall, at=3)
    async with host.agent():
        await stall.reached.wait()
    host.writer = FaultyWriter(MemoryWriter(host.site, part_bytes=PART))
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert host.writer.calls["begin"] == 1
    assert await host.content("a") == body(1)


@pytest.mark.parametrize("failure", [NoSpace("lake"), Denied("lake")], ids=["full", "refusing"])
async def test_an_origin_that_is_full_or_refuses_is_told_to_who_waits_and_tried_again(host: Host, failure: Exception) -> None:
    node = host.staging.write("a", body(1))
    host.writer.inject("begin", Fail(failure), times=2)  # type: ignore[arg-type]
    async with host.agent() as uploads:
        with pytest.raises(type(failure)):
            await uploads.settle(node.id, node.seq)
        shown = UploadFacts(uploads, SystemClock()).facts()
        assert shown["behind"]["files"] == 1
        assert [trouble["path"] for trouble in shown["troubles"]] == ["a"]
        await host.until(uploads, lambda: not uploads.pending())
    assert await host.content("a") == body(1)
    assert host.writer.calls["begin"] == 3


async def test_an_origin_that_stalls_is_asked_again_and_nobody_sees_an_error(host: Host) -> None:
    host.limits = SendLimits(stall_s=0.02, bytes_per_s=1e9, backoff_s=0.001, rest_s=0.005)
    node = host.staging.write("a", body(1))
    host.writer.inject("send", Stall(asyncio.Event(), after=1), times=2)
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
    assert await host.content("a") == body(1)
    assert uploads.counters["failures"] == 0


async def test_a_removed_name_goes_from_the_origin(host: Host) -> None:
    host.site.put(SitePath("deep/base/old"), b"x")
    absent = host.staging.remove("old")
    async with host.agent() as uploads:
        await host.until(uploads, lambda: host.catalog.upload(absent.id) is not None)
    assert host.names() == []
    known = host.catalog.known(LakePath("old"))
    assert known is not None and known.entry is None


async def test_a_renamed_file_gets_its_new_name_and_loses_the_old(host: Host) -> None:
    node = host.staging.write("tmp/a", body(1))
    async with host.agent() as uploads:
        await uploads.settle(node.id, node.seq)
        host.staging.rename("tmp", "done")
        await host.until(uploads, lambda: host.names() == ["done/a"])
    assert await host.content("done/a") == body(1)


async def test_a_file_that_is_renamed_before_its_first_byte_goes_is_not_looked_for_under_the_old_name(host: Host) -> None:
    host.staging.write("a.tmp", body(1))
    stall = Stall(asyncio.Event())
    host.writer.inject("begin", stall)
    async with host.agent() as uploads:
        await stall.reached.wait()
        host.staging.rename("a.tmp", "a")
        stall.gate.set()
        await host.settled(uploads, "a")
    assert host.names() == ["a"]
    assert (host.writer.calls["begin"], host.writer.calls["abandon"], host.writer.calls["remove"]) == (2, 1, 0)


async def test_waiting_for_a_node_that_is_dropped_is_stale(host: Host) -> None:
    node = host.staging.begin("a")
    async with host.agent() as uploads:
        waiting = asyncio.create_task(uploads.settle(node.id, 1))
        await host.until(uploads, lambda: not uploads.busy)
        host.staging.drop(node)
        uploads.wake()
        with pytest.raises(Stale):
            await waiting


async def test_an_upload_whose_node_is_dropped_leaves_nothing_at_the_origin(host: Host) -> None:
    node = host.staging.write("a", body(1))
    stall = Stall(asyncio.Event())
    host.writer.inject("send", stall, at=2)
    async with host.agent() as uploads:
        await stall.reached.wait()
        host.staging.drop(node)
        stall.gate.set()
        await host.until(uploads, lambda: host.catalog.upload(node.id) is None and host.writer.calls["abandon"])
    assert host.names() == []


# Commit markers


async def test_an_index_is_shown_after_every_shard_that_it_names(host: Host) -> None:
    host.writer.inject("send", Cut(0), times=3, path="deep/base/ckpt/model-2.safetensors")
    host.staging.write("ckpt/model.safetensors.index.json", json.dumps(INDEX).encode())
    host.staging.write("ckpt/model-1.safetensors", body(1))
    host.staging.write("ckpt/model-2.safetensors", body(2))
    async with host.agent() as uploads:
        await host.settled(uploads, "ckpt/model.safetensors.index.json")
    assert host.writer.finished[-1] == "deep/base/ckpt/model.safetensors.index.json"
    assert len(host.writer.finished) == 3


async def test_a_marker_waits_for_a_shard_of_another_host(host: Host, tmp_path: Path) -> None:
    other = make_host(tmp_path / "other", host.site)
    marker = host.staging.write("ckpt/model.safetensors.index.json", json.dumps(INDEX).encode())
    host.staging.write("ckpt/model-1.safetensors", body(1))
    async with host.agent() as uploads, other.agent() as others:
        await host.settled(uploads, "ckpt/model-1.safetensors")
        await host.until(uploads, lambda: _waits_for(host, marker.id) == "ckpt/model-2.safetensors")
        (trouble,) = UploadFacts(uploads, SystemClock()).facts()["troubles"]
        assert trouble["path"] == "ckpt/model.safetensors.index.json"
        assert host.names() == ["ckpt/model-1.safetensors"]
        other.staging.write("ckpt/model-2.safetensors", body(2))
        await other.settled(others, "ckpt/model-2.safetensors")
        await host.settled(uploads, "ckpt/model.safetensors.index.json")
    assert len(host.names()) == 3


async def test_a_success_file_waits_for_what_was_begun_before_it_and_for_nothing_later(host: Host) -> None:
    early = host.staging.begin("out/part-0")
    marker = host.staging.write("out/_SUCCESS", b"")
    host.staging.begin("out/later")
    async with host.agent() as uploads:
        await host.until(uploads, lambda: _state(host, marker.id) is UploadState.WAITING)
        Path(content_path(host.staging.directory, early.content)).write_bytes(b"x")
        host.staging.complete(early)
        await host.settled(uploads, "out/_SUCCESS")
    assert host.names() == ["out/_SUCCESS", "out/part-0"]


async def test_a_tracker_waits_for_the_iteration_that_it_names(host: Host) -> None:
    early = host.staging.begin("run/iter_0000123/__0_0.distcp")
    marker = host.staging.write("run/latest_checkpointed_iteration.txt", b"123")
    async with host.agent() as uploads:
        await host.until(uploads, lambda: _state(host, marker.id) is UploadState.WAITING)
        host.staging.complete(early)
        await host.settled(uploads, "run/latest_checkpointed_iteration.txt")
    (manifest,) = host.catalog.manifests()
    assert (manifest.path, manifest.format, manifest.step) == ("run/iter_0000123", "megatron", 123)


async def test_the_old_marker_goes_before_the_new_files_come(host: Host) -> None:
    host.site.put(SitePath("deep/base/ckpt/.metadata"), b"old")
    host.writer.inject("remove", Fail(Unavailable("lake")), times=2)
    host.staging.remove("ckpt/.metadata")
    host.staging.write("ckpt/__0_0.distcp", body(1))
    seen: list[list[str]] = []
    finish = host.writer.finish

    async def watched(*args: object) -> object:
        seen.append(host.names())
        return await finish(*args)  # type: ignore[arg-type]

    host.writer.finish = watched  # type: ignore[method-assign,assignment]
    async with host.agent() as uploads:
        await host.settled(uploads, "ckpt/__0_0.distcp")
    assert seen == [[]]


async def test_a_committed_checkpoint_has_a_manifest_that_a_second_save_does_not_change(host: Host) -> None:
    files = {"ckpt/model-1.safetensors": body(1), "ckpt/model-2.safetensors": body(2)}
    for path, content in files.items():
        host.staging.write(path, content)
    host.staging.write("ckpt/model.safetensors.index.json", json.dumps(INDEX).encode())
    async with host.agent() as uploads:
        await host.settled(uploads, "ckpt/model.safetensors.index.json")
        (first,) = host.catalog.manifests()
        host.staging.write("ckpt/model-1.safetensors", body(3))
        await host.settled(uploads, "ckpt/model-1.safetensors")
        host.staging.write("ckpt/model.safetensors.index.json", json.dumps(INDEX).encode())
        await host.settled(uploads, "ckpt/model.safetensors.index.json")
    again, second = host.catalog.manifests()
    assert again == first
    assert [file.path for file in first.files] == [
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    ]
    assert [file.size for file in first.files[:2]] == [len(body(1)), len(body(2))]
    assert (first.tensors, first.format) == (2, "huggingface")
    assert first.save_id != second.save_id


async def test_nothing_hidden_is_left_when_all_is_done(host: Host) -> None:
    for index in range(40):
        host.staging.write(f"many/{index}", body(index, PART // 2))
    async with host.agent() as uploads:
        async with asyncio.timeout(20):
            await host.until(uploads, lambda: uploads.counters["files"] == 40)
            await uploads.drained()
    assert len(host.names()) == 40
    assert not [name for name in host.names() if HIDDEN_PREFIX in name]


def _waits_for(host: Host, node_id: int) -> str:
    record = host.catalog.upload(node_id)
    return "" if record is None or record.failure is None else record.failure.subject


def _state(host: Host, node_id: int) -> UploadState | None:
    record = host.catalog.upload(node_id)
    return None if record is None else record.state


async def test_bound_of_uploads_that_is_lifted_holds_at_once_for_those_that_wait(host: Host) -> None:
    host.bound("1KB/s")
    host.policy.reload()
    host.staging.write("a", body(1))
    async with host.agent() as uploads:
        await host.until(uploads, lambda: host.writer.bytes >= PART)
        assert host.writer.bytes == PART, "the next part is due in two minutes"
        host.bound("unlimited")
        host.policy.reload()
        await host.settled(uploads, "a")
    assert await host.content("a") == body(1)
