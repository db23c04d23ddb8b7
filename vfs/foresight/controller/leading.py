"""Who leads: the one that holds a lease on one key. What it writes is refused once another does.

Tasks: one that renews the lease, as long as `leading` is entered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from vfs.clock import Clock
from vfs.errors import ForemountError, Stale, Unavailable
from vfs.foresight.keys import LEADER
from vfs.foresight.stores.protocol import Change, Compacted, Delete, Item, LeaseId, Page, Put, Store

log = logging.getLogger(__name__)
LEASE_S = 5.0
RENEW_SHARE = 0.3
TRUST_SHARE = 0.7
"""Of the lease, after which a leader that could not renew stops, by its own clock: before another may begin."""


class LostLead(Stale):
    """Another controller leads now."""


class Fenced:
    """The store as the leader writes to it: each write expects that it still leads."""

    def __init__(self, store: Store, revision: int) -> None:
        self.store = store
        self._revision = revision

    async def get(self, key: str) -> Item | None:
        return await self.store.get(key)

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await self.store.range(prefix, after=after, limit=limit)

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        """Write as `Store.write`.

        Raises:
            LostLead: nothing was written.
        """
        if await self.store.write(changes, expect={**(expect or {}), LEADER: self._revision}):
            return True
        leader = await self.store.get(LEADER)
        if leader is None or leader.revision != self._revision:
            raise LostLead("controller", "does not lead any more")
        return False

    def watch(self, prefix: str, after: int) -> AsyncIterator[list[Change]]:
        return self.store.watch(prefix, after)

    async def lease(self, ttl_s: float) -> LeaseId:
        return await self.store.lease(ttl_s)

    async def renew(self, lease: LeaseId) -> bool:
        return await self.store.renew(lease)

    async def revoke(self, lease: LeaseId) -> None:
        await self.store.revoke(lease)

    async def close(self) -> None:
        return


@contextlib.asynccontextmanager
async def leading(store: Store, name: str, clock: Clock) -> AsyncIterator[tuple[Fenced, asyncio.Task[None]]]:
    """Wait until nobody else leads, then lead until the block ends.

    Yields:
        The store to write to, and a task that ends when the lead is lost: whoever leads waits for it beside the work.
    """
    while True:
        with contextlib.suppress(Compacted):
            await _wait_for_vacancy(store)
        lease = await store.lease(LEASE_S)
        if await store.write([Put(LEADER, name.encode(), lease)], expect={LEADER: 0}):
            break
        await store.revoke(lease)
    taken = await store.get(LEADER)
    if taken is None or taken.value != name.encode():
        raise LostLead("controller", "lost the lead at once")
    log.info("%s leads", name)
    keeping = asyncio.ensure_future(_keep(store, lease, clock))
    try:
        yield Fenced(store, taken.revision), keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with contextlib.suppress(ForemountError, TimeoutError):
            async with asyncio.timeout(1.0):
                await store.revoke(lease)


async def _wait_for_vacancy(store: Store) -> None:
    page = await store.range(LEADER)
    if not any(item.key == LEADER for item in page.items):
        return
    async for changes in store.watch(LEADER, page.revision):
        if any(change.key == LEADER and change.value is None for change in changes):
            return


async def _keep(store: Store, lease: LeaseId, clock: Clock) -> None:
    renewed_s = clock.monotonic_s()
    while True:
        await asyncio.sleep(LEASE_S * RENEW_SHARE)
        asked_s = clock.monotonic_s()
        left_s = LEASE_S * TRUST_SHARE - (asked_s - renewed_s)
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                if not await store.renew(lease):
                    log.warning("the lead was lost: the lease has ended")
                    return
            renewed_s = asked_s
        except (Unavailable, TimeoutError) as exc:
            if clock.monotonic_s() - renewed_s >= LEASE_S * TRUST_SHARE:
                log.warning("the lead is given up, the store can't be asked: %s", exc)
                return
