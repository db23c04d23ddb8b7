"""The fetch service: makes ranges of remote objects present in a store, once, however many ask.

Flow: `ensure` finds the absent blocks of a range, joins the jobs that are bringing them already and starts one for each
other run of them (`coalesce.py`). A job is a task of the service: it waits for its turn on the site's line and for memory,
streams the body through a `Sink` into the object's store (`requests.py`), and wakes its callers block by block. What breaks
is resumed at the block where it broke, at another replica if there is one. When the cache can't take a block the object
moves to the spill, a store in memory, until it is released.

Tasks: one for each job, one that seals complete objects; all in the service's own group. Threads: `writers` for the stores,
one for sealing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import msgspec

from vfs.clock import Clock
from vfs.errors import Corrupt, ForemountError, NoSpace, NotFound, Stale, Unavailable, Unsupported
from vfs.extents.budget import Budget, Priority
from vfs.extents.coalesce import coalesce
from vfs.extents.counters import FetchCounters
from vfs.extents.jobs import FetchedObject, Job
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.extents.reader import CachedObject
from vfs.extents.requests import LineFacts, Requests
from vfs.extents.store import Store
from vfs.model import ObjectKey, SiteName, object_key
from vfs.sites.protocol import Site

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_ROUNDS_MAX = 8
"""How often a range is looked at again: its fetch went to another job or store, or it was evicted meanwhile."""
_JOBS_MAX = 64
"""Started at a time for one call: with 8 MiB each more than the memory budget lets run."""


class Fetcher:
    """The service. `async with Fetcher(…) as fetcher:` runs it; leaving cancels what it does.

    Args:
        store: the cache.
        spill: takes what the cache can't; the same layout in memory.
        sites: by name; may change while it runs.
        memory: bytes that were asked for and are not in a store yet.
        chance: of the jitter.
        sleep: waits between two attempts.
    """

    def __init__(
        self,
        store: Store,
        spill: Store,
        sites: Mapping[SiteName, Site],
        *,
        memory: Budget,
        clock: Clock,
        limits: FetchLimits,
        chance: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.counters = FetchCounters()
        self._store = store
        self._spill = spill
        self._clock = clock
        self._limits = limits
        self._chance = chance or random.Random()  # noqa: S311  jitter needs no secrecy
        self._sleep = sleep
        self._objects: dict[ObjectKey, FetchedObject] = {}
        self._requests = Requests(sites, memory=memory, clock=clock, limits=limits, counters=self.counters)
        self._store_retry_s = float("-inf")
        self._complete: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._busy = 0
        self._renewing = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writers = ThreadPoolExecutor(limits.writers, "extents")
        self._sealer = ThreadPoolExecutor(1, "extents-seal")
        self._tasks: asyncio.TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._sealing = self._tasks.create_task(self._seal_complete(), name="seal")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sealing.cancel()
        for fetched in self._objects.values():
            for job in fetched.jobs:
                assert job.task is not None
                job.task.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._writers.shutdown()
        self._sealer.shutdown()
        for fetched in self._objects.values():
            self._let_go(fetched)

    # What callers ask for

    async def hold(self, identity: Identity, replicas: Iterable[Identity] = ()) -> str:
        """Prepare an object in a store and keep it there until `release`; calls are counted. Returns the store's root.

        Args:
            identity: as the origin states it.
            replicas: the same bytes elsewhere, in order of preference, under the name and version that they have there.

        Raises:
            NoSpace, Unavailable: neither store can take it.
            Unsupported: its name is too long to be cached.

        Cancellation: nothing is held.
        """
        fetched = await self._obtain(identity, replicas)
        fetched.holds += 1
        return fetched.home.root

    def release(self, key: ObjectKey) -> None:
        """Undo one `hold`. Fetches that nobody waits for end when they can."""
        fetched = self._objects.get(key)
        if fetched is not None and fetched.holds:
            fetched.holds -= 1
            self._forget_unused(fetched)

    async def ensure(self, identity: Identity, offset: int, length: int, priority: Priority = Priority.FOREGROUND) -> str:
        """Return the root of the store that holds every block of the range, once it does.

        Args:
            identity: of an object that is held, else what was fetched may be evicted at once.
            length: what lies past the end of the object is ignored.

        Raises:
            Stale, NotFound: no replica has this version any more.
            Denied: a site refuses; another is not asked.
            Unavailable: no replica could be reached within the bounds for retries, which the caller's deadline may cut.
            NoSpace: neither store has room, or the range is evicted faster than it is fetched.

        Cancellation: fetches go on for those who wait for them too; without others no further request is sent.
        """
        fetched = await self._obtain(identity, ())
        fetched.holds += 1
        try:
            await self._ensure(fetched, offset, length, priority)
        finally:
            self.release(fetched.key)
        return fetched.home.root

    def prefetch(self, key: ObjectKey, offset: int, length: int, priority: Priority = Priority.PREFETCH) -> None:
        """Start fetching what is absent of a range of a held object, for nobody in particular: see `prefetch_all`."""
        self.prefetch_all(key, [(offset, length)], priority)

    def prefetch_all(self, key: ObjectKey, ranges: Iterable[tuple[int, int]], priority: Priority = Priority.PREFETCH) -> None:
        """Start fetching what is absent of ranges (offset, length) of a held object, for nobody in particular.

        Ranges that lie close together are asked for at once; the others in the order in which they are given. A fetch that
        fails is not tried again until somebody wants it.
        """
        fetched = self._objects.get(key)
        if fetched is None:
            return
        with contextlib.suppress(ForemountError):  # who reads it will hear of it
            gaps = [gap for offset, length in ranges for gap in fetched.home.missing(key, offset, length)]
            for job, _ in self._cover(fetched, gaps, priority):
                job.kept = True

    async def drop(self, key: ObjectKey, block: int) -> None:
        """Make a block absent that a reader found broken, if it is.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        fetched = self._objects.get(key)
        home = fetched.home if fetched is not None else self._store
        await self._in_thread(home.drop_if_broken, key, block)

    async def renew_if_unusable(self, identity: Identity) -> None:
        """Make an object's files anew if they can't be opened by name: somebody else deleted or damaged them.

        Our own descriptors may still be good, so nothing here notices it; a reader does.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        key = object_key(identity.site, identity.path, identity.version)
        async with self._renewing:  # of several complaints the first one is enough
            fetched = self._objects.get(key)
            home = fetched.home if fetched is not None else self._store
            if not await self._in_thread(_is_unusable, home.root, key):
                return
            logger.warning("the files of %s can't be used, making them anew", key)
            await self._in_thread(home.renew, identity)
            if fetched is not None and not fetched.holding and fetched.home is home:
                fetched.holding = home.hold(key)

    def lines(self) -> list[LineFacts]:
        """Return what is known of the sites' lines and how requests are formed, for `status` and `explain`."""
        return self._requests.facts()

    async def settled(self) -> None:
        """Wait until nothing is being fetched or sealed."""
        await self._idle.wait()

    # Objects

    async def _obtain(self, identity: Identity, replicas: Iterable[Identity]) -> FetchedObject:
        key = object_key(identity.site, identity.path, identity.version)
        if key not in self._objects:
            home = await self._prepare(identity)
            # atomic from here; another caller may have been faster
            if key not in self._objects:
                fetched = self._objects[key] = FetchedObject(identity, key, [identity, *replicas], home)
                fetched.holding = home.hold(key)
                self._seal_if_complete(fetched)
        return self._objects[key]

    async def _prepare(self, identity: Identity) -> Store:
        """Return the store that has the object's files now: the cache, or the spill where the cache can't."""
        try:
            if self._clock.monotonic_s() >= self._store_retry_s:
                try:
                    await self._in_thread(self._store.prepare, identity)
                    return self._store
                except (NoSpace, Unavailable) as exc:
                    self._bypass(identity, exc)
            await self._in_thread(self._spill.prepare, identity)
        except ValueError as exc:
            raise Unsupported(f"{identity.site}:{identity.path}", f"can't be cached: {exc}") from exc
        return self._spill

    def _forget_unused(self, fetched: FetchedObject) -> None:
        if not fetched.holds and not fetched.jobs and self._objects.get(fetched.key) is fetched:
            del self._objects[fetched.key]
            self._let_go(fetched)

    def _let_go(self, fetched: FetchedObject) -> None:
        if fetched.holding:
            fetched.home.release(fetched.key)
            fetched.holding = False

    def _bypass(self, identity: Identity, reason: ForemountError) -> None:
        """Leave the cache alone for a while."""
        self.counters.bypasses += 1
        if self._clock.monotonic_s() >= self._store_retry_s:
            logger.warning("the cache can't take %s:%s, memory does: %s", identity.site, identity.path, reason)
        self._store_retry_s = self._clock.monotonic_s() + self._limits.store_retry_s

    def _move(self, fetched: FetchedObject, home: Store) -> None:
        """Let the object's blocks go to another store from now on; atomic."""
        self._let_go(fetched)
        fetched.home = home
        fetched.holding = home.hold(fetched.key)

    # Ranges

    async def _ensure(self, fetched: FetchedObject, offset: int, length: int, priority: Priority) -> None:
        end = min(offset + length, fetched.size)
        span = _JOBS_MAX * self._limits.request_bytes_max
        for start in range(offset, end, span):
            await self._ensure_part(fetched, start, min(span, end - start), priority)

    async def _ensure_part(self, fetched: FetchedObject, offset: int, length: int, priority: Priority) -> None:
        for _ in range(_ROUNDS_MAX):
            gaps = await self._gaps(fetched, offset, length)
            if not gaps:
                return
            # atomic until `_wait` awaits: the gaps are those of this turn of the loop
            await self._wait(self._cover(fetched, gaps, priority))
        raise NoSpace(
            f"{fetched.identity.site}:{fetched.identity.path}",
            "is evicted faster than it is fetched",
            "give the cache more room: cache.size",
        )

    async def _gaps(self, fetched: FetchedObject, offset: int, length: int) -> list[range]:
        """Return the absent blocks of a range. Digests that can't be used are made anew, or those of the spill are."""
        try:
            return fetched.home.missing(fetched.key, offset, length)
        except (Corrupt, NotFound) as exc:
            logger.info("making %s anew: %s", fetched.key, exc)
            try:
                await self._in_thread(fetched.home.renew, fetched.identity)
            except (NoSpace, Unavailable) as refusal:
                await self._evade(fetched, refusal)
        except Unavailable as exc:
            await self._evade(fetched, exc)
        if not fetched.holding:
            fetched.holding = fetched.home.hold(fetched.key)
        return fetched.home.missing(fetched.key, offset, length)

    async def _evade(self, fetched: FetchedObject, reason: ForemountError) -> None:
        """Move the object to the spill, without any block yet.

        Raises:
            ForemountError: it is there already, or the spill can't take it either.
        """
        if fetched.home is self._spill:
            raise reason
        await self._in_thread(self._spill.prepare, fetched.identity)
        if fetched.home is not self._spill:
            self._bypass(fetched.identity, reason)
            self._move(fetched, self._spill)

    def _cover(self, fetched: FetchedObject, gaps: Sequence[range], priority: Priority) -> list[tuple[Job, int]]:
        """Return the jobs that bring the gaps, each with the block that has to be reached; starts those that are missing."""
        plan: list[tuple[Job, int]] = []
        free: list[range] = []
        for gap in gaps:
            at = gap.start
            while at < gap.stop:
                job = fetched.job_at(at)
                stop = fetched.free_until(at, gap.stop) if job is None else min(job.stop, gap.stop)
                if job is None:
                    free.append(range(at, stop))
                else:
                    self.counters.shared += stop - at
                    job.join(priority)
                    plan.append((job, stop))
                at = stop
        rule = self._requests.knobs(fetched.sources[0].site)
        requests = coalesce(free, rule)
        if any(request.wasted and fetched.overlaps(request.blocks) for request in requests):
            requests = coalesce(free, msgspec.structs.replace(rule, waste_max=0.0))  # bridges blocks that are on their way
        return plan + [(self._start(fetched, request.blocks, priority), request.blocks.stop) for request in requests]

    async def _wait(self, plan: Sequence[tuple[Job, int]]) -> None:
        for job, _ in plan:
            job.waiting += 1
        try:
            for job, stop in plan:
                await job.reached(stop)
        finally:
            for job, _ in plan:
                job.waiting -= 1

    # Jobs

    def _start(self, fetched: FetchedObject, blocks: range, priority: Priority) -> Job:
        job = Job(blocks.start, blocks.stop, priority)
        fetched.jobs.append(job)
        self._count_busy(1)
        job.task = self._tasks.create_task(self._run(fetched, job), name=f"fetch {fetched.key}")
        return job

    async def _run(self, fetched: FetchedObject, job: Job) -> None:
        """Bring one job to its end, whatever happens."""
        subject = f"{fetched.identity.site}:{fetched.identity.path}"
        error: ForemountError | None = Unavailable(subject, "the agent is shutting down")
        try:
            await self._fetch(fetched, job)
            error = None
        except ForemountError as exc:
            self.counters.failures += 1
            logger.debug("fetch of %s given up at block %d: %s", subject, job.done, exc)
            error = exc
        except Exception:
            logger.exception("fetch of %s failed inside", subject)
            error = Unavailable(subject, "the fetch failed inside, see the agent's log")
        finally:
            if not job.ended:  # another has absorbed it otherwise
                fetched.jobs.remove(job)
                job.end(error)
            self._seal_if_complete(fetched)
            self._forget_unused(fetched)
            self._count_busy(-1)

    async def _fetch(self, fetched: FetchedObject, job: Job) -> None:
        """Send requests until all blocks are written, nobody wants them, or it is hopeless."""
        attempts = 0
        last: Identity | None = None
        if fetched.home is not self._store:
            await self._salvage(fetched, job)
        while job.done < job.stop and job.wanted and not job.ended:
            source = self._requests.choose(fetched.sources, job)
            if job.tried[source]:
                await self._sleep(self._backoff_s(job.tried[source]))
            self.counters.retries += attempts > 0
            self.counters.failovers += last is not None and source != last
            job.tried[source] += 1
            before, last = job.done, source
            try:
                await self._requests.send(fetched, job, source, functools.partial(self._submit, fetched))
            except Unavailable as exc:
                attempts = 1 if job.done > before else attempts + 1
                if job.done > before:
                    job.tried.clear()
                    job.tried[source] = 1
                if attempts >= self._limits.attempts_max or not job.waiting:
                    raise
                logger.debug("attempt %d at %s:%s: %s", attempts, source.site, source.path, exc)
            except (NotFound, Stale):
                with contextlib.suppress(ValueError):  # another job has struck it out
                    fetched.sources.remove(source)
                if not fetched.sources:
                    fetched.sources.append(fetched.identity)  # for those who ask later
                    raise

    def _backoff_s(self, attempts: int) -> float:
        """Return how long to wait: doubled each time, and a random half of it, so that callers don't come back together."""
        full_s = min(self._limits.backoff_s_max, self._limits.backoff_s * 2.0 ** (attempts - 1))
        return full_s * self._chance.uniform(0.5, 1)

    def _submit(self, fetched: FetchedObject, first: int, body: memoryview) -> asyncio.Future[None]:
        """Write blocks in a thread, to the spill where the cache can't take them."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        write = loop.run_in_executor(self._writers, self._put, fetched.home, fetched.identity, fetched.key, first, body)

        def done(write: asyncio.Future[tuple[Store, ForemountError | None]]) -> None:
            if ended.cancelled() or write.cancelled():
                ended.cancel()
                return
            if (error := write.exception()) is not None:
                ended.set_exception(error)
                return
            home, reason = write.result()
            if reason is not None and fetched.home is not home:
                self._bypass(fetched.identity, reason)
                self._move(fetched, home)
            ended.set_result(None)

        write.add_done_callback(done)
        return ended

    def _put(
        self, home: Store, identity: Identity, key: ObjectKey, first: int, body: memoryview
    ) -> tuple[Store, ForemountError | None]:
        """Write blocks; returns the store that took them, and why it is not `home`. In a thread."""
        try:
            home.write_blocks(key, first, body)
            return home, None
        except (NoSpace, Unavailable, NotFound, Corrupt) as exc:
            if home is self._spill:
                raise
            self._spill.prepare(identity)
            self._spill.write_blocks(key, first, body)
            return self._spill, exc

    async def _salvage(self, fetched: FetchedObject, job: Job) -> None:
        """Copy what the cache has of the job to the spill, up to the first block that it has not."""
        while job.done < job.stop:
            count = min(job.stop - job.done, self._limits.batch_bytes // BLOCK)
            try:
                copied = await self._in_thread(self._copy, fetched.identity, fetched.key, job.done, count)
            except ForemountError as exc:
                logger.debug("nothing to salvage of %s: %s", fetched.key, exc)
                return
            if not copied:
                return
            self.counters.salvaged_bytes += copied * BLOCK
            job.advance(job.done + copied)

    def _copy(self, identity: Identity, key: ObjectKey, first: int, count: int) -> int:
        """Copy blocks from the cache to the spill as long as they are there and right; returns how many. In a thread."""
        scratch = memoryview(bytearray(count * BLOCK))
        copied = self._store.read_blocks(key, first, count, scratch)
        if copied:
            end = min((first + copied) * BLOCK, identity.version.size)
            self._spill.write_blocks(key, first, scratch[: end - first * BLOCK])
        return copied

    # Sealing

    def _seal_if_complete(self, fetched: FetchedObject) -> None:
        """Have the object sealed when all of it is in the cache: the next open is served by the kernel alone."""
        if fetched.home is not self._store or fetched.jobs:
            return
        with contextlib.suppress(ForemountError):
            if self._store.needs_seal(fetched.key):
                self._count_busy(1)
                self._complete.put_nowait(fetched.key)

    async def _seal_complete(self) -> None:
        """Seal what is complete: one object alone, or all that became complete meanwhile."""
        while True:
            keys = [await self._complete.get()]
            while not self._complete.empty():
                keys.append(self._complete.get_nowait())
            try:
                await asyncio.get_running_loop().run_in_executor(self._sealer, self._seal, keys)
            except ForemountError as exc:
                logger.warning("%d objects of %s can't be sealed: %s", len(keys), self._store.root, exc)
            finally:
                self._count_busy(-len(keys))

    def _seal(self, keys: Sequence[ObjectKey]) -> None:
        """Seal objects. In a thread. One that was evicted meanwhile needs none."""
        if len(keys) == 1:
            with contextlib.suppress(NotFound):
                self._store.seal(keys[0])
        else:
            self._store.seal_many(list(dict.fromkeys(keys)))

    # Small change

    async def _in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._writers, lambda: function(*args, **kwargs))

    def _count_busy(self, change: int) -> None:
        self._busy += change
        if self._busy:
            self._idle.clear()
        else:
            self._idle.set()


def _is_unusable(root: str, key: ObjectKey) -> bool:
    try:
        CachedObject.open(root, key).close()
    except (NotFound, Corrupt):
        return True
    return False
