"""The controller's steps with the real store interface, killed anywhere: nothing is lost, done twice, or shown too early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import FakeClock
from vfs.errors import Denied, ForemountError, NoSpace
from vfs.foresight import keys
from vfs.foresight.controller.intake import SEEN_S, Intake, Marks, accept
from vfs.foresight.controller.reconcile import REST_S, Reconciler
from vfs.foresight.keys import Switch
from vfs.foresight.model import (
    Checkpoint,
    Committed,
    EvaluationCancelled,
    EvaluationResult,
    EvaluationScheduled,
    EvaluationStarted,
    Event,
    FileClosed,
    FileCopy,
    Happening,
    Hint,
    JobName,
    LedgerEntry,
    Mechanism,
    Outcome,
    Phase,
    ReplicaRecord,
    SaveBegun,
)
from vfs.foresight.placing import Place
from vfs.foresight.plan import Origin, Step
from vfs.foresight.stores.memory import Memory
from vfs.foresight.stores.protocol import Delete, Put, every
from vfs.model import LakePath, SiteName, SitePath, Version

JOB, EVAL = JobName("run7"), SiteName("eval")
PLACE = Place(site=EVAL, root=SitePath("copies"))
PATH = LakePath("ckpt/step_1000")


class Killed(BaseException):
    """The process is gone: nothing after this is done, nothing is cleaned up."""


class Fuse:
    """Lets so many effects through and then kills, before or after the next one."""

    def __init__(self) -> None:
        self.left = -1
        self.before = False

    async def through(self, effect: Callable[[], Awaitable[Any]]) -> Any:
        self.left -= self.left >= 0
        kill = self.left == 0
        if kill and self.before:
            raise Killed
        answer = await effect()
        if kill:
            raise Killed
        return answer


class Mortal(Memory):
    """A store whose writer may die at any write. What was written stays."""

    def __init__(self, clock: FakeClock, fuse: Fuse) -> None:
        super().__init__(clock)
        self._fuse = fuse

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        written: bool = await self._fuse.through(lambda: super(Mortal, self).write(changes, expect=expect))
        return written


class Destination:
    """A site's bytes, and the `Executor` that brings and removes them; a file is (content version, intact).

    Attributes:
        origin: what the origin has now, by site path.
        full, denied: what it says to a copy.
    """

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self.origin: dict[SitePath, Version] = {}
        self.bytes: dict[SitePath, Version] = {}
        self.versions = 0
        self.full = self.denied = False
        self.copied = 0
        self.on_drop: Callable[[ReplicaRecord], None] = lambda replica: None

    async def copy(
        self, replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
    ) -> None:
        if self.denied:
            raise Denied(replica.path, "rule residency: may lie in eu")
        for file in files:
            if self.full:
                raise NoSpace(replica.site, "is full")
            if self.origin.get(file.at) != file.version:
                raise ForemountError(file.at, "has moved on")
            at = SitePath(f"{replica.root}/{file.path}")
            self.versions += 1
            version = Version(file.size, self.versions)

            async def arrive(at: SitePath = at, version: Version = version) -> None:
                self.bytes[at] = version
                self.copied += 1

            await self._fuse.through(arrive)
            await done(
                FileCopy(
                    path=file.path,
                    size=file.size,
                    digest=file.digest,
                    origin_at=file.at,
                    origin=file.version,
                    at=at,
                    version=version,
                )
            )

    async def check(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> list[str]:
        return [copy.path for copy in copies if self.bytes.get(copy.at) != copy.version]

    async def drop(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> int:
        self.on_drop(replica)
        there = [at for at in self.bytes if at.startswith(replica.root + "/")]
        for at in there:

            async def leave(at: SitePath = at) -> None:
                self.bytes.pop(at, None)

            await self._fuse.through(leave)
        return len(there)

    async def whole(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> Origin:
        there = [self.origin.get(copy.origin_at) == copy.origin for copy in copies]
        gone = [copy.origin_at not in self.origin for copy in copies]
        return Origin.WHOLE if all(there) else Origin.GONE if all(gone) else Origin.DAMAGED


class World:
    """A store, an origin, a destination, and controllers that come and go."""

    def __init__(self) -> None:
        self.fuse = Fuse()
        self.clock = FakeClock()
        self.store = Mortal(self.clock, self.fuse)
        self.site = Destination(self.fuse)
        self.saves = self.events = 0
        self.files: list[ManifestFile] = []
        self.place = PLACE
        self.restart()

    def restart(self) -> None:
        """A controller that remembers nothing."""
        self.fuse.left = -1
        self.marks = Marks(self.store, self.clock, SEEN_S)
        self.intake = Intake(self.store, self.clock)
        self.reconciler = Reconciler(self.store, self.site, self.clock, origin=self.site.whole)

    async def tell(self, what: Happening) -> Event:
        """Say something until it was accepted: a sender that gets no answer asks the next controller."""
        self.events += 1
        event = Event(id=f"e{self.events}", job=JOB, what=what, source="trainer", seq=self.events)
        while True:
            try:
                await accept(self.store, event, self.marks, self.clock.wall_ns())
                return event
            except Killed:
                self.restart()

    async def settle(self) -> None:
        """Let one controller work until there is nothing to do, or it dies."""
        await self.intake.take_in()
        for item in (await every(self.store, keys.HINTS))[0]:
            hint: Hint = keys.decode(item.value, Hint)
            if not hint.shadow:
                await self.reconciler.admit(hint, [self.place])
        for replica in await self.replicas():
            for _ in range(40):
                try:
                    if (await self.reconciler.step(replica.id)).step is Step.WAIT:
                        break
                except ForemountError:
                    break
            else:
                raise AssertionError(f"{replica} never comes to rest")

    async def replicas(self) -> list[ReplicaRecord]:
        return [keys.decode(item.value, ReplicaRecord) for item in (await every(self.store, keys.REPLICAS))[0]]

    async def entries(self) -> list[LedgerEntry]:
        return [keys.decode(item.value, LedgerEntry) for item in (await every(self.store, keys.LEDGER))[0]]

    def write_file(self, name: str) -> ManifestFile:
        self.site.versions += 1
        at, version = SitePath(f"lake/{PATH}/{name}"), Version(100, self.site.versions)
        self.site.origin[at] = version
        return ManifestFile(name, 100, f"digest-{version.mtime_ns}", at, version)


@pytest.fixture
def world() -> World:
    return World()


async def published(world: World) -> ReplicaRecord:
    """Return a replica of three files that is published for an announced evaluation."""
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    files = [world.write_file(name) for name in ("x", "y", ".metadata")]
    for file in files:
        await world.tell(FileClosed(path=PATH, file=file))
    await world.settle()
    await world.tell(Committed(step=1000, path=PATH, save_id="s1", marker=".metadata", files=tuple(files)))
    await world.settle()
    (replica,) = await world.replicas()
    return replica


async def gone(world: World) -> None:
    world.clock.advance(REST_S)
    await world.settle()
    world.clock.advance(REST_S)
    await world.settle()


async def test_closed_files_are_copied_before_the_commit_and_shown_after_it(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    file = world.write_file("x")
    await world.tell(FileClosed(path=PATH, file=file))
    await world.settle()
    (replica,) = await world.replicas()
    assert (replica.phase, replica.files, replica.bytes) == (Phase.COPYING, 1, 100)
    await world.tell(Committed(step=1000, path=PATH, save_id="s1", marker="x", files=(file,)))
    await world.settle()
    (replica,) = await world.replicas()
    assert (replica.phase, replica.save_id) == (Phase.PUBLISHED, "s1")
    assert world.site.copied == 1


async def test_file_that_is_closed_while_another_is_copied_does_not_wait_for_it(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    before, first, second = (world.write_file(name) for name in ("w", "x", "y"))
    await world.tell(FileClosed(path=PATH, file=before))
    await world.settle()
    await world.tell(FileClosed(path=PATH, file=first))
    await world.intake.take_in()
    (replica,) = await world.replicas()
    let_go, begun = asyncio.Event(), asyncio.Queue[list[str]]()
    copy = world.site.copy

    async def slow(
        replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
    ) -> None:
        begun.put_nowait([file.path for file in files])
        await let_go.wait()
        await copy(replica, files, done)

    world.site.copy = slow  # type: ignore[method-assign]
    step = asyncio.ensure_future(world.reconciler.step(replica.id))
    assert await begun.get() == ["x"]
    await world.tell(FileClosed(path=PATH, file=second))
    await world.intake.take_in()
    world.reconciler.more(replica.id)
    assert await begun.get() == ["y"]
    let_go.set()
    assert (await step).step is Step.COPY
    (replica,) = await world.replicas()
    assert (replica.files, world.site.copied) == (3, 3)


async def test_commit_whose_files_are_not_all_there_publishes_nothing(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    files = (world.write_file("x"), world.write_file("y"))
    await world.tell(Committed(step=1000, path=PATH, save_id="s1", marker="y", files=files))
    del world.site.origin[files[0].at]
    await world.settle()
    (replica,) = await world.replicas()
    assert (replica.phase, replica.attempts) == (Phase.COPYING, 1)


async def test_copy_that_was_changed_at_the_destination_is_made_again_before_it_is_shown(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    file = world.write_file("x")
    await world.tell(FileClosed(path=PATH, file=file))
    await world.settle()
    (at,) = world.site.bytes
    world.site.bytes[at] = Version(99)
    await world.tell(Committed(step=1000, path=PATH, save_id="s1", marker="x", files=(file,)))
    await world.settle()
    assert [replica.phase for replica in await world.replicas()] == [Phase.PUBLISHED]
    assert world.site.copied == 2


async def test_result_takes_the_copy_away_in_two_passes(world: World) -> None:
    await published(world)
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await world.settle()
    assert [replica.phase for replica in await world.replicas()] == [Phase.EXPIRING]
    assert len(world.site.bytes) == 3, "mounts may still read"
    await gone(world)
    assert (world.site.bytes, await world.replicas()) == ({}, [])


async def test_copy_that_is_open_is_never_dropped(world: World) -> None:
    replica = await published(world)
    await world.store.write([Put(keys.open_prefix(replica.id) + "host", b"")])
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await gone(world)
    assert len(world.site.bytes) == 3
    await world.store.write([Delete(keys.open_prefix(replica.id) + "host")])
    await gone(world)
    assert world.site.bytes == {}


@pytest.mark.parametrize(("lost", "kept"), [(0, 0), (1, 3), (3, 0)], ids=["whole", "damaged", "deleted"])
async def test_last_good_copy_is_never_dropped_and_copies_follow_a_deleted_origin(world: World, lost: int, kept: int) -> None:
    await published(world)
    for at in list(world.site.origin)[:lost]:
        del world.site.origin[at]
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await gone(world)
    assert len(world.site.bytes) == kept


async def test_hint_that_lives_out_its_time_takes_the_copy_along_as_a_miss(world: World) -> None:
    await published(world)
    (entry,) = await world.entries()
    world.clock.advance(7 * 3600)
    await world.intake.hint_ended(JOB, entry.hint)
    await gone(world)
    (entry,) = await world.entries()
    assert (entry.outcome, entry.bytes_prepared, entry.bytes_used) == (Outcome.MISS, 300, 0)
    assert entry.byte_hours > 300 * 7
    assert world.site.bytes == {}


async def test_copy_that_has_lived_as_long_as_it_may_goes_and_is_not_made_anew_while_its_hint_lives(world: World) -> None:
    world.place = msgspec.structs.replace(PLACE, expires_in_s=60.0)
    await published(world)
    world.clock.advance(61)
    await world.settle()
    (replica,) = await world.replicas()
    assert (replica.phase, replica.reason) == (Phase.EXPIRING, "it has lived as long as it may")
    await gone(world)
    world.restart()
    await gone(world)
    (replica,) = await world.replicas()
    assert (replica.phase, world.site.bytes, world.site.copied) == (Phase.DROPPED, {}, 3)
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await gone(world)
    assert await world.replicas() == []


async def test_checkpoint_that_is_saved_anew_has_a_copy_again_whose_time_begins_anew(world: World) -> None:
    world.place = msgspec.structs.replace(PLACE, expires_in_s=60.0)
    await published(world)
    world.clock.advance(61)
    await gone(world)
    await world.tell(SaveBegun(step=1000, path=PATH))
    files = tuple(world.write_file(name) for name in ("x", "y", ".metadata"))
    await world.tell(Committed(step=1000, path=PATH, save_id="s2", marker=".metadata", files=files))
    await world.settle()  # the record goes,
    await world.settle()  # and another one comes
    (replica,) = await world.replicas()
    assert (replica.phase, replica.save_id, len(world.site.bytes)) == (Phase.PUBLISHED, "s2", 3)


async def test_ledger_says_hit_and_lead_time_of_a_copy_that_was_ready(world: World) -> None:
    await published(world)
    world.clock.advance(60)
    await world.tell(EvaluationStarted(evaluation="a", step=1000, site=EVAL))
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await world.settle()
    (entry,) = await world.entries()
    assert (entry.outcome, entry.lead_s, entry.wan_bytes) == (Outcome.HIT, 60.0, 300)
    assert entry.committed_ns <= entry.ready_ns < entry.started_ns <= entry.result_ns


async def test_ledger_says_late_where_the_evaluation_came_first(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    await world.tell(EvaluationStarted(evaluation="a", step=1000, site=EVAL))
    await world.settle()
    assert [entry.outcome for entry in await world.entries()] == [Outcome.LATE]


async def test_refused_copy_is_not_tried_again_and_stands_in_the_ledger(world: World) -> None:
    world.site.denied = True
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    await world.tell(SaveBegun(step=1000, path=PATH))
    await world.tell(FileClosed(path=PATH, file=world.write_file("x")))
    await world.settle()
    (replica,) = await world.replicas()
    assert replica.phase is Phase.REFUSED
    assert "residency" in replica.reason
    assert [entry.outcome for entry in await world.entries()] == [Outcome.REFUSED]


async def test_mechanism_that_is_switched_off_takes_its_copies_away_and_brings_them_back(world: World) -> None:
    await published(world)
    key = keys.switch_key(Mechanism.CHECKPOINTS)
    await world.store.write([Put(key, keys.encode(Switch(on=False)))])
    await world.settle()
    assert [replica.phase for replica in await world.replicas()] == [Phase.EXPIRING]
    await world.store.write([Put(key, keys.encode(Switch(on=True)))])
    await world.settle()
    assert [replica.phase for replica in await world.replicas()] == [Phase.PUBLISHED]
    assert world.site.copied == 3, "what lay there was used again"


async def test_saving_a_path_anew_takes_the_old_copy_away_first(world: World) -> None:
    replica = await published(world)
    await world.tell(SaveBegun(step=1000, path=PATH))
    await world.settle()
    (replica,) = await world.replicas()
    assert replica.phase is not Phase.PUBLISHED
    files = tuple(world.write_file(name) for name in ("x", "y", ".metadata"))
    await world.tell(Committed(step=1000, path=PATH, save_id="s2", marker=".metadata", files=files))
    await world.settle()
    (replica,) = await world.replicas()
    assert (replica.phase, replica.save_id, world.site.copied) == (Phase.PUBLISHED, "s2", 6)
    assert (replica.files, replica.bytes) == (3, 300), "a file that is copied anew counts once"


async def test_records_of_files_are_read_only_where_a_step_depends_on_them(world: World) -> None:
    replica = await published(world)
    looked = await world.reconciler.look(replica.id)
    assert looked is not None
    assert (looked.seen.files, looked.seen.copies) == (None, None)
    await world.tell(EvaluationResult(evaluation="a", step=1000, site=EVAL))
    await world.settle()
    looked = await world.reconciler.look(replica.id)
    assert looked is not None
    assert (looked.seen.files, sorted(looked.seen.copies or ())) == (None, [".metadata", "x", "y"]), "a drop removes these"


async def test_event_that_is_sent_twice_counts_once(world: World) -> None:
    event = await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))
    assert not await accept(world.store, event, world.marks, world.clock.wall_ns())
    await world.intake.take_in()
    assert not await accept(world.store, event, world.marks, world.clock.wall_ns())
    assert await world.intake.take_in() == 0


async def test_events_of_a_source_are_taken_in_by_number_and_a_gap_is_waited_for(world: World) -> None:
    def saved(seq: int) -> Event:
        return Event(id=f"n{seq}", job=JOB, what=SaveBegun(step=seq, path=PATH), source="mount", seq=seq)

    for seq in (3, 2):
        await accept(world.store, saved(seq), world.marks, world.clock.wall_ns())
    assert await world.intake.take_in() == 0
    await accept(world.store, saved(1), world.marks, world.clock.wall_ns())
    assert await world.intake.take_in() == 3
    await accept(world.store, saved(5), world.marks, world.clock.wall_ns())
    assert await world.intake.take_in() == 0
    world.clock.advance(10)
    assert await world.intake.take_in() == 1, "what never comes is not waited for without end"


async def scheduled(world: World) -> None:
    await world.tell(EvaluationScheduled(evaluation="a", step=1000, site=EVAL))


async def cancelled(world: World) -> None:
    await world.tell(EvaluationCancelled(evaluation="a", step=1000, site=EVAL))


async def written(world: World) -> None:
    await world.tell(SaveBegun(step=1000, path=PATH))
    world.files = [world.write_file(name) for name in ("x", "y")]
    for file in world.files:
        await world.tell(FileClosed(path=PATH, file=file))


async def committed(world: World) -> None:
    world.saves += 1
    await world.tell(Committed(step=1000, path=PATH, save_id=f"s{world.saves}", marker="y", files=tuple(world.files)))


async def worked(world: World) -> None:
    with contextlib.suppress(Killed):
        await world.settle()
        return
    left = world.fuse.left
    world.restart()
    world.fuse.left = left


async def rested(world: World) -> None:
    world.clock.advance(REST_S)


LIVES: dict[str, list[Callable[[World], Awaitable[None]]]] = {
    "published": [scheduled, written, worked, committed, worked],
    "published and dropped": [scheduled, written, committed, worked, cancelled, worked, rested, worked],
    "cancelled in mid-copy": [scheduled, written, worked, cancelled, worked, rested, worked],
    "wanted again in mid-drop": [scheduled, written, committed, worked, cancelled, worked, rested, worked, scheduled, worked],
    "saved anew": [scheduled, written, committed, worked, written, worked, rested, committed, worked],
}


@pytest.mark.parametrize("life", LIVES)
async def test_controller_killed_at_every_step_leaves_nothing_undone(life: str) -> None:
    """Kill before and after each effect of each life in turn; another controller then goes on with what comes next."""
    effect, died = 0, True
    while died:
        effect += 1
        for before in (True, False):
            world = World()
            world.fuse.left, world.fuse.before = effect, before
            for happens in LIVES[life]:
                await happens(world)
                assert_sound(world, await world.replicas(), f"killed at effect {effect}")
            died = world.fuse.left <= 0
            world.fuse.left = -1
            for _ in range(3):
                world.clock.advance(REST_S)
                await world.settle()
            replicas = await world.replicas()
            assert_sound(world, replicas, f"killed at effect {effect}")
            if LIVES[life][-2] is scheduled or life in ("published", "saved anew"):
                assert [replica.phase for replica in replicas] == [Phase.PUBLISHED], f"killed at effect {effect}"
            else:
                assert (replicas, world.site.bytes) == ([], {}), f"killed at effect {effect}"
    assert effect > 5, "no step was ever interrupted"


def assert_sound(world: World, replicas: Sequence[ReplicaRecord], when: str) -> None:
    """What is published is there, whole."""
    for replica in replicas:
        if replica.phase is Phase.PUBLISHED:
            prefix = keys.copies_prefix(replica.id)
            copies = [
                keys.decode(item.value, FileCopy) for key, (item, _) in world.store._items.items() if key.startswith(prefix)
            ]
            assert len(copies) == 2, when
            assert all(world.site.bytes.get(copy.at) == copy.version for copy in copies), when


class Controllers(RuleBasedStateMachine):
    """Any order of events, readers, time, faults, and controllers that die at any write or any file."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.files: dict[str, ManifestFile] = {}
        self.committed = ""
        self.world.site.on_drop = self.check_drop

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.ensure_future(work, loop=self.loop))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        world = self.world
        world.restart()
        world.site.full = world.site.denied = False
        for _ in range(3):
            world.clock.advance(REST_S)
            self.run(world.settle())
        self.check_end()
        self.loop.close()

    def check_end(self) -> None:
        """Whoever comes last brings everything where it belongs."""
        wanted = {item.key for item in self.run(every(self.world.store, keys.HINTS))[0]}
        opened = self.run(every(self.world.store, keys.OPEN))[0]
        replicas = self.run(self.world.replicas())
        for replica in replicas:
            if keys.hint_key(replica.hint) in wanted:
                assert replica.phase in (Phase.PUBLISHED, Phase.REFUSED) or not self.committed or self.damaged()
            else:
                assert replica.phase is Phase.EXPIRING
                assert opened or self.damaged(), "only what is open or the last good copy stays"
        if not replicas:
            assert self.world.site.bytes == {}, "nothing is left behind"

    def damaged(self) -> bool:
        return any(self.world.site.origin.get(file.at) != file.version for file in self.files.values())

    def check_drop(self, replica: ReplicaRecord) -> None:
        assert replica.phase is Phase.EXPIRING
        assert not [key for key in self.world.store._items if key.startswith(keys.open_prefix(replica.id))]

    @rule()
    def save_two_files(self) -> None:
        self.schedule("a")
        self.begin_save()
        self.close_file("x")
        self.close_file("y")

    @rule(opened=st.booleans())
    def publish(self, opened: bool) -> None:
        self.save_two_files()
        self.commit()
        self.work()
        if opened:
            self.open()

    @rule(evaluation=st.sampled_from("ab"))
    def cancel_and_rest(self, evaluation: str) -> None:
        self.end(evaluation, False)
        self.work()
        self.wait(REST_S)
        self.work()

    @rule(evaluation=st.sampled_from("ab"))
    def schedule(self, evaluation: str) -> None:
        self.run(self.world.tell(EvaluationScheduled(evaluation=evaluation, step=1000, site=EVAL)))

    @rule(evaluation=st.sampled_from("ab"), result=st.booleans())
    def end(self, evaluation: str, result: bool) -> None:
        kind = EvaluationResult if result else EvaluationCancelled
        self.run(self.world.tell(kind(evaluation=evaluation, step=1000, site=EVAL)))

    @rule()
    def begin_save(self) -> None:
        self.files, self.committed = {}, ""
        self.run(self.world.tell(SaveBegun(step=1000, path=PATH)))

    @precondition(lambda self: not self.committed)
    @rule(name=st.sampled_from(["x", "y", "z"]))
    def close_file(self, name: str) -> None:
        self.files[name] = self.world.write_file(name)
        self.run(self.world.tell(FileClosed(path=PATH, file=self.files[name])))

    @precondition(lambda self: self.files and not self.committed)
    @rule()
    def commit(self) -> None:
        self.world.saves += 1
        self.committed = f"s{self.world.saves}"
        files = tuple(self.files.values())
        self.run(self.world.tell(Committed(step=1000, path=PATH, save_id=self.committed, marker="x", files=files)))

    @rule()
    def work(self) -> None:
        self.run(self.world.settle())

    @rule(effects=st.integers(1, 25), before=st.booleans())
    def work_and_die(self, effects: int, before: bool) -> None:
        self.world.fuse.left, self.world.fuse.before = effects, before
        try:
            self.run(self.world.settle())
        except Killed:
            pass
        self.world.restart()

    @rule(seconds=st.sampled_from([REST_S, 60.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        self.world.site.full = full

    @rule(index=st.integers(0, 3))
    def spoil_a_copy_that_is_not_shown(self, index: int) -> None:
        if any(replica.phase in (Phase.PUBLISHED, Phase.VERIFIED) for replica in self.run(self.world.replicas())):
            return  # nobody can help that: its readers compare the version with what was published
        for at in list(self.world.site.bytes)[index : index + 1]:
            self.world.site.bytes[at] = Version(1)

    @precondition(lambda self: self.world.site.bytes)
    @rule()
    def open(self) -> None:
        for replica in self.run(self.world.replicas()):
            if replica.phase is Phase.PUBLISHED:
                self.run(self.world.store.write([Put(keys.open_prefix(replica.id) + "host", b"")]))

    @rule()
    def close(self) -> None:
        for item in self.run(every(self.world.store, keys.OPEN))[0]:
            self.run(self.world.store.write([Delete(item.key)]))

    @precondition(lambda self: self.files)
    @rule(all_of_it=st.booleans())
    def lose_the_origin(self, all_of_it: bool) -> None:
        for file in list(self.files.values())[: None if all_of_it else 1]:
            self.world.site.origin.pop(file.at, None)

    @invariant()
    def what_is_published_is_complete_and_committed(self) -> None:
        if not hasattr(self, "world"):
            return
        for replica in self.run(self.world.replicas()):
            if replica.phase is not Phase.PUBLISHED:
                continue
            assert replica.save_id
            kept = self.run(self.world.store.get(keys.checkpoint_key(PATH)))
            checkpoint: Checkpoint = keys.decode(kept.value, Checkpoint)
            copies = [
                keys.decode(item.value, FileCopy)
                for item in self.run(every(self.world.store, keys.copies_prefix(replica.id)))[0]
            ]
            assert all(self.world.site.bytes[copy.at] == copy.version for copy in copies)
            if checkpoint.save_id == replica.save_id:
                assert len(copies) >= checkpoint.files


TestControllers = Controllers.TestCase
TestControllers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
