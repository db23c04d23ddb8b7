"""Time, line and store of a replay."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.traces import FILE, identity
from vfs.extents.layout import BLOCK
from vfs.model import SiteName, SitePath, Version
from vfs.traces.recording import Line
from vfs.traces.simulated import AccountingStore, LineSite, VirtualClock, VirtualLoop


def run(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def test_an_hour_passes_without_waiting() -> None:
    async def main() -> float:
        clock = VirtualClock(asyncio.get_running_loop())
        await asyncio.sleep(3600)
        return clock.monotonic_s()

    assert run(main()) == 3600


def test_work_for_threads_is_done_at_once_and_its_errors_arrive() -> None:
    async def main() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7)

    assert run(main()) == 7


def test_timeout_comes_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(6)
        return asyncio.get_running_loop().time()

    assert run(main()) == 5


def test_waiting_for_what_nobody_will_do_is_a_bug_and_no_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="can't happen"):
        run(main())


def test_a_request_takes_its_first_byte_and_its_bytes() -> None:
    async def main() -> tuple[float, int]:
        site = LineSite(SiteName("s"), Line(0.1, 1e6, 8))
        size = await received(site, 500_000)
        assert (site.requests, site.sent_bytes) == (1, 500_000)
        return asyncio.get_running_loop().time(), size

    took_s, size = run(main())
    assert (took_s, size) == (pytest.approx(0.6), 500_000)


def test_requests_wait_together_and_share_the_line() -> None:
    async def main() -> float:
        site = LineSite(SiteName("s"), Line(0.1, 1e6, 8))
        await asyncio.gather(*(received(site, 500_000) for _ in range(4)))
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(0.1 + 2.0)


async def received(site: LineSite, length: int) -> int:
    return sum([len(piece) async for piece in site.read(SitePath("p"), Version(length), 0, length)])


def test_store_knows_what_was_written_and_what_is_absent() -> None:
    store = AccountingStore(100 * BLOCK)
    key = store.prepare(identity(FILE, 10 * BLOCK))
    assert store.missing(key, 0, 10 * BLOCK) == [range(10)]
    store.write_blocks(key, 2, bytes(2 * BLOCK))
    assert store.missing(key, 0, 10 * BLOCK) == [range(2), range(4, 10)]
    assert store.missing(key, 2 * BLOCK + 5, BLOCK) == []
    assert store.missing(key, 9 * BLOCK, 5 * BLOCK) == [range(9, 10)]


def test_store_over_its_cap_drops_what_was_used_longest_ago_and_never_what_is_held() -> None:
    store = AccountingStore(10 * BLOCK)
    held, old, new = (store.prepare(identity(name, 4 * BLOCK)) for name in ("held", "old", "new"))
    assert store.hold(held)
    for key in (held, old):
        store.write_blocks(key, 0, bytes(4 * BLOCK))
    store.write_blocks(new, 0, bytes(4 * BLOCK))
    assert store.missing(held, 0, 4 * BLOCK) == []
    assert not store.hold(old)


def test_store_full_of_what_is_held_drops_the_segments_written_first() -> None:
    store = AccountingStore(128 * BLOCK)
    key = store.prepare(identity(FILE, 256 * BLOCK))
    store.hold(key)
    for first in (0, 64, 128):
        store.write_blocks(key, first, bytes(64 * BLOCK))
    assert store.missing(key, 0, 192 * BLOCK) == [range(64)]
