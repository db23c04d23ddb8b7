"""Where fetched blocks go: the cache, and the spill, a store in memory that stands in where the cache can't take them.

An object has one of the two as its home at any time. It moves to the spill when the cache refuses it, and stays there until
it is released; what the cache has of it already is copied instead of being fetched again.

Threads: `writers`, for everything that may block in a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from vfs.clock import Clock
from vfs.errors import Corrupt, ForemountError, NoSpace, NotFound, Unavailable, Unsupported
from vfs.extents.blocks import Blocks
from vfs.extents.counters import FetchCounters
from vfs.extents.jobs import FetchedObject, Job
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.model import ObjectKey

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Homes:
    """The two stores as one.

    Attributes:
        cache: which the kernel serves complete objects from.
        spill: the same layout in memory.
    """

    def __init__(self, cache: Blocks, spill: Blocks, *, clock: Clock, limits: FetchLimits, counters: FetchCounters) -> None:
        self.cache = cache
        self.spill = spill
        self._clock = clock
        self._limits = limits
        self._counters = counters
        self._cache_retry_s = float("-inf")
        self._renewing = asyncio.Lock()
        self._writers = ThreadPoolExecutor(limits.writers, "extents")

    def close(self) -> None:
        """End the threads; what they do is waited for."""
        self._writers.shutdown()

    # Objects

    async def prepare(self, identity: Identity) -> Blocks:
        """Return the store that has the object's files now: the cache, or the spill where the cache can't.

        Raises:
            NoSpace, Unavailable: neither can.
            Unsupported: its name is too long.
        """
        try:
            if self._clock.monotonic_s() >= self._cache_retry_s:
                try:
                    await self._in_thread(self.cache.prepare, identity)
                    return self.cache
                except (NoSpace, Unavailable) as exc:
                    self._bypass(identity, exc)
            await self._in_thread(self.spill.prepare, identity)
        except ValueError as exc:
            raise Unsupported(f"{identity.site}:{identity.path}", f"can't be cached: {exc}") from exc
        return self.spill

    async def missing(self, fetched: FetchedObject, offset: int, length: int) -> list[range]:
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

    async def drop(self, key: ObjectKey, block: int, fetched: FetchedObject | None) -> bool:
        """Make a block absent that a reader found broken, if it is; returns whether it was.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        home = fetched.home if fetched is not None else self.cache
        return await self._in_thread(home.drop_if_broken, key, block)

    async def renew_if_unusable(self, identity: Identity, key: ObjectKey, fetched: FetchedObject | None) -> None:
        """Make an object's files anew if they can't be opened by name: somebody else deleted, damaged or replaced them.

        Our own descriptors may still be good, so nothing here notices it; a reader does.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        async with self._renewing:  # of several complaints the first one is enough
            home = fetched.home if fetched is not None else self.cache
            if await self._in_thread(home.is_found, key):
                return
            logger.warning("the files of %s can't be used, making them anew", key)
            await self._in_thread(home.renew, identity)
            if fetched is not None and not fetched.holding and fetched.home is home:
                fetched.holding = home.hold(key)

    def let_go(self, fetched: FetchedObject) -> None:
        """Let the object be evicted."""
        if fetched.holding:
            fetched.home.release(fetched.key)
            fetched.holding = False

    # Blocks

    def submit(self, fetched: FetchedObject, first: int, body: memoryview) -> asyncio.Future[None]:
        """Write blocks in a thread, to the spill where the cache can't take them."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        write = loop.run_in_executor(self._writers, self._put, fetched.home, fetched.identity, fetched.key, first, body)

        def done(write: asyncio.Future[tuple[Blocks, ForemountError | None]]) -> None:
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

    async def salvage(self, fetched: FetchedObject, job: Job) -> None:
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
            self._counters.salvaged_bytes += copied * BLOCK
            job.advance(job.done + copied)

    # Inside

    async def _evade(self, fetched: FetchedObject, reason: ForemountError) -> None:
        """Move the object to the spill, without any block yet.

        Raises:
            ForemountError: it is there already, or the spill can't take it either.
        """
        if fetched.home is self.spill:
            raise reason
        await self._in_thread(self.spill.prepare, fetched.identity)
        if fetched.home is not self.spill:
            self._bypass(fetched.identity, reason)
            self._move(fetched, self.spill)

    def _move(self, fetched: FetchedObject, home: Blocks) -> None:
        """Let the object's blocks go to another store from now on; atomic."""
        self.let_go(fetched)
        fetched.home = home
        fetched.holding = home.hold(fetched.key)

    def _bypass(self, identity: Identity, reason: ForemountError) -> None:
        """Leave the cache alone for a while."""
        self._counters.bypasses += 1
        if self._clock.monotonic_s() >= self._cache_retry_s:
            logger.warning("the cache can't take %s:%s, memory does: %s", identity.site, identity.path, reason)
        self._cache_retry_s = self._clock.monotonic_s() + self._limits.store_retry_s

    def _put(
        self, home: Blocks, identity: Identity, key: ObjectKey, first: int, body: memoryview
    ) -> tuple[Blocks, ForemountError | None]:
        """Write blocks; returns the store that took them, and why it is not `home`. In a thread."""
        try:
            home.write_blocks(key, first, body)
            return home, None
        except (NoSpace, Unavailable, NotFound, Corrupt) as exc:
            if home is self.spill:
                raise
            self.spill.prepare(identity)
            self.spill.write_blocks(key, first, body)
            return self.spill, exc

    def _copy(self, identity: Identity, key: ObjectKey, first: int, count: int) -> int:
        """Copy blocks from the cache to the spill as long as they are there and right; returns how many. In a thread."""
        scratch = memoryview(bytearray(count * BLOCK))
        copied = self.cache.read_blocks(key, first, count, scratch)
        if copied:
            end = min((first + copied) * BLOCK, identity.version.size)
            self.spill.write_blocks(key, first, scratch[: end - first * BLOCK])
        return copied

    async def _in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._writers, lambda: function(*args, **kwargs))
