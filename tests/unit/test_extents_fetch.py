"""The fetch service over sites in memory: `vfs/extents/fetch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.clock import FakeClock
from vfs.errors import Denied, NoSpace, NotFound, Stale, Throttled, Unavailable, Unsupported, WrongAnswer
from vfs.extents.budget import Budget
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.files import ObjectFiles
from vfs.extents.layout import BLOCK, HEADER_BYTES, PASSTHROUGH_BYTES_MIN, Identity, data_path, sums_path
from vfs.extents.limits import FetchLimits
from vfs.extents.reader import CachedObject, read_copied
from vfs.extents.store import Store
from vfs.model import ObjectKey, SiteName, SitePath
from vfs.sites.faults import ChangedEtag, Cut, Fail, FaultySite, Stall, WrongLength
from vfs.sites.memory import MemorySite

MIB = 1 << 20
FAR, NEAR = SiteName("far"), SiteName("near")
PATH = SitePath("run/model.bin")


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Bench:
    """A fetcher with two sites that hold the same object, the second as a replica."""

    fetcher: Fetcher
    store: Store
    spill: Store
    far: FaultySite
    near: FaultySite
    identity: Identity
    replica: Identity
    body: bytes
    clock: FakeClock
    memory: Budget
    slept: list[float] = field(default_factory=list)

    @property
    def key(self) -> ObjectKey:
        return self.identity.key

    def read(self, root: str, offset: int, length: int) -> bytes | None:
        return read_copied(root, self.key, offset, length)


@pytest.fixture
def directory() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="foremount-test-")
    yield made
    shutil.rmtree(made)


@contextlib.asynccontextmanager
async def bench(
    directory: str, size: int = 8 * BLOCK + 100, *, cap: int = 256 * MIB, memory: int = 64 * MIB, **limits: float
) -> AsyncIterator[Bench]:
    body = content(size)
    far, near = MemorySite(FAR), MemorySite(NEAR)
    identity = Identity(FAR, PATH, far.put(PATH, body))
    replica = Identity(NEAR, SitePath("copy/model.bin"), near.put(SitePath("copy/model.bin"), body))
    store, spill = Store.open(f"{directory}/cache", cap), Store.open(f"{directory}/spill", 64 * MIB)
    clock, budget = FakeClock(), Budget(memory)
    sites = {FAR: FaultySite(far), NEAR: FaultySite(near)}
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with Fetcher(
        store,
        spill,
        sites,
        memory=budget,
        clock=clock,
        limits=FetchLimits(**({"request_bytes_max": 4 * BLOCK, "batch_bytes": 2 * BLOCK} | limits)),  # type: ignore[arg-type]
        chance=random.Random(1),
        sleep=sleep,
    ) as fetcher:
        yield Bench(
            fetcher, store, spill, sites[FAR], sites[NEAR], identity, replica, body, clock, budget, slept
        )  # fmt: skip
        await asyncio.wait_for(fetcher.settled(), 20)
        assert budget.used == 0 and budget.waiting == 0
    assert not store._shelf.books.held and not spill._shelf.books.held
    store._shelf.books.check()
    store.close()
    spill.close()


async def until(condition: asyncio.Event) -> None:
    await asyncio.wait_for(condition.wait(), 10)


# What is fetched


async def test_a_range_is_fetched_in_whole_blocks_and_read_from_the_cache(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        root = await at.fetcher.ensure(at.identity, BLOCK + 5, 10)
        assert root == at.store.root
        assert at.read(root, BLOCK + 5, 10) == at.body[BLOCK + 5 : BLOCK + 15]
        assert at.far.reads == [(PATH, BLOCK, BLOCK)]
        at.fetcher.release(at.key)


async def test_what_is_here_is_not_fetched_again(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, 2 * BLOCK)
        await at.fetcher.ensure(at.identity, 0, 3 * BLOCK)
        assert at.far.reads == [(PATH, 0, 2 * BLOCK), (PATH, 2 * BLOCK, BLOCK)]
        at.fetcher.release(at.key)


async def test_large_ranges_are_cut_into_requests_and_the_tail_is_short(directory: str) -> None:
    async with bench(directory) as at:
        root = await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, 1 << 40)
        assert sorted(at.far.reads) == [(PATH, 0, 4 * BLOCK), (PATH, 4 * BLOCK, 4 * BLOCK), (PATH, 8 * BLOCK, 100)]
        assert at.read(root, 0, len(at.body)) == at.body
        at.fetcher.release(at.key)


async def test_an_empty_object_and_a_range_behind_the_end_need_no_request(directory: str) -> None:
    async with bench(directory, size=0) as at:
        await at.fetcher.hold(at.identity)
        assert await at.fetcher.ensure(at.identity, 0, 100) == at.store.root
        assert at.far.reads == []
        at.fetcher.release(at.key)


async def test_a_complete_object_is_sealed(directory: str) -> None:
    async with bench(directory) as at:
        root = await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, len(at.body))
        await at.fetcher.settled()
        cached = CachedObject.open(root, at.key)
        assert cached.sealed()
        cached.close()
        at.fetcher.release(at.key)


async def test_a_small_object_is_complete_without_a_seal(directory: str) -> None:
    async with bench(directory, size=PASSTHROUGH_BYTES_MIN - 1) as at:
        root = await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, len(at.body))
        await at.fetcher.settled()
        assert at.read(root, 0, len(at.body)) == at.body
        assert not at.store.stored(at.key).sealed
        at.fetcher.release(at.key)


async def test_an_object_that_an_earlier_run_completed_is_sealed_when_it_is_held(directory: str) -> None:
    async with bench(directory) as at:
        key = at.store.prepare(at.identity)
        at.store.write_blocks(key, 0, at.body)
        await at.fetcher.hold(at.identity)
        await at.fetcher.settled()
        assert at.store.stored(key).sealed
        at.fetcher.release(at.key)


async def test_names_too_long_for_the_cache_are_unsupported(directory: str) -> None:
    async with bench(directory) as at:
        with pytest.raises(Unsupported):
            await at.fetcher.hold(Identity(FAR, SitePath("x" * 5000), at.identity.version))


# Single flight


async def test_many_callers_of_one_block_share_one_request(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        await asyncio.gather(*(at.fetcher.ensure(at.identity, number * 1000, 100) for number in range(50)))
        assert at.far.reads == [(PATH, 0, BLOCK)]
        assert at.fetcher.counters.fetches == 1
        assert at.fetcher.counters.shared == 49
        at.fetcher.release(at.key)


async def test_overlapping_ranges_fetch_every_block_once(directory: str) -> None:
    async with bench(directory, size=40 * BLOCK) as at:
        await at.fetcher.hold(at.identity)
        await asyncio.gather(*(at.fetcher.ensure(at.identity, start * BLOCK, 7 * BLOCK) for start in range(0, 36, 3)))
        assert at.far.bytes == 40 * BLOCK
        at.fetcher.release(at.key)


async def test_a_cancelled_caller_does_not_end_the_fetch_for_the_others(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event(), after=BLOCK)
        at.far.inject("read", stall)
        first = asyncio.create_task(at.fetcher.ensure(at.identity, 0, 4 * BLOCK))
        await until(stall.reached)
        second = asyncio.create_task(at.fetcher.ensure(at.identity, 2 * BLOCK, BLOCK))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stall.gate.set()
        root = await second
        assert at.read(root, 2 * BLOCK, BLOCK) == at.body[2 * BLOCK : 3 * BLOCK]
        assert len(at.far.reads) == 1
        at.fetcher.release(at.key)


async def test_early_blocks_wake_their_callers_before_the_body_ends(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event(), after=2 * BLOCK)
        at.far.inject("read", stall)
        whole = asyncio.create_task(at.fetcher.ensure(at.identity, 0, 4 * BLOCK))
        await until(stall.reached)
        await asyncio.wait_for(at.fetcher.ensure(at.identity, BLOCK, BLOCK), 10)
        assert not whole.done()
        stall.gate.set()
        await whole
        assert len(at.far.reads) == 1
        at.fetcher.release(at.key)


async def test_what_nobody_waits_for_is_written_in_batches(directory: str) -> None:
    written: list[tuple[int, int]] = []
    async with bench(directory, size=64 * BLOCK, request_bytes_max=64 * BLOCK, batch_bytes=16 * BLOCK) as at:
        write = Store.write_blocks

        def noted(store: Store, key: ObjectKey, first: int, body: memoryview) -> None:
            written.append((first, len(body) // BLOCK))
            write(store, key, first, body)

        with patch.object(Store, "write_blocks", noted):
            await at.fetcher.hold(at.identity)
            at.fetcher.prefetch(at.key, 0, 20 * BLOCK)
            await at.fetcher.settled()
            assert written == [(0, 16), (16, 4)]
        at.fetcher.release(at.key)


async def test_an_abandoned_fetch_sends_no_further_request(directory: str) -> None:
    async with bench(directory, requests_per_site=1) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall)
        caller = asyncio.create_task(at.fetcher.ensure(at.identity, 0, 8 * BLOCK))
        await until(stall.reached)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        stall.gate.set()
        await at.fetcher.settled()
        assert at.far.reads == [(PATH, 0, 4 * BLOCK)]
        at.fetcher.release(at.key)


async def test_released_objects_are_let_go_when_their_last_fetch_has_ended(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.fetcher.prefetch(at.key, 0, BLOCK)
        at.fetcher.release(at.key)
        assert not at.store.evict(at.key)
        await at.fetcher.settled()
        assert at.store.evict(at.key)


async def test_holds_are_counted(directory: str) -> None:
    async with bench(directory) as at:
        await asyncio.gather(*(at.fetcher.hold(at.identity) for _ in range(3)))
        at.fetcher.release(at.key)
        at.fetcher.release(at.key)
        assert not at.store.evict(at.key)
        at.fetcher.release(at.key)
        at.fetcher.release(at.key)
        assert at.store.evict(at.key)


# Trouble at the site


async def test_a_transient_failure_is_tried_again_after_a_growing_jittered_pause(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Fail(Throttled("far", "503")), times=3)
        root = await at.fetcher.ensure(at.identity, 0, BLOCK)
        assert at.read(root, 0, BLOCK) == at.body[:BLOCK]
        assert len(at.far.reads) == 4
        assert at.fetcher.counters.retries == 3
        assert [0.05 <= at.slept[0] <= 0.1, 0.1 <= at.slept[1] <= 0.2, 0.2 <= at.slept[2] <= 0.4] == [True] * 3
        at.fetcher.release(at.key)


async def test_attempts_are_bounded_and_the_next_caller_tries_anew(directory: str) -> None:
    async with bench(directory, attempts_max=3) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Fail(Unavailable("far", "down")), times=3)
        with pytest.raises(Unavailable, match="down"):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        assert len(at.far.reads) == 3
        assert at.fetcher.counters.failures == 1
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        at.fetcher.release(at.key)


async def test_a_body_that_breaks_is_resumed_at_the_block_where_it_broke(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Cut(2 * BLOCK + 100))
        root = await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert at.far.reads == [(PATH, 0, 4 * BLOCK), (PATH, 2 * BLOCK, 2 * BLOCK)]
        assert at.read(root, 0, 4 * BLOCK) == at.body[: 4 * BLOCK]
        at.fetcher.release(at.key)


async def test_a_body_that_always_breaks_but_brings_a_block_each_time_gets_there(directory: str) -> None:
    async with bench(directory, attempts_max=2) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Cut(BLOCK + 1), times=3)
        root = await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert [offset for _, offset, _ in at.far.reads] == [0, BLOCK, 2 * BLOCK, 3 * BLOCK]
        assert at.read(root, 0, 4 * BLOCK) == at.body[: 4 * BLOCK]
        at.fetcher.release(at.key)


@pytest.mark.parametrize("delta", [-1, -BLOCK - 1, 1, BLOCK], ids=["one-less", "a-block-less", "one-more", "a-block-more"])
async def test_a_body_of_the_wrong_length_is_a_wrong_answer_and_tried_again(directory: str, delta: int) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", WrongLength(delta))
        root = await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert at.read(root, 0, 4 * BLOCK) == at.body[: 4 * BLOCK]
        at.fetcher.release(at.key)


async def test_a_site_that_never_sends_the_right_length_is_a_wrong_answer(directory: str) -> None:
    async with bench(directory, attempts_max=2) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", WrongLength(-5), times=9)
        with pytest.raises(WrongAnswer):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        at.fetcher.release(at.key)


async def test_a_connection_that_stays_open_and_sends_nothing_has_failed(directory: str) -> None:
    async with bench(directory, stall_s=0.05) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Stall(asyncio.Event(), after=BLOCK))
        root = await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert at.fetcher.counters.stalls == 1
        assert at.far.reads == [(PATH, 0, 4 * BLOCK), (PATH, BLOCK, 3 * BLOCK)]
        assert at.read(root, 0, 4 * BLOCK) == at.body[: 4 * BLOCK]
        at.fetcher.release(at.key)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(Fail(Denied("far")), Denied, id="denied"),
        pytest.param(Fail(NotFound("far")), NotFound, id="not-found"),
        pytest.param(ChangedEtag("other"), Stale, id="stale"),
    ],
)
async def test_final_failures_are_not_tried_again(directory: str, fault: Fail | ChangedEtag, error: type[Exception]) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", fault, times=9)
        with pytest.raises(error):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        assert len(at.far.reads) == 1
        assert at.slept == []
        at.fetcher.release(at.key)


async def test_a_failure_reaches_every_caller_and_blocks_before_it_are_served(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Cut(2 * BLOCK, Denied("far")), times=9)
        answers = await asyncio.gather(
            *(at.fetcher.ensure(at.identity, offset * BLOCK, BLOCK) for offset in (0, 1)), return_exceptions=True
        )
        assert answers == [at.store.root] * 2
        at.far.heal()
        at.far.inject("read", Fail(Denied("far")))
        broken = await asyncio.gather(
            *(at.fetcher.ensure(at.identity, 4 * BLOCK, BLOCK) for _ in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in broken] == [Denied] * 3
        at.fetcher.release(at.key)


async def test_a_site_that_raises_what_it_should_not_fails_its_callers_and_nothing_else(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Cut(0, RuntimeError("a bug")))  # type: ignore[arg-type]
        with pytest.raises(Unavailable, match="inside"):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        assert [record.levelname for record in caplog.records if "failed inside" in record.message] == ["ERROR"]
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        at.fetcher.release(at.key)


# Replicas


async def test_the_next_replica_goes_on_at_the_same_block_without_a_pause(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity, [at.replica])
        at.far.inject("read", Cut(BLOCK + 7), times=9)
        root = await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert at.near.reads == [(at.replica.path, BLOCK, 3 * BLOCK)]
        assert at.fetcher.counters.failovers == 1
        assert at.slept == []
        assert at.read(root, 0, 4 * BLOCK) == at.body[: 4 * BLOCK]
        at.fetcher.release(at.key)


async def test_a_replica_that_has_lost_the_version_is_left_out_from_then_on(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity, [at.replica])
        at.far.inject("read", ChangedEtag("new"), times=9)
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        await at.fetcher.ensure(at.identity, BLOCK, BLOCK)
        assert len(at.far.reads) == 1
        assert len(at.near.reads) == 2
        at.fetcher.release(at.key)


async def test_a_denial_stays_a_denial_though_another_replica_would_answer(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity, [at.replica])
        at.far.inject("read", Fail(Denied("far")))
        with pytest.raises(Denied):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        assert at.near.reads == []
        at.fetcher.release(at.key)


async def test_an_unknown_site_is_unavailable(directory: str) -> None:
    async with bench(directory, attempts_max=1) as at:
        lost = Identity(SiteName("removed"), PATH, at.identity.version)
        await at.fetcher.hold(lost)
        with pytest.raises(Unavailable, match="not configured"):
            await at.fetcher.ensure(lost, 0, 1)
        at.fetcher.release(lost.key)


# Trouble in the cache


async def test_a_broken_block_is_dropped_and_fetched_again(directory: str) -> None:
    async with bench(directory) as at:
        root = await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, 3 * BLOCK)
        with open(data_path(root, at.key), "r+b") as file:
            file.seek(BLOCK)
            file.write(b"\0" * 10)
        await at.fetcher.drop(at.key, 1)
        await at.fetcher.ensure(at.identity, 0, 3 * BLOCK)
        assert at.far.reads[1:] == [(PATH, BLOCK, BLOCK)]
        assert at.read(root, 0, 3 * BLOCK) == at.body[: 3 * BLOCK]
        await at.fetcher.drop(at.key, 1)  # a complaint that comes late: the block is right again
        assert at.store.missing(at.key, 0, 3 * BLOCK) == []
        assert at.store.counters.blocks_broken == 1
        at.fetcher.release(at.key)


async def test_a_digest_file_cut_off_while_open_is_made_anew(directory: str) -> None:
    async with bench(directory) as at:
        root = await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        with open(sums_path(root, at.key), "r+b") as file:
            file.truncate(HEADER_BYTES)
        await at.fetcher.ensure(at.identity, 0, 2 * BLOCK)
        assert at.read(root, 0, 2 * BLOCK) == at.body[: 2 * BLOCK]
        assert at.store.counters.recreated == 1
        at.fetcher.release(at.key)


@pytest.mark.parametrize("error", [Unavailable, NoSpace], ids=["failing", "full"])
async def test_a_cache_disk_that_takes_nothing_is_bypassed_through_memory(
    directory: str, error: type[Unavailable | NoSpace]
) -> None:
    async with bench(directory) as at:
        assert await at.fetcher.hold(at.identity) == at.store.root
        await at.fetcher.ensure(at.identity, 0, 2 * BLOCK)
        write = ObjectFiles.write

        def refuse(files: ObjectFiles, first: int, body: memoryview) -> None:
            if files.path.startswith(at.store.root):
                raise error(files.path)
            write(files, first, body)

        with patch.object(ObjectFiles, "write", refuse):
            root = await at.fetcher.ensure(at.identity, 0, 6 * BLOCK)
        assert root == at.spill.root
        assert at.read(root, 0, 6 * BLOCK) == at.body[: 6 * BLOCK]
        assert at.fetcher.counters.bypasses == 1
        # A full disk first had our own oldest blocks punched to make room; on a failing one they are still there.
        salvaged = 2 * BLOCK if error is Unavailable else 0
        assert at.fetcher.counters.salvaged_bytes == salvaged
        assert at.far.bytes == 8 * BLOCK - salvaged
        at.fetcher.release(at.key)


async def test_objects_opened_while_the_cache_fails_go_to_memory_and_back_to_the_cache_later(directory: str) -> None:
    async with bench(directory, store_retry_s=30) as at:
        with patch.object(at.store, "prepare", side_effect=Unavailable("disk")) as prepare:
            assert await at.fetcher.hold(at.identity) == at.spill.root
            at.fetcher.release(at.key)
            assert await at.fetcher.hold(at.identity) == at.spill.root
            at.fetcher.release(at.key)
            assert prepare.call_count == 1
        at.clock.advance(31)
        assert await at.fetcher.hold(at.identity) == at.store.root
        at.fetcher.release(at.key)


async def test_without_room_in_either_store_callers_hear_of_it(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        with patch.object(ObjectFiles, "write", side_effect=NoSpace("disk")), pytest.raises(NoSpace):
            await at.fetcher.ensure(at.identity, 0, BLOCK)
        at.fetcher.release(at.key)


async def test_a_range_larger_than_both_stores_is_refused_instead_of_fetched_for_ever(directory: str) -> None:
    async with bench(directory, size=12 * MIB, cap=8 * MIB, request_bytes_max=MIB) as at:
        await at.fetcher.hold(at.identity)
        with pytest.raises(NoSpace, match="evicted faster"):
            await at.fetcher.ensure(at.identity, 0, 12 * MIB)
        assert at.store.totals().used <= 8 * MIB
        at.fetcher.release(at.key)


# Bounds


async def test_no_more_requests_are_in_flight_than_the_budget_has_bytes_for(directory: str) -> None:
    async with bench(directory, size=64 * BLOCK, memory=8 * BLOCK) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall, times=99)
        caller = asyncio.create_task(at.fetcher.ensure(at.identity, 0, 64 * BLOCK))
        await until(stall.reached)
        assert at.memory.used == 8 * BLOCK
        assert len(at.far.reads) == 2
        stall.gate.set()
        await caller
        at.fetcher.release(at.key)


async def test_a_foreground_read_overtakes_prefetches_that_wait(directory: str) -> None:
    async with bench(directory, size=64 * BLOCK, requests_per_site=1) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall)
        at.fetcher.prefetch(at.key, 0, 16 * BLOCK)
        await until(stall.reached)
        reader = asyncio.create_task(at.fetcher.ensure(at.identity, 40 * BLOCK, BLOCK))
        joiner = asyncio.create_task(at.fetcher.ensure(at.identity, 12 * BLOCK, BLOCK))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stall.gate.set()
        await asyncio.gather(reader, joiner)
        await at.fetcher.settled()
        offsets = [offset // BLOCK for _, offset, _ in at.far.reads]
        assert offsets[0] == 0
        assert set(offsets[1:3]) == {40, 12}
        assert offsets[3:] == [4, 8]
        assert at.fetcher.counters.foreground_bytes == 5 * BLOCK
        assert at.fetcher.counters.prefetched_bytes == 12 * BLOCK
        at.fetcher.release(at.key)


async def test_a_prefetch_that_fails_is_not_tried_again_until_somebody_reads(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        at.far.inject("read", Fail(Unavailable("far")))
        at.fetcher.prefetch(at.key, 0, BLOCK)
        await at.fetcher.settled()
        assert len(at.far.reads) == 1
        assert at.slept == []
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        at.fetcher.release(at.key)


async def test_leaving_cancels_fetches_and_tells_their_callers(directory: str) -> None:
    caller = None
    with contextlib.suppress(AssertionError):
        async with bench(directory) as at:
            stall = Stall(asyncio.Event())
            at.far.inject("read", stall)
            await at.fetcher.hold(at.identity)
            caller = asyncio.create_task(at.fetcher.ensure(at.identity, 0, BLOCK))
            await until(stall.reached)
            await at.fetcher.__aexit__(None, None, None)
            with pytest.raises(Unavailable, match="shutting down"):
                await caller
            raise AssertionError("leave the bench without its checks")
    assert caller is not None and caller.done()


# How requests are formed


async def test_prefetches_that_wait_for_their_turn_become_one_request(directory: str) -> None:
    async with bench(directory, size=64 * BLOCK, requests_per_site=1, request_bytes_max=16 * BLOCK) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall)
        at.fetcher.prefetch(at.key, 0, BLOCK)
        await until(stall.reached)
        for block in range(10, 30):
            at.fetcher.prefetch(at.key, block * BLOCK, BLOCK)
        reader = asyncio.create_task(at.fetcher.ensure(at.identity, 25 * BLOCK, 2 * BLOCK))
        await asyncio.sleep(0)
        stall.gate.set()
        await reader
        await at.fetcher.settled()
        assert sorted((offset // BLOCK, length // BLOCK) for _, offset, length in at.far.reads) == [
            (0, 1),
            (10, 15),
            (25, 2),
            (27, 3),
        ]
        at.fetcher.release(at.key)


async def test_near_ranges_are_prefetched_in_one_request_if_the_waste_is_small(directory: str) -> None:
    async with bench(directory, size=64 * BLOCK, request_bytes_max=64 * BLOCK) as at:
        await at.fetcher.hold(at.identity)
        at.fetcher.prefetch_all(at.key, [(40 * BLOCK, BLOCK), (0, 8 * BLOCK), (9 * BLOCK, 8 * BLOCK)])
        await at.fetcher.settled()
        assert at.far.reads == [(PATH, 40 * BLOCK, BLOCK), (PATH, 0, 17 * BLOCK)]
        at.fetcher.release(at.key)


async def test_blocks_that_are_on_their_way_are_not_bridged(directory: str) -> None:
    async with bench(directory, size=64 * BLOCK, request_bytes_max=64 * BLOCK) as at:
        await at.fetcher.hold(at.identity)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall)
        at.fetcher.prefetch(at.key, 10 * BLOCK, BLOCK)
        await until(stall.reached)
        at.fetcher.prefetch(at.key, 0, 21 * BLOCK)
        stall.gate.set()
        await at.fetcher.settled()
        assert at.far.bytes == 21 * BLOCK
        at.fetcher.release(at.key)


async def test_what_is_known_of_a_line_is_told(directory: str) -> None:
    async with bench(directory) as at:
        await at.fetcher.hold(at.identity)
        await at.fetcher.ensure(at.identity, 0, BLOCK)
        (line,) = at.fetcher.lines()
        assert line.site == FAR
        assert (line.seen.window, line.seen.in_flight, line.waiting) == (16, 0, 0)
        assert line.knobs.request_blocks == 4
        at.fetcher.release(at.key)


async def test_a_body_that_trickles_past_its_deadline_has_failed(directory: str) -> None:
    async with bench(directory, stall_s=0.1, trickle_bytes_per_s=1e12, attempts_max=1) as at:
        await at.fetcher.hold(at.identity)
        link = at.fetcher._requests._link(FAR)
        with patch.object(link, "deadline_s", return_value=0.05):
            at.far.inject("read", Stall(asyncio.Event(), after=BLOCK))
            with pytest.raises(Unavailable, match="within"):
                await at.fetcher.ensure(at.identity, 0, 4 * BLOCK)
        assert at.fetcher.counters.stalls == 1
        assert link.in_flight == 0
        at.fetcher.release(at.key)


# A second request where the first is late


async def know_delays(at: Bench) -> None:
    """Have so many requests answered that the line's delay is known. The clock stands still: late is what is not at once."""
    await at.fetcher.hold(at.identity, [at.replica])
    for block in range(20):
        await at.fetcher.ensure(at.identity, block * BLOCK, BLOCK)
    assert at.near.reads == []


async def test_a_late_request_is_sent_to_another_replica_whose_answer_counts(directory: str) -> None:
    async with bench(directory, size=40 * BLOCK) as at:
        await know_delays(at)
        at.far.inject("read", Stall(asyncio.Event()))
        root = await at.fetcher.ensure(at.identity, 30 * BLOCK, 2 * BLOCK)
        assert at.near.reads == [(at.replica.path, 30 * BLOCK, 2 * BLOCK)]
        await at.fetcher.settled()
        assert (at.fetcher.counters.hedges, at.fetcher.counters.hedges_won) == (1, 1)
        assert at.read(root, 30 * BLOCK, 2 * BLOCK) == at.body[30 * BLOCK : 32 * BLOCK]
        assert at.fetcher._requests._link(FAR).in_flight == 0
        at.fetcher.release(at.key)


async def test_a_late_request_wins_when_its_rival_fails(directory: str) -> None:
    async with bench(directory, size=40 * BLOCK) as at:
        await know_delays(at)
        late, failing = Stall(asyncio.Event()), Stall(asyncio.Event())
        at.far.inject("read", late)
        at.near.inject("read", failing)
        at.near.inject("read", Fail(Unavailable("near")))
        caller = asyncio.create_task(at.fetcher.ensure(at.identity, 30 * BLOCK, BLOCK))
        await until(failing.reached)
        late.gate.set()
        root = await caller
        assert (at.fetcher.counters.hedges, at.fetcher.counters.hedges_won) == (1, 0)
        assert at.fetcher.counters.retries == 0
        assert at.read(root, 30 * BLOCK, BLOCK) == at.body[30 * BLOCK : 31 * BLOCK]
        at.fetcher.release(at.key)


async def test_when_both_fail_the_fetch_is_tried_again(directory: str) -> None:
    async with bench(directory, size=40 * BLOCK, stall_s=0.2) as at:
        await know_delays(at)
        at.far.inject("read", Stall(asyncio.Event()))
        at.near.inject("read", Fail(Unavailable("near")))
        root = await at.fetcher.ensure(at.identity, 30 * BLOCK, BLOCK)
        await at.fetcher.settled()
        assert (at.fetcher.counters.hedges, at.fetcher.counters.hedges_won) == (1, 0)
        assert at.fetcher.counters.retries == 1
        assert at.read(root, 30 * BLOCK, BLOCK) == at.body[30 * BLOCK : 31 * BLOCK]
        at.fetcher.release(at.key)


async def test_prefetches_are_never_sent_twice(directory: str) -> None:
    async with bench(directory, size=40 * BLOCK) as at:
        await know_delays(at)
        stall = Stall(asyncio.Event())
        at.far.inject("read", stall)
        at.fetcher.prefetch(at.key, 30 * BLOCK, BLOCK)
        await until(stall.reached)
        stall.gate.set()
        await at.fetcher.settled()
        assert at.near.reads == []
        at.fetcher.release(at.key)


# Against the source

_CALL = st.tuples(st.integers(0, 12 * BLOCK), st.integers(1, 6 * BLOCK), st.sampled_from(list(Priority)))
_FAULT = st.one_of(
    st.builds(Fail, st.just(Unavailable("far"))),
    st.builds(Cut, st.integers(0, 4 * BLOCK)),
    st.builds(WrongLength, st.integers(-BLOCK, BLOCK).filter(bool)),
)


@settings(max_examples=40, deadline=None)
@given(calls=st.lists(_CALL, min_size=1, max_size=12), faults=st.lists(st.tuples(_FAULT, st.integers(1, 8)), max_size=6))
def test_whatever_breaks_callers_get_the_source_or_an_error(
    calls: Sequence[tuple[int, int, Priority]], faults: Sequence[tuple[Fail | Cut | WrongLength, int]]
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="foremount-test-") as directory:
            async with bench(directory, size=11 * BLOCK + 321, memory=6 * BLOCK, requests_per_site=2) as at:
                await at.fetcher.hold(at.identity, [at.replica])
                for fault, when in faults:
                    at.far.inject("read", fault, at=when)
                answers = await asyncio.gather(
                    *(at.fetcher.ensure(at.identity, offset, length, priority) for offset, length, priority in calls),
                    return_exceptions=True,
                )
                for (offset, length, _), answer in zip(calls, answers, strict=True):
                    if isinstance(answer, str):
                        assert at.read(answer, offset, length) == at.body[offset : offset + length]
                    else:
                        assert isinstance(answer, Unavailable)
                at.fetcher.release(at.key)

    asyncio.run(run())
