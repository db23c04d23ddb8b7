"""What each mechanism has copied within the last hour, also by the leaders before: the store counts the hour.

Bytes are noted in memory and written down every `FLUSH_S` under a key of their own whose lease ends an hour later; a leader
that is killed forgets what it has not written. No task of its own: the controller's clockwork calls `flush`.
"""

from __future__ import annotations

import uuid
from collections import Counter

from vfs.clock import Clock
from vfs.foresight import keys
from vfs.foresight.model import Mechanism
from vfs.foresight.stores.protocol import Change, Put, Store, every

HOUR_S = 3600.0
FLUSH_S = 5.0


class Spending:
    """Bytes by mechanism.

    Attributes:
        _written: what the store holds, by key.
        _fresh: noted since the last flush.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._written: dict[str, int] = {}
        self._fresh: Counter[Mechanism] = Counter()
        self._flushed_s = clock.monotonic_s()

    async def read(self) -> None:
        """Take in what was written down before."""
        for item in (await every(self._store, keys.SPENT))[0]:
            self._written[item.key] = int(item.value)

    def changed(self, change: Change) -> None:
        """Take in a change of the store: an hour is over, or this leader's own flush."""
        if change.value is None:
            self._written.pop(change.key, None)
        else:
            self._written[change.key] = int(change.value)

    def note(self, mechanism: Mechanism, size: int) -> None:
        """Bytes were copied."""
        self._fresh[mechanism] += size

    def within_hour(self, mechanism: Mechanism) -> int:
        """Return the bytes that were copied within the last hour."""
        prefix = keys.spent_prefix(mechanism)
        return self._fresh[mechanism] + sum(size for key, size in self._written.items() if key.startswith(prefix))

    async def flush(self) -> None:
        """Write down what was noted, if it is time."""
        now_s = self._clock.monotonic_s()
        if now_s - self._flushed_s < FLUSH_S or not self._fresh.total():
            return
        self._flushed_s = now_s
        lease = await self._store.lease(HOUR_S)
        for mechanism, size in (+self._fresh).items():  # those alone that have copied something
            key = keys.spent_prefix(mechanism) + uuid.uuid4().hex
            await self._store.write([Put(key, str(size).encode(), lease)])
            self._fresh[mechanism] -= size
            self._written[key] = size
