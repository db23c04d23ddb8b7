"""Brings one replica a step further: looks, asks the plan, carries the step out.

Each step changes the replica's record only if it is still what was looked at, and can be broken off at any await: bytes are
written before the record that names them and removed before the record goes, so that whoever looks next finds all there is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import Clock
from vfs.errors import Denied, ForemountError
from vfs.foresight import keys, ledger
from vfs.foresight.controller.deletions import KEPT_S, unsigned
from vfs.foresight.controller.intake import Marks
from vfs.foresight.controller.leading import LostLead
from vfs.foresight.execution import Executor
from vfs.foresight.governance import merged
from vfs.foresight.keys import Switch
from vfs.foresight.model import (
    Checkpoint,
    Deletion,
    FileCopy,
    Hint,
    LedgerEntry,
    Outcome,
    Phase,
    ReplicaId,
    ReplicaRecord,
    replica_id,
)
from vfs.foresight.oversight import Free, Oversight
from vfs.foresight.placing import Place
from vfs.foresight.plan import Next, Origin, Seen, Step, may_be_last, next_step
from vfs.foresight.priority import priority
from vfs.foresight.stores.protocol import Delete, Item, Put, Store, every, write_all
from vfs.foresight.stores.records import records_below
from vfs.foresight.transfers import ranges_of
from vfs.model import SitePath, join

log = logging.getLogger(__name__)
GATHERED_S = 0.1
"""Between two looks for files that were closed meanwhile: each reads the list of all."""
QUOTA = "waits for room: "
"""Begins the reason of a copy that a quota holds up."""
REST_S = 2.0
"""Between "not offered any more" and removal: every mount has heard of it, twice over."""
_LIVED = (Phase.PUBLISHED, Phase.EXPIRING, Phase.DROPPED)
"""Behind its publication: the time that a replica may live is over for it in these once its lease has ended."""
_BUILT = (Phase.DESIRED, Phase.COPYING, Phase.VERIFIED)
"""In these the plan compares files with copies; elsewhere those records stay unread, as many as the checkpoint has files."""


class Looked(NamedTuple):
    """A replica as it was seen, and at which revisions."""

    seen: Seen
    revisions: dict[str, int]
    priority: float


def record_for(hint: Hint, place: Place, now_ns: int) -> ReplicaRecord:
    """Return the replica that a hint wants at a place, before anything was done for it."""
    name = replica_id(hint.id, hint.path, place.site, place.root)
    return ReplicaRecord(
        id=name,
        hint=hint.id,
        job=hint.job,
        mechanism=hint.mechanism,
        path=hint.path,
        site=place.site,
        root=SitePath(join(place.root, name)),
        phase=Phase.REFUSED if place.refused else Phase.DESIRED,
        step=hint.step,
        labels=place.labels,
        priority=priority(hint.urgency),
        hot=place.hot,
        count=place.count,
        expires_in_s=place.expires_in_s,
        reason=place.refused,
        made_ns=now_ns,
    )


class Reconciler:
    """Carries steps out.

    Args:
        origin: asks the origin what it has of these copies.
        oversight: the policy.
        room: how many bytes of a replica may be copied now, and what limits that.
        copied: told of each file that was.
        proof: makes the record of a copy that was removed: replica, its files, how many were found gone, now.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        clock: Clock,
        *,
        origin: Callable[[ReplicaRecord, Sequence[FileCopy]], Awaitable[Origin]],
        oversight: Oversight | None = None,
        room: Callable[[ReplicaRecord], tuple[int, str]] = lambda replica: (1 << 60, ""),
        copied: Callable[[ReplicaRecord, int], None] = lambda replica, size: None,
        proof: Callable[[ReplicaRecord, Sequence[FileCopy], int, int], Deletion] = unsigned,
    ) -> None:
        self._proof = proof
        self._kept = Marks(store, clock, KEPT_S)
        self._store = store
        self._oversight = oversight or Free()
        self._room = room
        self._copied = copied
        self._executor = executor
        self._clock = clock
        self._origin = origin
        self._resting: dict[ReplicaId, float] = {}
        self._copying: dict[ReplicaId, asyncio.Event] = {}

    async def admit(self, hint: Hint, places: Sequence[Place], *, known: Container[ReplicaId] = ()) -> list[ReplicaId]:
        """Make records of the replicas that a hint wants, where there are none; return the new ones.

        Args:
            known: replicas that need not be asked for.
        """
        places = [place for place in places if replica_id(hint.id, hint.path, place.site, place.root) not in known]
        if not places:
            return []
        made = []
        for place in places:
            record = record_for(hint, place, self._clock.wall_ns())
            key = keys.replica_key(record.id)
            if await self._store.write([Put(key, keys.encode(record))], expect={key: 0}):
                made.append(record.id)
                if record.phase is Phase.REFUSED:
                    log.warning("no copy of %s at %s: %s", record.path, record.site, record.reason)
                    await self._refuse(record)
        return made

    async def look(self, replica: ReplicaId) -> Looked | None:
        """Return what is there now; None: no such replica."""
        kept = await self._store.get(keys.replica_key(replica))
        if kept is None:
            self._resting.pop(replica, None)
            return None
        record: ReplicaRecord = keys.decode(kept.value, ReplicaRecord)
        revisions = {kept.key: kept.revision}
        hint = await self._get(keys.hint_key(record.hint), Hint, revisions)
        checkpoint = await self._get(keys.checkpoint_key(record.path), Checkpoint, revisions)
        why = await self._unwanted(record, hint, checkpoint)
        spent = not why and await self._has_outlived(record, checkpoint)
        why = "it has lived as long as it may" if spent else why
        builds = not why and record.phase in _BUILT
        drops = bool(why) and record.phase is Phase.EXPIRING
        count = len({each.path for each in record.hot}) or (checkpoint.files if checkpoint is not None else 0)
        seen = Seen(
            record,
            wanted=not why,
            why=why,
            checkpoint=checkpoint,
            files=await self._files(record) if builds else None,
            count=count,
            copies=await records_below(self._store, keys.copies_prefix(replica), FileCopy) if builds or drops else None,
            is_open=record.phase is Phase.EXPIRING and await self._is_open(replica),
            rested=self._rested(record),
            spent=spent,
        )
        if record.phase is Phase.EXPIRING and why and seen.rested and not seen.is_open and may_be_last(seen):
            found = await self._origin(record, list((seen.copies or {}).values()))
            seen = dataclasses.replace(seen, origin=found)
        return Looked(seen, revisions, priority(hint.urgency) if hint is not None else record.priority)

    async def _get(self, key: str, kind: type[Any], revisions: dict[str, int]) -> Any:
        kept = await self._store.get(key)
        revisions[key] = 0 if kept is None else kept.revision
        return None if kept is None else keys.decode(kept.value, kind)

    async def _files(self, record: ReplicaRecord) -> dict[str, ManifestFile]:
        """Return the files that belong into a copy, as far as they are complete at the origin."""
        files = await records_below(self._store, keys.files_prefix(record.path), ManifestFile)
        if not record.hot:
            return files
        hot = {each.path for each in record.hot}
        return {path: file for path, file in files.items() if join(record.path, path) in hot}

    async def _unwanted(self, record: ReplicaRecord, hint: Hint | None, checkpoint: Checkpoint | None) -> str:
        """Return why nobody wants a replica any more, "" where somebody does."""
        if hint is None:
            return "its hint is gone"
        if hint.shadow:
            return "its job's predictions came to nothing too often"
        switch = await self._store.get(keys.switch_key(record.mechanism))
        if switch is not None and not keys.decode(switch.value, Switch).on:
            return f"{record.mechanism} is switched off"
        if record.phase is not Phase.REFUSED and (forbidden := self._oversight.forbids(_with_duties(record, checkpoint))):
            return forbidden
        return ""

    async def _has_outlived(self, record: ReplicaRecord, checkpoint: Checkpoint | None) -> bool:
        """Return whether the time is over for which a replica may live after it was published; another save begins anew."""
        return (
            record.phase in _LIVED
            and bool(record.expires_in_s and record.published_ns)
            and record.save_id == (checkpoint.save_id if checkpoint is not None else "")
            and await self._store.get(keys.lives_key(record.id)) is None
        )

    async def _is_open(self, replica: ReplicaId) -> bool:
        return bool((await self._store.range(keys.open_prefix(replica), limit=1)).items)

    def _rested(self, record: ReplicaRecord) -> bool:
        """Return whether it has been out of the offer for long enough, as this controller has seen it."""
        if record.phase is not Phase.EXPIRING:
            self._resting.pop(record.id, None)
            return False
        now_s = self._clock.monotonic_s()
        return now_s - self._resting.setdefault(record.id, now_s) >= REST_S

    def waits_s(self, replica: ReplicaId, otherwise_s: float) -> float | None:
        """Return after how long a replica that is not offered any more is to be looked at again; None: it is offered."""
        since_s = self._resting.get(replica)
        if since_s is None:
            return None
        left_s = REST_S - (self._clock.monotonic_s() - since_s)
        return left_s if left_s > 0 else otherwise_s

    async def step(self, replica: ReplicaId) -> Next:
        """Look once and carry out one step.

        Raises:
            ForemountError: it failed and was noted as an attempt; to be tried again later.
        """
        looked = await self.look(replica)
        if looked is None:
            return Next(Step.WAIT, "it is gone")
        record, next_one = looked.seen.replica, next_step(looked.seen)
        if next_one.step is Step.COPY:
            next_one = self._within_room(record, next_one)
            if next_one.step is Step.WAIT and record.reason != next_one.why:
                log.info("copy of %s to %s waits: %s", record.path, record.site, next_one.why)
                await self._note(record, reason=next_one.why)
        try:
            await self._carry_out(next_one, looked)
        except Denied as exc:
            await self._refuse(record)
            await self._note(record, phase=Phase.REFUSED, reason=str(exc))
        except LostLead:
            raise
        except ForemountError as exc:
            await self._note(record, attempts=record.attempts + 1, reason=str(exc))
            raise
        return next_one

    def _within_room(self, record: ReplicaRecord, what: Next) -> Next:
        """Return the part of a copy that quotas have room for, or to wait."""
        fit, limit = self._fitting(record, what.files, 0)
        return Next(Step.COPY, what.why, tuple(fit)) if fit else Next(Step.WAIT, f"{QUOTA}{limit}")

    def _fitting(
        self, record: ReplicaRecord, files: Iterable[ManifestFile], under_way: int
    ) -> tuple[list[ManifestFile], str]:
        """Return the first of the files, as many as there is room for beside what is under way, and what limits them."""
        left, limit = self._room(record)
        fit, size = [], under_way
        for file in files:
            size += _needed(record, file)
            if size > left:
                break
            fit.append(file)
        return fit, limit

    async def _carry_out(self, what: Next, looked: Looked) -> None:
        seen, record = looked.seen, looked.seen.replica
        match what.step:
            case Step.WAIT:
                return
            case Step.COPY:
                await self._copy(record, what.files, dict(seen.copies or {}), looked.priority)
            case Step.VERIFY:
                await self._verify(looked)
            case Step.PUBLISH:
                await self._publish(looked)
            case Step.AGAIN:
                await self._change(record, looked.revisions, phase=Phase.COPYING, save_id="", reason=what.why)
            case Step.EXPIRE:
                log.info("replica %s of %s at %s expires: %s", record.id, record.path, record.site, what.why)
                await self._change(record, looked.revisions, phase=Phase.EXPIRING, reason=what.why)
            case Step.DROP:
                await self._drop(looked)
            case Step.FORGET:
                await self._forget(record)

    async def _change(self, record: ReplicaRecord, revisions: Mapping[str, int], *more: Put | Delete, **fields: Any) -> bool:
        """Write the record with these fields if nothing that was looked at has changed."""
        changed = msgspec.structs.replace(record, **fields)
        return await self._store.write([Put(keys.replica_key(record.id), keys.encode(changed)), *more], expect=revisions)

    async def _note(self, record: ReplicaRecord, **fields: Any) -> None:
        """Write fields into whatever the record is by now."""
        kept = await self._store.get(keys.replica_key(record.id))
        if kept is not None:
            await self._change(keys.decode(kept.value, ReplicaRecord), {kept.key: kept.revision}, **fields)

    async def _copy(
        self, record: ReplicaRecord, files: Sequence[ManifestFile], copies: dict[str, FileCopy], urgency: float
    ) -> None:
        lock = asyncio.Lock()
        await self._note(record, phase=Phase.COPYING, priority=urgency)
        record = msgspec.structs.replace(record, phase=Phase.COPYING, priority=urgency)
        total = sum(map(_size, copies.values()))

        async def done(copy: FileCopy) -> None:
            nonlocal total
            async with lock:  # each count is made of the one before
                replaced = copies.get(copy.path)
                total += _size(copy) - (_size(replaced) if replaced is not None else 0)
                copies[copy.path] = copy
                await self._report(record, copy, count=len(copies), total=total)

        event = self._copying[record.id] = asyncio.Event()
        try:
            await self._copy_as_they_come(record, files, done, event, copies)
        finally:
            del self._copying[record.id]
        await self._note(record, attempts=0, reason="")

    async def _copy_as_they_come(
        self,
        record: ReplicaRecord,
        files: Sequence[ManifestFile],
        done: Callable[[FileCopy], Awaitable[None]],
        more: asyncio.Event,
        arrived: Mapping[str, FileCopy],
    ) -> None:
        """Copy files, and those that are closed meanwhile: a save goes on, and the line would be idle at each of its ends."""
        begun = {file.path: _needed(record, file) for file in files}
        copies = {asyncio.ensure_future(self._executor.copy(record, files, done))}
        coming, looked_s = asyncio.ensure_future(more.wait()), self._clock.monotonic_s()
        try:
            while copies:
                finished, _ = await asyncio.wait({*copies, coming}, return_when=asyncio.FIRST_COMPLETED)
                for task in finished & copies:
                    copies.discard(task)
                    task.result()
                if coming in finished:
                    await asyncio.sleep(max(0.0, looked_s + GATHERED_S - self._clock.monotonic_s()))
                    looked_s = self._clock.monotonic_s()
                    more.clear()
                    coming = asyncio.ensure_future(more.wait())
                    known = await self._files(record)
                    under_way = sum(size for path, size in begun.items() if path not in arrived)
                    missing = [file for path, file in known.items() if path not in begun and path not in arrived]
                    fresh, _ = self._fitting(record, missing, under_way)
                    begun.update((file.path, _needed(record, file)) for file in fresh)
                    if fresh:
                        copies.add(asyncio.ensure_future(self._executor.copy(record, fresh, done)))
        finally:
            for left in (*copies, coming):
                left.cancel()
            await asyncio.gather(*copies, coming, return_exceptions=True)

    def more(self, replica: ReplicaId) -> None:
        """Something has happened to a replica that is at work: where files are being copied, others may have been closed."""
        if replica in self._copying:
            self._copying[replica].set()

    async def _report(self, record: ReplicaRecord, copy: FileCopy, *, count: int, total: int) -> None:
        """Note a file that was copied, in the record and in the ledger, together.

        Args:
            count, total: files that are there by now, and their bytes.
        """
        size = _size(copy)
        while True:
            kept = await self._store.get(keys.replica_key(record.id))
            if kept is None:
                return
            now: ReplicaRecord = keys.decode(kept.value, ReplicaRecord)
            now = msgspec.structs.replace(now, files=count, bytes=total)
            changes = [Put(kept.key, keys.encode(now)), Put(keys.copies_prefix(record.id) + copy.path, keys.encode(copy))]
            expect = {kept.key: kept.revision}
            changes += await self._accounted(record, lambda entry: ledger.prepared(entry, size, size, copy.cpu_s), expect)
            if await self._store.write(changes, expect=expect):
                self._copied(record, size)
                return

    async def _verify(self, looked: Looked) -> None:
        seen, record = looked.seen, looked.seen.replica
        copies = seen.copies or {}
        assert seen.checkpoint is not None and seen.checkpoint.save_id
        broken = await self._executor.check(record, list(copies.values()))
        if broken:
            log.warning(
                "replica %s of %s at %s: %s files are not as they were", record.id, record.path, record.site, len(broken)
            )
            await write_all(self._store, [Delete(keys.copies_prefix(record.id) + path) for path in broken])
            return
        await self._change(record, looked.revisions, phase=Phase.VERIFIED, save_id=seen.checkpoint.save_id)

    async def _publish(self, looked: Looked) -> None:
        """Offer the copy to all mounts: one change, made only if the hint and the checkpoint are what was looked at."""
        record, now_ns = looked.seen.replica, self._clock.wall_ns()
        more: list[Put | Delete] = []
        if record.expires_in_s:
            lease = await self._store.lease(record.expires_in_s)
            more.append(Put(keys.lives_key(record.id), b"", lease))
        revisions = dict(looked.revisions)
        more += await self._accounted(record, lambda entry: ledger.published(entry, now_ns), revisions)
        fields = {"phase": Phase.PUBLISHED, "ready_ns": now_ns, "published_ns": now_ns, "reason": ""}
        if await self._change(record, revisions, *more, **fields):
            log.info("replica %s of %s at %s is published", record.id, record.path, record.site)

    async def _drop(self, looked: Looked) -> None:
        """Remove the bytes, those too that a copy which was broken off has left."""
        seen, record = looked.seen, looked.seen.replica
        copies = list((seen.copies or {}).values())
        gone = await self._executor.drop(record, copies)
        now_ns = self._clock.wall_ns()
        revisions = {keys.replica_key(record.id): looked.revisions[keys.replica_key(record.id)]}
        more = await self._accounted(record, lambda entry: ledger.dropped(entry, record, now_ns), revisions)
        if gone:
            proof = self._proof(record, copies, gone, now_ns)
            more.append(Put(keys.deleted_key(record.id, now_ns), keys.encode(proof), await self._kept.lease()))
        await self._change(record, revisions, *more, phase=Phase.DROPPED)

    async def _forget(self, record: ReplicaRecord) -> None:
        items, _ = await every(self._store, keys.copies_prefix(record.id))
        await write_all(self._store, [Delete(item.key) for item in items])
        await self._store.write([Delete(keys.replica_key(record.id)), Delete(keys.lives_key(record.id))])

    async def _accounted(
        self, record: ReplicaRecord, change: Callable[[LedgerEntry], LedgerEntry], expect: dict[str, int]
    ) -> list[Put]:
        """Return what changes the replica's line in the ledger, which is expected as it is; nothing where it has none."""
        line = await self._line(record)
        if line is None:
            return []
        expect[line.key] = line.revision
        return [Put(line.key, keys.encode(change(keys.decode(line.value, LedgerEntry))))]

    async def _line(self, record: ReplicaRecord) -> Item | None:
        return await self._store.get(keys.ledger_key(record.job, record.hint))

    async def _refuse(self, record: ReplicaRecord) -> None:
        """Note in the ledger that there will be no copy."""
        line = await self._line(record)
        if line is not None:
            entry: LedgerEntry = keys.decode(line.value, LedgerEntry)
            if entry.outcome is Outcome.OPEN:
                refused = msgspec.structs.replace(entry, outcome=Outcome.REFUSED)
                await self._store.write([Put(line.key, keys.encode(refused))], expect={line.key: line.revision})


def _needed(record: ReplicaRecord, file: ManifestFile) -> int:
    """Return how many bytes of a file are copied."""
    return sum(length for _, length in ranges_of(record, file)) or file.size


def _with_duties(record: ReplicaRecord, checkpoint: Checkpoint | None) -> ReplicaRecord:
    """Return the record with the duties that its checkpoint has by now."""
    if checkpoint is None or checkpoint.labels is None:
        return record
    return msgspec.structs.replace(record, labels=merged(record.labels, checkpoint.labels))


def _size(copy: FileCopy) -> int:
    """Return how many bytes of a file lie at the destination."""
    return sum(length for _, length in copy.ranges) or copy.size
