"""Objects that the worker has open or that are being made local: a path's version as an object of its origin."""

from __future__ import annotations

from typing import NamedTuple

from vfs import wire
from vfs.agent.reading.holding import Holding
from vfs.agent.reading.prefetch import Prefetcher
from vfs.errors import NotFound
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.model import LakePath, ObjectKey, Version
from vfs.usage import CallerFacts, asking


class _Open(NamedTuple):
    """What is open, and how often it is held for that."""

    path: LakePath
    identity: Identity
    holds: int


class Objects:
    """Opens and fills objects.

    Invariant: every key in `_open` is held in the fetcher as often as its count says; those in `_here` are among them.
    """

    def __init__(self, holding: Holding, fetcher: Fetcher, prefetcher: Prefetcher) -> None:
        self._holding = holding
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._open: dict[ObjectKey, _Open] = {}
        self._here: dict[ObjectKey, wire.CopyHere] = {}

    def identity(self, path: LakePath, version: Version) -> Identity:
        """Return which object of which site a version of a path is.

        Raises:
            NotFound: nothing is mounted there.
        """
        return self._holding.identity(path, version)

    async def open(self, path: LakePath, version: Version) -> tuple[ObjectKey, str]:
        """Make room for this version and hold it until `close`; return its key and the directory of its store."""
        identity, key, root = await self._holding.hold(path, version)
        self._open[key] = _Open(path, identity, (self._open[key].holds if key in self._open else 0) + 1)
        copy = self._holding.here(path, identity)
        if copy is not None:
            self._here[key] = copy  # it is read from there: nothing is fetched ahead
        else:
            self._here.pop(key, None)
            self._prefetcher.opened(identity, path)
        return key, root

    def here(self, key: ObjectKey) -> wire.CopyHere | None:
        """Return the file of this host that an open object can be read from."""
        return self._here.get(key)

    async def need(self, key: ObjectKey, offset: int, length: int, *, broken: int = -1, background: bool = False) -> str:
        """Return the directory of the object's store once every block of the range is there.

        Args:
            broken: a block that its reader found wrong, dropped first; `wire.WHOLE`: it can't use the files; -1: none.
            background: nobody waits for it right now.

        Raises:
            NotFound: the object is not open.
            Stale, NotFound, Denied, Unavailable, NoSpace: as `Fetcher.ensure`.
        """
        if key not in self._open:
            raise NotFound(key, "is not open in the agent")
        self._holding.joined(key, asking())
        identity = self._open[key].identity
        if broken == wire.WHOLE or (broken >= 0 and not await self._fetcher.drop(key, broken)):
            await self._fetcher.renew_if_unusable(identity)  # a block that is right here: its reader may have other files
        priority = Priority.BACKGROUND if background else Priority.FOREGROUND
        root = await self._fetcher.ensure(identity, offset, length, priority)
        if not background:
            self._look_here(key, offset + length)
        return root

    def _look_here(self, key: ObjectKey, start: int) -> None:
        """Look whether a copy on this host has come since an object was opened; it is read from there from now on."""
        held = self._open.get(key)
        if held is None or key in self._here:
            return
        copy = self._holding.here(held.path, held.identity, start)
        if copy is not None:
            self._here[key] = copy
            self._prefetcher.read_elsewhere(key)

    def joined(self, key: ObjectKey, caller: CallerFacts) -> None:
        """Note that one more process has an object open."""
        if key in self._open:
            self._holding.joined(key, caller)

    def close(self, key: ObjectKey) -> None:
        """Give one hold back."""
        held = self._open.pop(key)
        if held.holds > 1:
            self._open[key] = held._replace(holds=held.holds - 1)
        else:
            self._here.pop(key, None)
            self._holding.closed(key)
            self._prefetcher.closed(key)
        self._holding.release(key)

    def open_count(self) -> int:
        """Return how many objects are open."""
        return len(self._open)
