"""What a mount and its controller say to each other: events there, published copies here, and which of them are being read.

`Direct` is the line of an agent that is the controller itself; `vfs/foresight/controller/remote.py` is the one over HTTP.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from vfs.clock import Clock
from vfs.foresight import keys
from vfs.foresight.board import Board
from vfs.foresight.controller.intake import SEEN_S, Marks, accept
from vfs.foresight.model import Event, FileCopy, Phase, ReplicaId, ReplicaRecord
from vfs.foresight.stores.protocol import Delete, LeaseId, Put, Store, every, pages, write_all

log = logging.getLogger(__name__)
OPEN_S = 30.0
"""A mount that has not said for so long what it reads from reads nothing any more."""
OFFERED_AT_ONCE = 100
"""Copies in one piece of the first answer: with the files of all of them a line of some MiB."""


class Offered(msgspec.Struct, frozen=True):
    """A copy that may be read."""

    replica: ReplicaRecord
    files: list[FileCopy]


class Offers(msgspec.Struct, frozen=True):
    """What has changed.

    Attributes:
        all: with these, all that there are have been offered since the line began; what was offered before that and has not
            been since is not offered any more.
        withdrawn: not to be read from any more.
    """

    offered: list[Offered] = []
    withdrawn: list[ReplicaId] = []
    all: bool = False


class Line(Protocol):
    """Raises (of all): Unavailable: to be asked again."""

    async def tell(self, events: Sequence[Event]) -> int:
        """Hand events over, in order; return how many were new."""
        ...

    def offers(self) -> AsyncIterator[Offers]:
        """Yield all that is offered, in pieces, and then what changes, until the line breaks."""
        ...

    async def reads(self, mount: str, replicas: Sequence[ReplicaId]) -> None:
        """Say from which copies something is being read; to be said again every `OPEN_S` / 3."""
        ...

    async def board(self) -> Board:
        """Return what people look at."""
        ...


class Direct:
    """A `Line` to a store of this process.

    Args:
        board: makes what people look at.

    Attributes:
        _leases: of each mount, and the copies that it said it reads from.
    """

    def __init__(self, store: Store, clock: Clock, board: Callable[[], Awaitable[Board]]) -> None:
        self._store = store
        self._board = board
        self._clock = clock
        self._marks = Marks(store, clock, SEEN_S)
        self._leases: dict[str, tuple[LeaseId, frozenset[ReplicaId]]] = {}

    async def tell(self, events: Sequence[Event]) -> int:
        return sum([await accept(self._store, event, self._marks, self._clock.wall_ns()) for event in events])

    async def board(self) -> Board:
        return await self._board()

    async def offers(self) -> AsyncIterator[Offers]:
        revision, shown = None, set[ReplicaId]()
        async for page in pages(self._store, keys.REPLICAS):
            revision = page.revision if revision is None else revision
            records = [keys.decode(item.value, ReplicaRecord) for item in page.items]
            offering = [record for record in records if record.phase is Phase.PUBLISHED]
            shown.update(record.id for record in offering)
            for start in range(0, len(offering), OFFERED_AT_ONCE):
                yield Offers([await self._offered(record) for record in offering[start : start + OFFERED_AT_ONCE]])
        assert revision is not None
        yield Offers(all=True)
        async with contextlib.aclosing(self._store.watch(keys.REPLICAS, revision)) as watch:  # type: ignore[type-var]
            async for changes in watch:
                offered, withdrawn = [], []
                for change in changes:
                    name = ReplicaId(change.key[len(keys.REPLICAS) :])
                    record = None if change.value is None else keys.decode(change.value, ReplicaRecord)
                    if record is not None and record.phase is Phase.PUBLISHED:
                        shown.add(name)
                        offered.append(await self._offered(record))
                    elif name in shown:
                        shown.discard(name)
                        withdrawn.append(name)
                if offered or withdrawn:
                    yield Offers([each for each in offered if each.replica.id in shown], withdrawn)

    async def _offered(self, record: ReplicaRecord) -> Offered:
        items, _ = await every(self._store, keys.copies_prefix(record.id))
        return Offered(record, [keys.decode(item.value, FileCopy) for item in items])

    async def reads(self, mount: str, replicas: Sequence[ReplicaId]) -> None:
        now = frozenset(replicas)
        lease, before = self._leases.get(mount, (LeaseId(0), frozenset[ReplicaId]()))
        if not lease or not await self._store.renew(lease):
            if not now:
                return
            lease, before = await self._store.lease(OPEN_S), frozenset()
        changes: list[Put | Delete] = [Put(keys.open_prefix(each) + mount, b"", lease) for each in sorted(now - before)]
        changes += [Delete(keys.open_prefix(each) + mount) for each in sorted(before - now)]
        await write_all(self._store, changes)
        self._leases[mount] = lease, now
