"""A store that is gone with its process: for tests, and it passes the contract of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from vfs.clock import Clock
from vfs.errors import Stale
from vfs.foresight.stores.protocol import Change, Delete, Item, LeaseId, Page, Put


class Memory:
    """Ends leases when it is asked for anything, and by a timer while somebody watches."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[str, tuple[Item, LeaseId]] = {}
        self._leases: dict[LeaseId, tuple[float, float]] = {}
        self._log: list[Change] = []
        self._revision = self._last_lease = 0
        self._changed = asyncio.Event()

    async def close(self) -> None:
        return

    async def get(self, key: str) -> Item | None:
        self.end_leases()
        found = self._items.get(key)
        return None if found is None else found[0]

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        self.end_leases()
        keys = [key for key in self._items if key.startswith(prefix) and (not after or key.encode() > after.encode())]
        keys.sort(key=str.encode)
        return Page([self._items[key][0] for key in keys[:limit]], self._revision)

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        self.end_leases()
        for change in changes:
            if isinstance(change, Put) and change.lease and change.lease not in self._leases:
                raise Stale(change.key, "its lease has ended")
        for key, revision in (expect or {}).items():
            found = self._items.get(key)
            if (0 if found is None else found[0].revision) != revision:
                return False
        self._make(changes)
        return True

    def _make(self, changes: Sequence[Put | Delete]) -> None:
        self._revision += 1
        for change in changes:
            if isinstance(change, Put):
                self._items[change.key] = Item(change.key, change.value, self._revision), change.lease
                self._log.append(Change(change.key, change.value, self._revision))
            elif self._items.pop(change.key, None) is not None:
                self._log.append(Change(change.key, None, self._revision))
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, prefix: str, after: int) -> AsyncIterator[list[Change]]:
        seen = after
        while True:
            self.end_leases()
            changed = self._changed
            fresh = [change for change in self._log if change.revision > seen and change.key.startswith(prefix)]
            seen = max(seen, self._revision)
            if fresh:
                yield fresh
                continue
            ends_s = min((ends_s for _, ends_s in self._leases.values()), default=None)
            wait_s = None if ends_s is None else max(0.0, ends_s - self._clock.monotonic_s())
            try:
                async with asyncio.timeout(wait_s):
                    await changed.wait()
            except TimeoutError:
                continue

    async def lease(self, ttl_s: float) -> LeaseId:
        self._last_lease += 1
        lease = LeaseId(self._last_lease)
        self._leases[lease] = ttl_s, self._clock.monotonic_s() + ttl_s
        return lease

    async def renew(self, lease: LeaseId) -> bool:
        self.end_leases()
        if lease not in self._leases:
            return False
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = ttl_s, self._clock.monotonic_s() + ttl_s
        return True

    async def revoke(self, lease: LeaseId) -> None:
        if self._leases.pop(lease, None) is not None:
            self._make([Delete(key) for key, (_, held) in list(self._items.items()) if held == lease])

    def end_leases(self) -> None:
        """Let go of what has run out, now that the clock may have moved on."""
        now_s = self._clock.monotonic_s()
        for lease in [lease for lease, (_, ends_s) in self._leases.items() if ends_s <= now_s]:
            del self._leases[lease]
            self._make([Delete(key) for key, (_, held) in list(self._items.items()) if held == lease])
