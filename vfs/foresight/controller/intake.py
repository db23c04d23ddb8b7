"""Events in: accepted once and durably by whichever controller is asked, taken in by the one that leads, in order.

Flow: `accept` writes the event under its source and number, and a mark of its id, together. `Intake.take_in` reads what has
been accepted, asks the predictor, and writes what follows (the job, hints, ledger, and that the event is done) together: a
controller that is killed has done all of it or nothing.

An event whose predecessor is missing waits for it; after `GAP_S` it goes on without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import Clock
from vfs.errors import InvalidConfig
from vfs.foresight import keys
from vfs.foresight.governance import merged
from vfs.foresight.jobs import JobState, with_sequence
from vfs.foresight.ledger import begun, committed, ended, read_from, started
from vfs.foresight.model import (
    Checkpoint,
    Committed,
    EvaluationResult,
    Event,
    FileClosed,
    HintId,
    JobName,
    LedgerEntry,
    ReplicaReads,
    SaveBegun,
)
from vfs.foresight.oversight import Free
from vfs.foresight.predictor import Prediction, StopBelow, expired, predict
from vfs.foresight.stores.protocol import CHANGES_MAX, Delete, Item, LeaseId, Put, Store, every, write_all
from vfs.model import LakePath

log = logging.getLogger(__name__)
SEEN_S = 7 * 24 * 3600.0
FILES_S = 14 * 24 * 3600.0
"""How long is remembered which files a checkpoint consists of; a copy keeps a list of its own."""
MARKS_PER_LEASE_S = 3600.0
JOBS_AT_ONCE = 64
GAP_S = 10.0
NAME_CHARS_MAX = 200


class Marks:
    """Leases that many keys share, a new one each hour: what is only to be forgotten some day needs none of its own."""

    def __init__(self, store: Store, clock: Clock, ttl_s: float) -> None:
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._lease: LeaseId | None = None
        self._since_s = 0.0
        self._lock = asyncio.Lock()

    async def lease(self) -> LeaseId:
        """Return one that lives for at least `ttl_s` from now."""
        async with self._lock:
            now_s = self._clock.monotonic_s()
            if self._lease is None or now_s - self._since_s > MARKS_PER_LEASE_S:
                self._lease = await self._store.lease(self._ttl_s + 2 * MARKS_PER_LEASE_S)
                self._since_s = now_s
            return self._lease


async def accept(store: Store, event: Event, marks: Marks, now_ns: int) -> bool:
    """Write an event down; False: it had been accepted before.

    Raises:
        InvalidConfig: it names no job, or has no id.
        Unavailable: to be sent again; what is sent twice counts once.
    """
    for name, value in (("id", event.id), ("job", event.job)):
        if not 0 < len(value) <= NAME_CHARS_MAX:
            raise InvalidConfig(f"event: {name}", f"has {len(value)} characters", f"write 1 to {NAME_CHARS_MAX}")
    seen = keys.seen_key(event.id)
    changes = [
        Put(keys.inbox_key(event.job, event.source, event.seq or event.at_ns or now_ns, event.id), keys.encode(event)),
        Put(seen, b"", await marks.lease()),
    ]
    return await store.write(changes, expect={seen: 0})


class Intake:
    """What the leader does with events.

    Args:
        by: whose clock it is.

    Attributes:
        waiting: keys of events that wait for one before them, with the time when they were found.
    """

    def __init__(self, store: Store, clock: Clock, stop_below: StopBelow | None = None, by: str = "") -> None:
        self._by = by
        self._store = store
        self._clock = clock
        self._stop_below = stop_below or Free().stop_below
        self._files = Marks(store, clock, FILES_S)
        self.waiting: dict[str, float] = {}

    async def take_in(self) -> int:
        """Take in all that may be, the jobs beside one another; return how many events were."""
        items, _ = await every(self._store, keys.INBOX)
        jobs: dict[str, list[Item]] = {}
        for item in items:
            jobs.setdefault(item.key.split("/")[1], []).append(item)
        found = list(jobs.values())
        taken = 0
        for start in range(0, len(found), JOBS_AT_ONCE):
            taken += sum(await asyncio.gather(*map(self._take_all, found[start : start + JOBS_AT_ONCE])))
        here = {item.key for item in items}
        self.waiting = {key: since for key, since in self.waiting.items() if key in here}
        return taken

    async def _take_all(self, items: Sequence[Item]) -> int:
        return sum([await self._take(item) for item in items])

    async def _take(self, item: Item) -> bool:
        event: Event = keys.decode(item.value, Event)
        while True:
            kept = await self._store.get(keys.job_key(event.job))
            job: JobState = keys.decode(kept.value, JobState) if kept is not None else JobState(job=event.job)
            last = job.sequences.get(event.source, 0)
            if event.seq and event.seq > last + 1 and not self._gave_up(item.key):
                return False
            self.waiting.pop(item.key, None)
            expect = {item.key: item.revision, keys.job_key(event.job): 0 if kept is None else kept.revision}
            if event.seq and event.seq <= last:
                log.warning("event %s of %s comes too late and is left out: number %s", event.id, event.job, event.seq)
                done = await self._store.write([Delete(item.key)], expect=expect)
            else:
                done = await self._apply(event, job, item, expect)
            if done or await self._store.get(item.key) is None:
                return done

    def _gave_up(self, key: str) -> bool:
        """Return whether an event has waited long enough for the one before it."""
        now_s = self._clock.monotonic_s()
        return now_s - self.waiting.setdefault(key, now_s) >= GAP_S

    async def _apply(self, event: Event, job: JobState, item: Item, expect: dict[str, int]) -> bool:
        now_ns = self._clock.wall_ns()
        prediction = predict(job, event.what, now_ns, self._stop_below, self._by)
        after = with_sequence(prediction.job, event.source, event.seq)
        changes: list[Put | Delete] = [Delete(item.key), Put(keys.job_key(event.job), keys.encode(after))]
        changes += await self._checkpoint(event, now_ns, expect)
        leases: list[LeaseId] = []
        for hint in prediction.made:
            leases.append(await self._store.lease(hint.ttl_s))
            changes.append(Put(keys.hint_key(hint.id), keys.encode(hint), leases[-1]))
        changes += [Delete(keys.hint_key(gone.hint)) for gone in prediction.withdrawn]
        changes += await self._entries(event, prediction, now_ns, expect)
        assert len(changes) <= CHANGES_MAX
        done = await self._store.write(changes, expect=expect)
        if not done:  # where it raises, the hints may be there: their leases are not touched, and end by themselves
            for lease in leases:
                await self._store.revoke(lease)
        for gone in prediction.withdrawn:
            log.info("hint %s of %s withdrawn: %s", gone.hint, event.job, gone.why)
        return done

    async def _checkpoint(self, event: Event, now_ns: int, expect: dict[str, int]) -> list[Put | Delete]:
        """Return what an event changes in what is known of a checkpoint. Its files are written at once: no harm if again."""
        match event.what:
            case FileClosed(path=path, file=file):
                await self._keep_files(path, [file])
                return []
            case SaveBegun(path=path, step=step, labels=labels):
                await self._forget_files(path)
                begun_one = Checkpoint(path=path, job=event.job, step=step, begun_ns=now_ns, labels=labels)
                return [Put(keys.checkpoint_key(path), keys.encode(begun_one))]
            case Committed() as what:
                await self._keep_files(what.path, what.files)
                key = keys.checkpoint_key(what.path)
                known = await self._store.get(key)
                expect[key] = 0 if known is None else known.revision
                before = None if known is None else keys.decode(known.value, Checkpoint)
                said = (what.labels, before.labels if before is not None else None)
                saved = Checkpoint(
                    path=what.path,
                    job=event.job,
                    step=what.step,
                    save_id=what.save_id,
                    files=len(what.files),
                    bytes=sum(file.size for file in what.files),
                    labels=merged(*stated) if (stated := [each for each in said if each is not None]) else None,
                    begun_ns=before.begun_ns if before is not None else now_ns,
                    committed_ns=now_ns,
                )
                return [Put(key, keys.encode(saved))]
        return []

    async def _keep_files(self, path: LakePath, files: Sequence[ManifestFile]) -> None:
        """Write files down. A digest that was told before is kept where the same version comes without one."""
        prefix, lease = keys.files_prefix(path), await self._files.lease()
        known = {item.key: item.value for item in (await every(self._store, prefix))[0]} if len(files) > 1 else {}
        changes = []
        for file in files:
            key = prefix + file.path
            if not file.digest and key in known:
                before: ManifestFile = keys.decode(known[key], ManifestFile)
                if before.version == file.version:
                    continue
            changes.append(Put(key, keys.encode(file), lease))
        await write_all(self._store, changes)

    async def _forget_files(self, path: LakePath) -> None:
        """A new save of a path begins with nothing."""
        items, _ = await every(self._store, keys.files_prefix(path))
        await write_all(self._store, [Delete(item.key) for item in items])

    async def _entries(self, event: Event, prediction: Prediction, now_ns: int, expect: dict[str, int]) -> list[Put | Delete]:
        """Return the lines of the ledger that an event changes."""
        changed: dict[HintId, LedgerEntry] = {}

        async def entry(hint: HintId) -> LedgerEntry | None:
            if hint not in changed:
                key = keys.ledger_key(event.job, hint)
                kept = await self._store.get(key)
                expect[key] = 0 if kept is None else kept.revision
                if kept is None:
                    return None
                changed[hint] = keys.decode(kept.value, LedgerEntry)
            return changed[hint]

        for hint in prediction.made:
            changed[hint.id] = begun(await entry(hint.id), hint, now_ns)
        if isinstance(event.what, Committed):
            for hint in prediction.job.hints:
                if hint.path == event.what.path and (known := await entry(hint.id)) is not None:
                    changed[hint.id] = committed(known, now_ns)
        for used in prediction.used:
            if (known := await entry(used.hint)) is not None:
                changed[used.hint] = started(known, used.evaluation, now_ns)
        for gone in prediction.withdrawn:
            if (known := await entry(gone.hint)) is not None:
                result = isinstance(event.what, EvaluationResult)
                changed[gone.hint] = ended(known, gone.outcome, now_ns, result=result)
        if isinstance(event.what, ReplicaReads) and (known := await entry(event.what.hint)) is not None:
            changed[event.what.hint] = read_from(known, event.what, now_ns)
        return [Put(keys.ledger_key(event.job, hint), keys.encode(entry)) for hint, entry in changed.items()]

    async def hint_ended(self, job_name: JobName, hint: HintId) -> None:
        """Note that a hint has lived out its time; one that was withdrawn is noted already."""
        while True:
            kept = await self._store.get(keys.job_key(job_name))
            if kept is None:
                return
            job: JobState = keys.decode(kept.value, JobState)
            if job.hint(hint) is None or await self._store.get(keys.hint_key(hint)) is not None:
                return
            expect, now_ns = {kept.key: kept.revision}, self._clock.wall_ns()
            changes: list[Put | Delete] = [Put(kept.key, keys.encode(expired(job, hint)))]
            line = await self._store.get(keys.ledger_key(job_name, hint))
            if line is not None:
                expect[line.key] = line.revision
                entry: LedgerEntry = keys.decode(line.value, LedgerEntry)
                changes.append(Put(line.key, keys.encode(ended(entry, None, now_ns))))
            if await self._store.write(changes, expect=expect):
                return
