"""What is fetched ahead, by policy, layout and history.

Of `vfs/agent/reading/prefetch.py` and `layouts.py` over a site in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import pickle
import random
import struct
import tarfile
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.test_checkpoints_formats import metadata, torch_names
from vfs.agent.reading.holding import Holding
from vfs.agent.reading.layouts import CachedLayouts
from vfs.agent.reading.lessons import Lessons
from vfs.agent.reading.objects import Objects
from vfs.agent.reading.prefetch import Prefetcher
from vfs.agent.reading.replicas import Replicas
from vfs.agent.rules import PathRules
from vfs.clock import FakeClock
from vfs.errors import NotFound
from vfs.extents.budget import Budget
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.extents.reader import read_copied
from vfs.extents.store import Store
from vfs.model import Entry, LakePath, ObjectKey, SiteName, SitePath
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.inforce import InForce
from vfs.policy.store import PolicyStore
from vfs.policy.values import DEFAULTS
from vfs.sites.faults import FaultySite
from vfs.sites.memory import MemorySite

__all__ = ["torch_names"]  # a fixture
FAR = SiteName("far")
MIB = 1 << 20
POLICY = """
format = 1
[[rules]]
name = "mode"
match = { path = "**" }
set = { prefetch = "MODE" }
"""


@dataclass
class Bench:
    """An agent's rooms over one site; `whole lake` is its root."""

    site: MemorySite
    far: FaultySite
    fetcher: Fetcher
    prefetcher: Prefetcher
    objects: Objects
    tasks: list[asyncio.Future[None]] = field(default_factory=list)

    def put(self, path: str, content: bytes) -> None:
        self.site.put(SitePath(path), content)

    async def open(self, path: str) -> ObjectKey:
        entry = await self.site.stat(SitePath(path))
        key, _ = await self.objects.open(LakePath(path), entry.version)
        return key

    async def read(self, key: ObjectKey, offset: int, length: int) -> None:
        """Read as the worker does: say so, then ask for it."""
        self.prefetcher.reads(key, [(offset, length)])
        await self.objects.need(key, offset, length)

    async def settled(self) -> None:
        while not all(task.done() for task in self.tasks):  # a task may start others
            await asyncio.gather(*self.tasks)
        await self.fetcher.settled()

    def fetched(self, path: str) -> int:
        """Return how many bytes of a path were asked for."""
        return sum(length for at, _, length in self.far.reads if at == path)


@contextlib.asynccontextmanager
async def bench(base: Path, mode: str | None = None) -> AsyncIterator[Bench]:
    documents = []
    if mode is not None:
        (base / "own.toml").write_text(POLICY.replace("MODE", mode))
        documents = [str(base / "own.toml")]
    mounts = MountTable([MountPoint(LakePath(""), FAR, SitePath(""))])
    rules = PathRules(InForce(PolicyStore(documents), host="h"), mounts)
    site, clock, tasks = MemorySite(FAR), FakeClock(), list[asyncio.Future[None]]()
    far = FaultySite(site)

    def spawn(work: Awaitable[None]) -> None:
        tasks.append(asyncio.ensure_future(work))

    async def stat(path: LakePath) -> Entry | None:
        try:
            return await site.stat(SitePath(path))
        except NotFound:
            return None

    cache, spill = Store.open(str(base / "cache"), 256 * MIB), Store.open(str(base / "spill"), 64 * MIB)
    catalog = CatalogWriter(str(base / "catalog.lmdb"))
    async with Fetcher(cache, spill, {FAR: far}, memory=Budget(64 * MIB), clock=clock, limits=FetchLimits()) as fetcher:
        replicas = Replicas(
            mounts,
            {FAR: far},
            tell_etags=(),
            tell_times=(),
            clock=clock,
            believed_s=lambda _: 60,
            on_answer=fetcher.hint,
            spawn=spawn,
        )
        holding = Holding(mounts, fetcher, replicas, rules)
        layouts = CachedLayouts(holding, fetcher, stat=stat)

        class Beside:
            hold, release = staticmethod(holding.hold), staticmethod(holding.release)
            is_here = staticmethod(holding.is_here)

            async def files(self, directory: LakePath) -> list[Entry]:
                return [entry async for page in site.list(SitePath(directory)) for entry in page]

        prefetcher = Prefetcher(
            fetcher,
            layouts,
            Lessons(catalog),
            rule=rules.prefetch_rule,
            read_ahead=64 << 10,
            spawn=spawn,
            beside=Beside(),
        )
        yield Bench(site, far, fetcher, prefetcher, Objects(holding, fetcher, prefetcher), tasks)
        await asyncio.wait_for(fetcher.settled(), 20)
    catalog.close()
    cache.close()
    spill.close()


def safetensors(count: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a file of `count` tensors of `size` bytes in two modalities, and the place of each."""
    header = {
        f"{'text' if 2 * index < count else 'vision'}.{index}.w": {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [index * size, (index + 1) * size],
        }
        for index in range(count)
    }
    text = json.dumps(header).encode()
    start = 8 + len(text)
    body = struct.pack("<Q", len(text)) + text + random.Random(5).randbytes(count * size)
    return body, [(start + index * size, size) for index in range(count)]


def padded(body: bytes, size: int) -> bytes:
    """Return a safetensors file whose header is longer by spaces."""
    (length,) = struct.unpack_from("<Q", body)
    spaces = b" " * (size - len(body))
    return struct.pack("<Q", length + len(spaces)) + body[8 : 8 + length] + spaces + body[8 + length :]


def test_requests_are_formed_by_the_policys_default_as_the_limits_say() -> None:
    limits = FetchLimits()
    assert (DEFAULTS.fetch_size.least, DEFAULTS.fetch_size.most) == (limits.request_bytes_min, limits.request_bytes_max)


async def test_off_fetches_what_is_asked_for_and_nothing_else(tmp_path: Path) -> None:
    async with bench(tmp_path, "off") as at:
        at.put("a.safetensors", safetensors(40, 128 << 10)[0])
        key = await at.open("a.safetensors")
        for block in range(8):
            await at.read(key, block * BLOCK, BLOCK)
        await at.settled()
        assert at.fetched("a.safetensors") == 8 * BLOCK
        assert at.prefetcher.facts(key) is None
        at.objects.close(key)


async def test_sequential_follows_the_stream_and_reads_no_layout(tmp_path: Path) -> None:
    async with bench(tmp_path, "sequential") as at:
        at.put("a.safetensors", safetensors(40, 128 << 10)[0])
        key = await at.open("a.safetensors")
        for block in range(8):
            await at.read(key, block * BLOCK, BLOCK)
        await at.settled()
        assert at.fetched("a.safetensors") > 8 * BLOCK
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert facts["by"] == "streams"
        at.objects.close(key)


async def test_whole_fetches_all_of_a_small_file_in_one_request_at_open(tmp_path: Path) -> None:
    async with bench(tmp_path, "whole") as at:
        at.put("a.jpg", random.Random(1).randbytes(300_000))
        key = await at.open("a.jpg")
        await at.read(key, 0, 4096)
        await at.settled()
        assert at.far.reads == [(SitePath("a.jpg"), 0, 300_000)]
        at.objects.close(key)
        assert at.fetcher.counters.unread_bytes == 300_000 - 4096


async def test_a_file_that_was_read_whole_is_fetched_whole_the_next_time(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(40, 256 << 10)
        for step in (1, 2):
            at.put(f"step_{step}/a.safetensors", body)
        key = await at.open("step_1/a.safetensors")
        await at.read(key, 0, places[0][0])
        for place in places:
            await at.read(key, *place)
        await at.settled()
        at.objects.close(key)
        key = await at.open("step_2/a.safetensors")
        await at.settled()
        await at.read(key, 0, 4096)
        await at.settled()
        assert at.fetched("step_2/a.safetensors") == len(body) // BLOCK * BLOCK + len(body) % BLOCK
        at.objects.close(key)
        assert at.fetcher.counters.unread_bytes > len(body) // 2


async def test_first_tensor_is_wanted_though_its_head_came_with_the_header_when_the_file_was_open_before(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(2, 8 * MIB)
        at.put("a.safetensors", body)
        key = await at.open("a.safetensors")
        await at.read(key, 0, 2 * BLOCK)
        await at.settled()
        at.objects.close(key)
        key = await at.open("a.safetensors")
        await at.settled()
        last = (places[0][0] + places[0][1] - 1) // 4096 * 4096
        await at.read(key, last - 2 * BLOCK // 2, 2 * BLOCK)  # a copy touches both ends first, and the kernel has the head
        await at.settled()
        assert at.fetched("a.safetensors") > 8 * MIB
        at.objects.close(key)


async def test_a_file_of_which_a_part_was_read_is_not_fetched_whole_the_next_time(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(40, 256 << 10)
        for step in (1, 2):
            at.put(f"step_{step}/a.safetensors", body)
        key = await at.open("step_1/a.safetensors")
        for place in places[:20]:
            await at.read(key, *place)
        await at.settled()
        at.objects.close(key)
        key = await at.open("step_2/a.safetensors")
        await at.settled()
        await at.read(key, 0, 4096)
        await at.settled()
        assert at.fetched("step_2/a.safetensors") < 0.6 * len(body)
        at.objects.close(key)


async def test_headers_of_the_shards_that_follow_are_read_when_the_first_is_opened(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        for index in (1, 2, 3):
            at.put(f"m-{index}-of-3.safetensors", safetensors(4, 256 << 10)[0])
        key = await at.open("m-1-of-3.safetensors")
        await at.settled()
        assert sorted(at.far.reads) == [(f"m-{index}-of-3.safetensors", 0, 2 * BLOCK) for index in (1, 2, 3)]
        at.objects.close(key)


async def test_the_next_shard_is_fetched_before_it_is_opened_as_far_as_it_is_wanted(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(20, 256 << 10)
        for index in (1, 2):
            at.put(f"m-{index}-of-2.safetensors", body)
        key = await at.open("m-1-of-2.safetensors")
        await at.settled()
        for place in places[:10]:
            await at.read(key, *place)
        await at.settled()
        fetched = at.fetched("m-2-of-2.safetensors")
        assert places[9][0] <= fetched < 0.7 * len(body)
        other = await at.open("m-2-of-2.safetensors")
        for place in places[:10]:
            await at.read(other, *place)
        assert at.fetched("m-2-of-2.safetensors") == fetched
        at.objects.close(other)
        at.objects.close(key)


async def test_the_end_of_a_long_tensor_is_asked_for_before_what_lies_between(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(2, 12 * MIB)
        at.put("a.safetensors", padded(body, 4096 - places[0][0] + len(body)))
        start, end = 4096 + 12 * MIB, 4096 + 24 * MIB
        key = await at.open("a.safetensors")
        await at.settled()
        before = len(at.far.reads)
        at.prefetcher.reads(key, [(start, 128 << 10)])
        await at.settled()
        asked = [(offset, offset + length) for _, offset, length in at.far.reads[before:]]
        assert asked[0] == ((end - (256 << 10)) // BLOCK * BLOCK, end)
        assert min(asked)[0] == start // BLOCK * BLOCK
        assert sum(stop - start for start, stop in asked) == end - start // BLOCK * BLOCK  # nothing twice
        at.objects.close(key)


async def test_what_is_known_to_be_wanted_goes_on_being_fetched_though_nobody_reads(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(60, MIB)
        for step in (1, 2):
            at.put(f"step_{step}/m.safetensors", body)
        key = await at.open("step_1/m.safetensors")
        await at.settled()
        for place in places:
            await at.read(key, *place)
        at.objects.close(key)
        key = await at.open("step_2/m.safetensors")
        await at.settled()
        identity = Identity(
            FAR, SitePath("step_2/m.safetensors"), (await at.site.stat(SitePath("step_2/m.safetensors"))).version
        )
        assert MIB <= at.fetcher.room_bytes(identity) <= 32 * MIB
        at.prefetcher.reads(key, [places[0]])
        await at.settled()
        assert at.fetched("step_2/m.safetensors") == len(body)
        root = await at.fetcher.ensure(identity, 0, len(body))
        assert read_copied(root, key, 0, len(body)) == body
        at.objects.close(key)


async def test_a_reader_that_jumps_about_has_nothing_of_the_next_shard_fetched(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        chance = random.Random(4)
        for index in (1, 2):
            at.put(f"m-{index}-of-2.pt", chance.randbytes(4 * MIB))
        key = await at.open("m-1-of-2.pt")
        await at.settled()
        for _ in range(40):
            await at.read(key, chance.randrange(64) * BLOCK, 4096)
        await at.settled()
        assert at.fetched("m-2-of-2.pt") <= MIB
        at.objects.close(key)


async def test_reads_of_one_length_at_random_cost_one_request_each(tmp_path: Path) -> None:
    async with bench(tmp_path, "sequential") as at:
        at.put("a.bin", random.Random(3).randbytes(40 * MIB))
        key = await at.open("a.bin")
        for place in (3, 19, 10, 30, 14, 36, 6, 26):
            before = len(at.far.reads)
            for part in range(16):  # as the kernel sends it
                await at.read(key, place * MIB + part * 2 * BLOCK, 2 * BLOCK)
            await at.settled()
        assert at.far.reads[before:] == [(SitePath("a.bin"), 26 * MIB, 2 * MIB)]
        assert at.fetched("a.bin") <= 8 * 2 * MIB + 4 * MIB
        at.objects.close(key)


@pytest.mark.parametrize(("run_mib", "is_told"), [(4, False), (24, True)])
async def test_what_is_fetched_ahead_goes_into_the_page_cache_for_long_runs_alone(
    tmp_path: Path, run_mib: int, is_told: bool
) -> None:
    """Where a run ends is not seen once its pages are there: each would seem longer than the one before."""
    told: list[tuple[int, int]] = []
    async with bench(tmp_path, "sequential") as at:
        at.put("a.bin", random.Random(3).randbytes(80 * MIB))
        at.prefetcher.on_expect = lambda _, ranges: told.extend(ranges)
        key = await at.open("a.bin")
        for start in (0, 40 * MIB):
            for offset in range(start, start + run_mib * MIB, 2 * BLOCK):
                await at.read(key, offset, 2 * BLOCK)
            await at.settled()
        assert at.fetcher.counters.prefetched_bytes > 0
        assert bool(told) is is_told
        at.objects.close(key)


async def test_the_next_step_is_fetched_without_waiting_for_its_header(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, places = safetensors(20, 256 << 10)
        for step in (1, 2):
            at.put(f"step_{step}/a.safetensors", body)
        key = await at.open("step_1/a.safetensors")
        await at.read(key, 0, places[0][0])
        for place in places:
            await at.read(key, *place)
        await at.settled()
        at.objects.close(key)
        key = await at.open("step_2/a.safetensors")
        at.prefetcher.reads(key, [(0, 4096)])
        await asyncio.sleep(0)  # its header is being asked for: nothing of it has come
        at.prefetcher.reads(key, [(0, 8192)])
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert facts["predicted_bytes"] > 0.9 * len(body)
        await at.settled()
        at.objects.close(key)


async def test_a_step_of_the_same_size_with_another_layout_is_read_by_its_own(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        first, second = safetensors(20, 256 << 10), safetensors(10, 512 << 10)
        size = max(len(first[0]), len(second[0]))
        at.put("step_1/a.safetensors", padded(first[0], size))
        at.put("step_2/a.safetensors", padded(second[0], size))
        key = await at.open("step_1/a.safetensors")
        await at.settled()
        at.objects.close(key)
        key = await at.open("step_2/a.safetensors")
        await at.settled()
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert (facts["by"], facts["members"]) == ("members", 10)
        at.objects.close(key)


async def test_shards_of_a_dcp_directory_are_predicted_by_its_metadata_read_once(
    tmp_path: Path, torch_names: dict[str, type]
) -> None:
    async with bench(tmp_path) as at:
        files = ["__0_0.distcp", "__1_0.distcp"]
        items = [(f"layers.{index}.{name}", None, name, index * MIB, MIB) for name in files for index in range(6)]
        at.put("ckpt/.metadata", metadata(torch_names, items))
        for name in files:
            at.put(f"ckpt/{name}", random.Random(2).randbytes(6 * MIB))
        keys = [await at.open(f"ckpt/{name}") for name in files]
        await at.settled()
        assert [path for path, _, _ in at.far.reads] == ["ckpt/.metadata"]
        await at.read(keys[0], 0, MIB)
        await at.settled()
        assert at.fetched("ckpt/__0_0.distcp") > MIB
        for key in keys:
            facts = at.prefetcher.facts(key)
            assert facts is not None
            assert (facts["by"], facts["format"], facts["members"]) == ("members", "dcp", 6)
            at.objects.close(key)


async def test_a_dcp_shard_shorter_than_its_metadata_says_is_read_as_bytes(
    tmp_path: Path, torch_names: dict[str, type], caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as at:
        at.put("ckpt/.metadata", metadata(torch_names, [("w", None, "__0_0.distcp", 0, 2 * MIB)]))
        at.put("ckpt/__0_0.distcp", bytes(MIB))
        key = await at.open("ckpt/__0_0.distcp")
        with caplog.at_level(logging.WARNING):
            await at.settled()
        assert caplog.messages == ["ckpt/__0_0.distcp: read as plain bytes: its tensors end at 2097152, the file at 1048576"]
        at.objects.close(key)


@pytest.mark.parametrize(
    "metadata", [None, b"cos\nsystem\n(S'true'\ntR.", pickle.dumps({"a": 1})], ids=["none", "evil", "other"]
)
async def test_a_dcp_shard_without_metadata_that_can_be_used_is_read_as_bytes(tmp_path: Path, metadata: bytes | None) -> None:
    async with bench(tmp_path) as at:
        if metadata is not None:
            at.put("ckpt/.metadata", metadata)
        at.put("ckpt/__0_0.distcp", bytes(MIB))
        key = await at.open("ckpt/__0_0.distcp")
        await at.settled()
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert facts["by"] == "streams"
        await at.read(key, 0, MIB)
        at.objects.close(key)


def archive(count: int) -> tuple[bytes, list[int]]:
    """Return a tar of samples of two files each, and where each sample begins, with the end of the last."""
    out, starts = io.BytesIO(), []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(count):
            starts.append(out.tell())
            for ending in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{index:05}.{ending}")
                member.size = 20_000
                tar.addfile(member, io.BytesIO(random.Random(index).randbytes(20_000)))
        starts.append(out.tell())
    return out.getvalue(), starts


async def test_a_tar_with_an_index_beside_it_is_not_walked(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        body, starts = archive(30)
        at.put("a.tar", body)
        at.put("a.tar.idx", struct.pack(f"<{len(starts)}Q", *starts))
        key = await at.open("a.tar")
        await at.settled()
        assert at.fetched("a.tar") == 0
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert (facts["by"], facts["format"], facts["members"]) == ("members", "tar", 30)
        at.objects.close(key)


@pytest.mark.parametrize("index", [None, b"1234567", struct.pack("<3Q", 5, 4, 3)], ids=["none", "torn", "descending"])
async def test_a_tar_without_a_usable_index_is_walked(tmp_path: Path, index: bytes | None) -> None:
    async with bench(tmp_path) as at:
        at.put("a.tar", archive(30)[0])
        if index is not None:
            at.put("a.tar.idx", index)
        key = await at.open("a.tar")
        await at.settled()
        facts = at.prefetcher.facts(key)
        assert facts is not None
        assert (facts["by"], facts["members"]) == ("members", 60)
        at.objects.close(key)
