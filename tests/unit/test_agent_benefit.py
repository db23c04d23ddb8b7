"""What copies are worth to a mount: `vfs/agent/foresight/benefit.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.unit.test_foresight_board import replica
from vfs.agent.foresight.benefit import CONTROL_BYTES, CONTROL_S, Benefit
from vfs.clock import FakeClock
from vfs.errors import Unavailable
from vfs.extents.fair import Flow, Priority
from vfs.extents.layout import Identity
from vfs.extents.requests import Served
from vfs.foresight.model import FileCopy, ReplicaReads
from vfs.model import SiteName, SitePath, Version

ORIGIN, EVAL = SiteName("origin"), SiteName("eval")
SIZE = 8 << 20
HERE, THERE = Identity(EVAL, SitePath("copies/a"), Version(SIZE)), Identity(ORIGIN, SitePath("a"), Version(SIZE))
COPY = FileCopy(
    path="a", size=SIZE, digest="", origin_at=THERE.path, origin=THERE.version, at=HERE.path, version=HERE.version
)


class Line:
    """The fetch service as far as it is asked: control reads, and what the origin's line is measured to take.

    Attributes:
        mib_s: seconds for a MiB; None: not measured.
    """

    def __init__(self) -> None:
        self.mib_s: float | None = None
        self.controls: list[tuple[Identity, int, int]] = []
        self.fails = False

    def on_served(self, tell: Callable[[Served], None]) -> None:
        self.tell = tell

    def expected_s(self, site: SiteName, length: int) -> float | None:
        assert site == ORIGIN
        return None if self.mib_s is None else self.mib_s * length / (1 << 20)

    async def read(
        self, source: Identity, offset: int, length: int, priority: Priority, *, flow: Flow
    ) -> AsyncIterator[bytes]:
        assert priority is Priority.BACKGROUND
        self.controls.append((source, offset, length))
        if self.fails:
            raise Unavailable(source.path)
        yield b""


class Bench:
    def __init__(self) -> None:
        self.line, self.clock = Line(), FakeClock()
        self._spawned: list[asyncio.Future[None]] = []
        self.benefit = Benefit(self.line, self.clock, self._spawn)  # type: ignore[arg-type]
        self.benefit.put(replica("r", "eval"), [COPY])

    def _spawn(self, work: Awaitable[None]) -> None:
        self._spawned.append(asyncio.ensure_future(work))

    async def served(self, length: int, seconds: float, **more: bool) -> None:
        self.line.tell(Served(HERE, THERE, 0, length, seconds, **more))
        await asyncio.gather(*self._spawned)

    def told(self) -> list[ReplicaReads]:
        return [event.what for event in self.benefit.told("m1") if isinstance(event.what, ReplicaReads)]


async def test_saved_time_is_what_the_measured_origin_would_have_taken_less_what_the_copy_took() -> None:
    bench = Bench()
    bench.line.mib_s = 0.5
    await bench.served(2 << 20, 0.1)
    await bench.served(2 << 20, 0.3)
    (told,) = bench.told()
    assert (told.bytes_served, told.bytes_used, round(told.saved_s, 6)) == (4 << 20, 4 << 20, 1.6)


async def test_nothing_is_said_to_be_saved_before_the_origin_was_measured() -> None:
    bench = Bench()
    await bench.served(1 << 20, 0.1)
    assert [each.saved_s for each in bench.told()] == [0.0]
    bench.line.mib_s = 0.5
    await bench.served(1 << 20, 0.1)
    assert [round(each.saved_s, 6) for each in bench.told()] == [0.8]  # both of them


async def test_origin_is_read_as_a_control_when_a_copy_first_serves_and_once_a_minute() -> None:
    bench = Bench()
    await bench.served(SIZE, 0.1)
    await bench.served(100, 0.1)
    assert bench.line.controls == [(THERE, 0, CONTROL_BYTES)]
    bench.clock.advance(CONTROL_S)
    await bench.served(100, 0.1)
    assert bench.line.controls[1:] == [(THERE, 0, 100)]


async def test_control_read_that_fails_harms_nobody() -> None:
    bench = Bench()
    bench.line.fails = True
    await bench.served(SIZE, 0.1)
    assert len(bench.told()) == 1


async def test_read_that_fell_back_to_the_origin_counts_as_that_alone() -> None:
    bench = Bench()
    await bench.served(SIZE, 0.1, fell_back=True)
    assert [(each.bytes_served, each.fallbacks) for each in bench.told()] == [(0, 1)]
    assert bench.line.controls == []


async def test_copy_on_this_host_is_read_whole_when_it_is_opened_and_its_bytes_are_used_once() -> None:
    bench = Bench()
    bench.line.mib_s = 0.5
    for _ in range(2):
        await bench.served(SIZE, 0.0, opened=True)
    (told,) = bench.told()
    assert (told.bytes_served, told.bytes_used, told.saved_s) == (2 * SIZE, SIZE, 8.0)


async def test_what_was_counted_is_told_still_when_the_copy_is_offered_no_more() -> None:
    bench = Bench()
    await bench.served(100, 0.1)
    bench.benefit.remove(replica("r", "eval").id)
    assert [each.bytes_served for each in bench.told()] == [100]
    assert bench.told() == []
