"""The store of one host: LMDB, one process at a time.

    items     key                 -> revision, lease, value
    leases    lease               -> ttl in s, when it ends by the wall clock, ns
    facts     "revision", "lease" -> the last one that was given

Writes that wait are made in one transaction and one fsync, in the order in which they came; each counts as a revision of its
own. A process that holds the lock file is the only one: the next controller waits for it, and the kernel lets go of it when
its holder dies.

Tasks: one that writes, one that ends leases; both belong to `Embedded.open`.
Memory: 200 bytes for each lease; the last LOG_MAX changes for those who watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import lmdb
import msgspec

from vfs.clock import Clock
from vfs.errors import Busy, NoSpace, Stale, Unavailable
from vfs.foresight.stores.protocol import NO_LEASE, Change, Compacted, Delete, Item, LeaseId, Page, Put

LOG_MAX = 65_536
GRACE_S = 30.0
"""After a restart leases live at least this long, or as long as they ever do: nobody could renew them meanwhile. So one that
lives no longer need not be written when it is renewed, and the lead is not lost because a disk takes some seconds."""
_MAP_BYTES = 64 << 30
_RETRY_S = 0.1
_FORMAT = b"1"


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    revision: int
    lease: int


class _Kept(_Head, frozen=True, array_like=True, gc=False):
    value: bytes


@dataclass(slots=True)
class _Lease:
    """A lease that lives.

    Invariant: `keys` are exactly the items that name it.
    """

    ttl_s: float
    ends_s: float
    kept_ends_s: float
    keys: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Write:
    changes: Sequence[Put | Delete]
    expect: Mapping[str, int]
    answer: asyncio.Future[bool]
    ending: LeaseId = NO_LEASE


class Embedded:
    """Use `Embedded.open`.

    Invariant: what is in `_log` is contiguous and ends with `_revision`; all before `_since` has been let go.
    """

    def __init__(self, env: Any, lock: int, clock: Clock) -> None:
        self._env, self._lock, self._clock = env, lock, clock
        self._items = env.open_db(b"items")
        self._leases_kept = env.open_db(b"leases")
        self._facts = env.open_db(b"facts")
        self._thread = ThreadPoolExecutor(1, "foresight-store")
        self._pending: list[_Write] = []
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._log: deque[Change] = deque()
        self._leases: dict[LeaseId, _Lease] = {}
        self._ends: list[tuple[float, LeaseId]] = []
        self._lease_wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, directory: str, clock: Clock, *, wait: bool = False) -> Embedded:
        """Open or make it.

        Args:
            wait: until the process that holds it ends.

        Raises:
            Busy: another process holds it.
        """
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(directory, "writer"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as exc:
                    if not wait:
                        hint = "one controller keeps it; others go to etcd, or wait for this one"
                        raise Busy(directory, "is held by another controller", hint) from exc
                await asyncio.sleep(_RETRY_S)
            env = lmdb.open(directory, map_size=_MAP_BYTES, max_dbs=3)
        except BaseException:
            os.close(lock)
            raise
        store = cls(env, lock, clock)
        try:
            await asyncio.get_running_loop().run_in_executor(store._thread, store._load)  # it goes through all items
        except BaseException:
            await store.close()
            raise
        store._tasks = [asyncio.ensure_future(store._write_all()), asyncio.ensure_future(store._end_leases())]
        return store

    def _load(self) -> None:
        with self._env.begin(write=True) as txn:
            kept_format = txn.get(b"format", db=self._facts)
            if kept_format not in (None, _FORMAT):
                raise Unavailable("the controller's store", f"has format {kept_format!r}", "it is of a newer version")
            txn.put(b"format", _FORMAT, db=self._facts)
            self._revision = self._since = int(txn.get(b"revision", b"0", db=self._facts))
            self._last_lease = int(txn.get(b"lease", b"0", db=self._facts))
            now_s, now_ns = self._clock.monotonic_s(), self._clock.wall_ns()
            with txn.cursor(self._leases_kept) as cursor:
                for key, raw in cursor:
                    ttl_s, ends_ns = msgspec.msgpack.decode(raw, type=tuple[float, int])
                    left_s = min(ttl_s, max((ends_ns - now_ns) / 1e9, GRACE_S))
                    self._leases[LeaseId(int(key))] = _Lease(ttl_s, now_s + left_s, now_s + left_s)
            with txn.cursor(self._items) as cursor:
                for key, raw in cursor:
                    lease = LeaseId(_head.decode(raw).lease)
                    if lease in self._leases:
                        self._leases[lease].keys.add(key.decode())
                    elif lease:
                        cursor.delete()
        self._ends = [(lease.ends_s, each) for each, lease in self._leases.items()]
        heapq.heapify(self._ends)

    async def close(self) -> None:
        """Finish what is being written, and let others in."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for write in self._pending:
            write.answer.cancel()
        self._thread.shutdown()
        self._env.close()
        os.close(self._lock)

    # --- reads --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        with self._env.begin(db=self._items) as txn:
            raw = txn.get(key.encode())
        if raw is None:
            return None
        kept = _kept.decode(raw)
        return Item(key, kept.value, kept.revision)

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        page = self._range_now(prefix, after, limit)
        await asyncio.sleep(0)  # a reader of everything lets others have their turn between pages
        return page

    def _range_now(self, prefix: str, after: str, limit: int) -> Page:
        """Never part of a coroutine: LMDB's reader ends with the transaction's object, and there are 126 of them."""
        start, found = prefix.encode(), list[Item]()
        with self._env.begin(db=self._items) as txn, txn.cursor() as cursor:
            here = cursor.set_range(max(start, after.encode() + b"\0" if after else start) or b"\0")
            for key, raw in cursor if here else ():
                if len(found) == limit or not key.startswith(start):
                    break
                kept = _kept.decode(raw)
                found.append(Item(key.decode(), kept.value, kept.revision))
        return Page(found, self._revision)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[list[Change]]:
        seen = after
        while True:
            changed = self._changed
            if seen < self._since:
                raise Compacted("watch", f"revision {seen} is not kept any more, the oldest is {self._since}")
            fresh = []
            for change in reversed(self._log):
                if change.revision <= seen:
                    break
                if change.key.startswith(prefix):
                    fresh.append(change)
            seen = max(seen, self._revision)
            if fresh:
                yield fresh[::-1]
            else:
                await changed.wait()

    # --- writes -------------------------------------------------------------------------------------------------

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        for change in changes:
            if isinstance(change, Put) and change.lease and change.lease not in self._leases:
                raise Stale(change.key, "its lease has ended")
        return bool(await self._queue(changes, expect or {}))

    def _queue(self, changes: Sequence[Put | Delete], expect: Mapping[str, int], ending: LeaseId = NO_LEASE) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._pending.append(_Write(changes, expect, answer, ending))
        self._wake.set()
        return answer

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._pending = self._pending, []
            done = asyncio.ensure_future(loop.run_in_executor(self._thread, self._commit, writes))
            try:
                results = await asyncio.shield(done)
            except asyncio.CancelledError:
                await asyncio.wait([done])
                raise
            except lmdb.Error as exc:
                for write in writes:
                    if not write.answer.done():
                        write.answer.set_exception(_translate(exc))
                continue
            self._take_in(writes, results)

    def _commit(self, writes: list[_Write]) -> list[tuple[int, list[tuple[str, int, int]]]]:
        """Return for each write its revision, 0 where something else was expected, and (key, lease before, lease now).

        Runs in the store's thread: one transaction, one fsync.
        """
        revision, results = self._revision, list[tuple[int, list[tuple[str, int, int]]]]()
        with self._env.begin(write=True, db=self._items) as txn:
            for write in writes:
                if not all(_revision_of(txn.get(key.encode())) == at for key, at in write.expect.items()):
                    results.append((0, []))
                    continue
                revision += 1
                moved = []
                for change in write.changes:
                    key = change.key.encode()
                    before = txn.get(key)
                    lease_before = _head.decode(before).lease if before is not None else 0
                    if isinstance(change, Put):
                        txn.put(key, _encoder.encode(_Kept(revision, change.lease, change.value)))
                        moved.append((change.key, lease_before, int(change.lease)))
                    elif before is not None:
                        txn.delete(key)
                        moved.append((change.key, lease_before, -1))
                if write.ending:
                    txn.delete(b"%d" % write.ending, db=self._leases_kept)
                results.append((revision, moved))
            txn.put(b"revision", b"%d" % revision, db=self._facts)
        return results

    def _take_in(self, writes: list[_Write], results: list[tuple[int, list[tuple[str, int, int]]]]) -> None:
        """Bring what is in memory up to what was written, and tell everybody. Atomic: no await."""
        for write, (revision, moved) in zip(writes, results, strict=True):
            values = {change.key: change.value if isinstance(change, Put) else None for change in write.changes}
            for key, before, now in moved:
                if before in self._leases:
                    self._leases[LeaseId(before)].keys.discard(key)
                if now > 0 and now in self._leases:
                    self._leases[LeaseId(now)].keys.add(key)
                elif now > 0:  # the lease ended while this write waited
                    self._queue([Delete(key)], {key: revision})
                self._log.append(Change(key, values[key], revision))
            self._revision = max(self._revision, revision)
            if not write.answer.done():
                write.answer.set_result(revision > 0)
        while len(self._log) > LOG_MAX:
            self._since = self._log.popleft().revision
        self._changed.set()
        self._changed = asyncio.Event()

    # --- leases -------------------------------------------------------------------------------------------------

    async def lease(self, ttl_s: float) -> LeaseId:
        self._last_lease += 1
        lease = LeaseId(self._last_lease)
        ends_s = self._clock.monotonic_s() + ttl_s
        self._leases[lease] = _Lease(ttl_s, ends_s, ends_s)
        await self._keep_lease(lease)
        heapq.heappush(self._ends, (ends_s, lease))
        self._lease_wake.set()
        return lease

    async def _keep_lease(self, lease: LeaseId) -> None:
        """Write down when it ends, so that it does so after a restart too."""
        known = self._leases[lease]
        known.kept_ends_s = known.ends_s
        ends_ns = self._clock.wall_ns() + round(known.ttl_s * 1e9)
        value = msgspec.msgpack.encode((known.ttl_s, ends_ns))

        def keep() -> None:
            with self._env.begin(write=True) as txn:
                txn.put(b"%d" % lease, value, db=self._leases_kept)
                txn.put(b"lease", b"%d" % self._last_lease, db=self._facts)

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, keep)
        except lmdb.Error as exc:
            raise _translate(exc) from exc

    async def renew(self, lease: LeaseId) -> bool:
        known = self._leases.get(lease)
        if known is None:
            return False
        known.ends_s = self._clock.monotonic_s() + known.ttl_s
        if known.ttl_s > GRACE_S and known.ends_s - known.kept_ends_s > known.ttl_s / 2:
            await self._keep_lease(lease)
        return lease in self._leases

    async def revoke(self, lease: LeaseId) -> None:
        known = self._leases.pop(lease, None)
        if known is not None:
            await self._queue([Delete(key) for key in sorted(known.keys)], {}, lease)

    async def _end_leases(self) -> None:
        while True:
            self._lease_wake.clear()
            now_s = self._clock.monotonic_s()
            while self._ends and self._ends[0][0] <= now_s:
                _, lease = heapq.heappop(self._ends)
                known = self._leases.get(lease)
                if known is None:
                    continue
                if known.ends_s > now_s:
                    heapq.heappush(self._ends, (known.ends_s, lease))
                else:
                    await self.revoke(lease)
            wait_s = max(0.0, self._ends[0][0] - self._clock.monotonic_s()) if self._ends else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._lease_wake.wait()


_encoder = msgspec.msgpack.Encoder()
_kept = msgspec.msgpack.Decoder(_Kept)
_head = msgspec.msgpack.Decoder(_Head)


def _revision_of(raw: bytes | None) -> int:
    return 0 if raw is None else _head.decode(raw).revision


def _translate(error: lmdb.Error) -> Exception:
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError):
        return NoSpace("the controller's store", f"can't be written: {error}")
    return Unavailable("the controller's store", f"can't be written: {error}")
