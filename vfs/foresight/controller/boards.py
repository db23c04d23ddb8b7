"""Keeps what people see of foresight up to date, at whichever controller they ask.

Tasks: `follow`, which watches the store. Memory: the records that were changed last, and who read what for five minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from vfs.backoff import doubled_s
from vfs.clock import Clock
from vfs.errors import ForemountError
from vfs.foresight import keys
from vfs.foresight.board import Board, Heat, Latest, board_of
from vfs.foresight.model import LedgerEntry, ReplicaId, ReplicaRecord
from vfs.foresight.stores.protocol import PAGE_ITEMS, Change, Store
from vfs.model import SiteName

log = logging.getLogger(__name__)
ENTRIES_KEPT = 1000
REPLICAS_KEPT = 1000
_RETRY_S, _RETRY_S_MAX = 0.2, 30.0


class Boards:
    """What `GET /v1/board` answers with."""

    def __init__(self, store: Store, clock: Clock, racks: Mapping[SiteName, str]) -> None:
        self._store = store
        self._clock = clock
        self._racks = racks
        self._heat = Heat()
        self._entries = Latest[LedgerEntry](ENTRIES_KEPT)
        self._replicas = Latest[ReplicaRecord](REPLICAS_KEPT)

    async def board(self) -> Board:
        """Return what is known now."""
        leader = await self._store.get(keys.LEADER)
        name = leader.value.decode() if leader is not None else ""
        heat = self._heat.over_time(self._clock.monotonic_s())
        return board_of(name, self._entries.values(), self._replicas.values(), heat, self._racks)

    async def follow(self) -> None:
        """Follow the store until it is cancelled."""
        attempts = 0
        while True:
            try:
                revision = await self._begin()
                attempts = 0
                async for changes in self._store.watch("", revision):
                    for change in changes:
                        self._changed(change)
            except ForemountError as exc:
                attempts += 1
                log.debug("what is shown stays as it was: %s", exc)
                await asyncio.sleep(doubled_s(_RETRY_S, _RETRY_S_MAX, attempts))

    async def _begin(self) -> int:
        """Take in a page of what there is: all of it, unless that is much; what changes later is seen anyway."""
        revision = (await self._store.range(keys.LEADER, limit=1)).revision
        self._heat.nobody(self._clock.monotonic_s())
        for prefix in (keys.LEDGER, keys.REPLICAS, keys.OPEN):
            page = await self._store.range(prefix, limit=PAGE_ITEMS)
            for item in page.items:
                self._changed(Change(item.key, item.value, item.revision))
        return revision

    def _changed(self, change: Change) -> None:
        room, _, rest = change.key.partition("/")
        match room:
            case "ledger" if change.value is not None:
                self._entries.put(change.key, keys.decode(change.value, LedgerEntry))
            case "replicas" if change.value is not None:
                self._replicas.put(change.key, keys.decode(change.value, ReplicaRecord))
            case "replicas":
                self._replicas.remove(change.key)
            case "open":
                replica, _, mount = rest.partition("/")
                count = self._heat.begins if change.value is not None else self._heat.ends
                count(ReplicaId(replica), mount, self._clock.monotonic_s())
