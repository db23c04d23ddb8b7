"""The fetch service: makes ranges of remote objects present in a store, once, however many ask.

Flow: `ensure` finds the absent blocks of a range, joins the jobs that are bringing them already and starts one for each
other run of them (`coalesce.py`). A job is a task of the service: it waits for its turn on the site's line and for memory,
streams the body through a `Sink` into the object's store (`requests.py`), and wakes its callers block by block. What breaks
is resumed at the block where it broke, at another replica if there is one. `homes.py` says which store takes the blocks.

Tasks: one for each job, one that seals complete objects; all in the service's own group. Thread: one for sealing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import msgspec

from vfs import usage
from vfs.backoff import doubled_s
from vfs.clock import Clock
from vfs.errors import ForemountError, NoSpace, NotFound, Stale, Unavailable
from vfs.extents.blocks import Blocks
from vfs.extents.budget import Budget
from vfs.extents.coalesce import Knobs, Request, coalesce, common, divided, within_reach
from vfs.extents.counters import FetchCounters
from vfs.extents.fair import Flow, Priority
from vfs.extents.homes import Homes
from vfs.extents.jobs import FetchedObject, Job
from vfs.extents.layout import BLOCK, PASSTHROUGH_BYTES_MIN, Identity, blocks_of
from vfs.extents.limits import FetchLimits
from vfs.extents.link import LineFacts
from vfs.extents.placement import Copy, Ranked, Serving
from vfs.extents.requests import RateOf, Requests, Served, unlimited
from vfs.model import ObjectKey, SiteName
from vfs.sites.protocol import Piece, Site
from vfs.usage import Cause

logger = logging.getLogger(__name__)

_ROUNDS_MAX = 8
"""How often a range is looked at again: its fetch went to another job or store, or it was evicted meanwhile."""
_JOBS_MAX = 64
"""Started at a time for one call: with 8 MiB each more than the memory budget lets run."""


_ASKED_BLOCKS_MAX = 1024
"""Unwanted blocks between wanted ones of which the store is asked too: 8 KiB of digests cost less than another question."""


class Fetcher:
    """The service. `async with Fetcher(…) as fetcher:` runs it; leaving cancels what it does.

    Args:
        store: the cache.
        spill: takes what the cache can't; the same layout in memory.
        sites: by name; may change while it runs.
        local: those whose files lie on this host.
        memory: bytes that were asked for and are not in a store yet.
        rate_of: says what the policy lets through, for each request anew.
        chance: of the jitter.
        sleep: waits between two attempts.

    Attributes:
        on_room: called with an object of which a fetch has ended well: more of it may be asked for.
    """

    def __init__(
        self,
        store: Blocks,
        spill: Blocks,
        sites: Mapping[SiteName, Site],
        *,
        local: Collection[SiteName] = (),
        memory: Budget,
        clock: Clock,
        limits: FetchLimits,
        rate_of: RateOf = unlimited,
        chance: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.counters = FetchCounters()
        self.on_room: Callable[[ObjectKey], None] = lambda key: None
        self._clock = clock
        self._homes = Homes(store, spill, clock=clock, limits=limits, counters=self.counters)
        self._limits = limits
        self._chance = chance or random.Random()  # noqa: S311  jitter needs no secrecy
        self._sleep = sleep
        self._objects: dict[ObjectKey, FetchedObject] = {}
        self._requests = Requests(
            sites, local=local, memory=memory, clock=clock, limits=limits, counters=self.counters, rate_of=rate_of
        )
        self._complete: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
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
        self._homes.close()
        self._sealer.shutdown()
        for fetched in self._objects.values():
            self._homes.let_go(fetched)

    # What callers ask for

    async def hold(
        self,
        identity: Identity,
        replicas: Iterable[Identity] = (),
        *,
        serving: Serving | None = None,
        copies: Iterable[Copy] = (),
    ) -> str:
        """Prepare an object in a store and keep it there until `release`; calls are counted. Returns the store's root.

        Args:
            identity: as the origin states it.
            replicas: the same bytes elsewhere, under the name and version that they have there.
            serving: which of them is asked; None: as before, at first the origin.
            copies: the same bytes, or some of them, where they were put for readers to come.

        Raises:
            NoSpace, Unavailable: neither store can take it.
            Unsupported: its name is too long to be cached.

        Cancellation: nothing is held.
        """
        fetched = await self._obtain(identity)
        fetched.add_sources(replicas)
        fetched.add_copies(copies)
        fetched.serving = serving or fetched.serving
        fetched.holds += 1
        return fetched.home.root

    def add_replicas(self, key: ObjectKey, replicas: Iterable[Identity]) -> None:
        """Add places where the bytes of a held object can be had too."""
        fetched = self._objects.get(key)
        if fetched is not None:
            fetched.add_sources(replicas)

    def offer(self, copies: Mapping[Identity, Sequence[Copy]]) -> None:
        """Let objects that are held be read from copies too, by what they are copies of."""
        for fetched in self._objects.values():
            fetched.add_copies(copies.get(fetched.identity, ()))

    def withdraw(self, copies: Collection[Identity]) -> None:
        """Begin no more requests to these copies; what is under way ends."""
        for fetched in self._objects.values():
            for gone in fetched.copies.keys() & copies:
                del fetched.copies[gone]
                if gone in fetched.sources:
                    fetched.sources.remove(gone)

    def on_served(self, tell: Callable[[Served], None]) -> None:
        """Have somebody told of each range of objects that copies were made of."""
        self._requests.on_served = tell

    def opened_here(self, copy: Identity, origin: Identity, start: int) -> None:
        """Take in that an object is read from here on from a copy on this host, past this service."""
        self._requests.on_served(Served(copy, origin, start, origin.version.size - start, 0.0, opened=True))

    def expected_s(self, site: SiteName, length: int) -> float | None:
        """Return how long a site would take now for so many bytes; None: nothing was measured of it."""
        return self._requests.expected_s(site, length)

    def copies_held(self) -> set[Identity]:
        """Return the copies that objects which are held may be read from."""
        return {each for fetched in self._objects.values() for each in fetched.copies}

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
        fetched = await self._obtain(identity)
        fetched.holds += 1
        try:
            await self._ensure(fetched, offset, length, priority)
        finally:
            self.release(fetched.key)
        return fetched.home.root

    def read(self, source: Identity, offset: int, length: int, priority: Priority, *, flow: Flow) -> AsyncIterator[Piece]:
        """Yield a range straight from a site, beside the fetches and in the same budget: see `Requests.read`."""
        return self._requests.read(source, offset, length, priority, flow=flow)

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
            for job, _ in self._cover(fetched, self._absent(fetched, ranges), priority):
                job.kept = True

    def room_bytes(self, identity: Identity) -> int:
        """Return how much more of an object the line takes: what goes beyond a window of requests would only wait."""
        fetched = self._objects.get(identity.key)
        rule = self._requests.knobs(identity.site) if fetched is None else self._rule(fetched)
        under_way = sum(job.stop - job.done for job in fetched.jobs) if fetched is not None else 0
        return (rule.pace.window * rule.request_blocks - under_way) * BLOCK

    async def drop(self, key: ObjectKey, block: int) -> bool:
        """Make a block absent that a reader found broken, if it is; returns whether it was.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        return await self._homes.drop(key, block, self._objects.get(key))

    async def renew_if_unusable(self, identity: Identity) -> None:
        """Make an object's files anew if they can't be opened by name, which a reader has found.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        key = identity.key
        await self._homes.renew_if_unusable(identity, key, self._objects.get(key))

    def lines(self) -> list[LineFacts]:
        """Return what is known of the sites' lines and how requests are formed, for `status` and `explain`."""
        return self._requests.facts()

    def placement(self, identity: Identity, replicas: Iterable[Identity], serving: Serving) -> list[Ranked]:
        """Return the sites that may serve an object, in the order in which they would be asked now, with the reasons."""
        return self._requests.placement(identity.site, [identity, *replicas], serving)

    def hint(self, site: SiteName, after_s: float) -> None:
        """Take in how long a site took to answer a question that brought no bytes."""
        self._requests.hint(site, after_s)

    def going_on(self) -> list[FetchedObject]:
        """Return the objects of which something is being fetched."""
        return [fetched for fetched in self._objects.values() if fetched.jobs]

    async def settled(self) -> None:
        """Wait until nothing is being fetched or sealed."""
        await self._idle.wait()

    # Objects

    async def _obtain(self, identity: Identity) -> FetchedObject:
        key = identity.key
        if key not in self._objects:
            home = await self._homes.prepare(identity)
            # atomic from here; another caller may have been faster
            if key not in self._objects:
                fetched = self._objects[key] = FetchedObject(identity, key, [identity], home)
                fetched.holding = home.hold(key)
                self._seal_if_complete(fetched)
        return self._objects[key]

    def _forget_unused(self, fetched: FetchedObject) -> None:
        if not fetched.holds and not fetched.jobs and self._objects.get(fetched.key) is fetched:
            del self._objects[fetched.key]
            self._homes.let_go(fetched)

    # Ranges

    async def _ensure(self, fetched: FetchedObject, offset: int, length: int, priority: Priority) -> None:
        end = min(offset + length, fetched.size)
        span = _JOBS_MAX * self._limits.request_bytes_max
        for start in range(offset, end, span):
            await self._ensure_part(fetched, start, min(span, end - start), priority)

    async def _ensure_part(self, fetched: FetchedObject, offset: int, length: int, priority: Priority) -> None:
        for _ in range(_ROUNDS_MAX):
            gaps = await self._homes.missing(fetched, offset, length)
            if not gaps:
                return
            # atomic until `_wait` awaits: the gaps are those of this turn of the loop
            await self._wait(self._cover(fetched, gaps, priority))
        raise NoSpace(
            f"{fetched.identity.site}:{fetched.identity.path}",
            "is evicted faster than it is fetched",
            "give the cache more room: cache.size",
        )

    def _absent(self, fetched: FetchedObject, ranges: Iterable[tuple[int, int]]) -> list[range]:
        """Return the absent blocks of many ranges in their order; the store is asked once for those near each other."""
        inside = ((offset, min(length, fetched.size - offset)) for offset, length in ranges)
        wanted = [blocks_of(offset, length) for offset, length in inside if length > 0]
        absent: list[range] = []
        for near in within_reach(wanted, _ASKED_BLOCKS_MAX):
            absent += fetched.home.missing(fetched.key, near.start * BLOCK, len(near) * BLOCK)
        return common(wanted, absent)

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
        rule = self._rule(fetched)
        if priority is Priority.FOREGROUND:
            rule = msgspec.structs.replace(rule, request_blocks=rule.awaited_blocks)
        requests = self._requests_for(fetched, free, rule)
        if any(request.wasted and fetched.overlaps(request.blocks) for request in requests):
            requests = coalesce(free, msgspec.structs.replace(rule, waste_max=0.0))  # bridges blocks that are on their way
        return plan + [(self._start(fetched, request.blocks, priority), request.blocks.stop) for request in requests]

    def _rule(self, fetched: FetchedObject) -> Knobs:
        preferred = self._requests.preferred(fetched) or fetched.sources
        return self._requests.knobs(preferred[0].site, fetched.serving.fetch_size)

    def _requests_for(self, fetched: FetchedObject, free: list[range], rule: Knobs) -> list[Request]:
        """Return the requests for blocks; what only some copies hold is asked for apart from the rest."""
        partial = fetched.partial()
        if not partial:
            return coalesce(free, rule)
        exact = msgspec.structs.replace(rule, waste_max=0.0)
        inside, outside = divided(free, partial)
        return [request for blocks in (inside, outside) if blocks for request in coalesce(blocks, exact)]

    async def _wait(self, plan: Sequence[tuple[Job, int]]) -> None:
        for job, _ in plan:
            job.waiting += 1
        try:
            for job, stop in plan:
                since_s = self._clock.monotonic_s()
                try:
                    await job.reached(stop)
                finally:
                    usage.spent(usage.between(job.phases, since_s, self._clock.monotonic_s()))
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
        if error is None:
            self.on_room(fetched.key)

    async def _fetch(self, fetched: FetchedObject, job: Job) -> None:
        """Send requests until all blocks are written, nobody wants them, or it is hopeless."""
        attempts = 0
        last: Identity | None = None
        if fetched.home is not self._homes.cache:
            await self._homes.salvage(fetched, job)
        while job.done < job.stop and job.wanted and not job.ended:
            source = self._requests.choose(fetched, job)
            if job.tried[source]:
                job.enter(Cause.RETRY, self._clock.monotonic_s())
                await self._sleep(self._backoff_s(job.tried[source]))
            self.counters.retries += attempts > 0
            self.counters.failovers += last is not None and source != last
            job.tried[source] += 1
            before, last = job.done, source
            try:
                await self._requests.send(fetched, job, source, functools.partial(self._homes.submit, fetched))
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
                if source == fetched.identity and not self._requests.preferred(fetched):
                    fetched.add_sources([source])  # for those who ask later
                    raise

    def _backoff_s(self, attempts: int) -> float:
        """Return how long to wait: doubled each time, and a random half of it, so that callers don't come back together."""
        return doubled_s(self._limits.backoff_s, self._limits.backoff_s_max, attempts) * self._chance.uniform(0.5, 1)

    # Sealing

    def _seal_if_complete(self, fetched: FetchedObject) -> None:
        """Have the object sealed when all of it is in the cache: the next open is served by the kernel alone.

        Small ones never are: verifying and syncing them would cost as much as fetching them.
        """
        if fetched.size < PASSTHROUGH_BYTES_MIN or fetched.home is not self._homes.cache or fetched.jobs:
            return
        with contextlib.suppress(ForemountError):
            if self._homes.cache.needs_seal(fetched.key):
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
                logger.warning("%d objects of %s can't be sealed: %s", len(keys), self._homes.cache.root, exc)
            finally:
                self._count_busy(-len(keys))

    def _seal(self, keys: Sequence[ObjectKey]) -> None:
        """Seal objects. In a thread. One that was evicted meanwhile needs none."""
        if len(keys) == 1:
            with contextlib.suppress(NotFound):
                self._homes.cache.seal(keys[0])
        else:
            self._homes.cache.seal_many(list(dict.fromkeys(keys)))

    # Small change

    def _count_busy(self, change: int) -> None:
        self._busy += change
        if self._busy:
            self._idle.clear()
        else:
            self._idle.set()
