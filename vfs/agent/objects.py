"""Objects that are open or being made local: which version of what, in which store, held by whom.

Tasks: one for each object that has just become complete, which seals it. They belong to the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vfs.errors import ForemountError, NotFound
from vfs.extents.fetch import Fetcher, Priority
from vfs.extents.layout import Identity
from vfs.extents.store import Store
from vfs.model import LakePath, ObjectKey, Version, object_key
from vfs.namespace.mounts import MountPoint, MountTable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """An object that somebody holds.

    Attributes:
        holds: > 0; each is one hold of the store too.
        sealing: its completeness is being checked right now.
    """

    identity: Identity
    holds: int = 0
    sealing: bool = False


class Objects:
    """Opens, fills and seals objects.

    Invariant: every key in `_open` is held in the fetcher as often as `holds` says.
    """

    def __init__(
        self, mounts: MountTable, fetcher: Fetcher, store: Store, *, spawn: Callable[[Awaitable[None]], None]
    ) -> None:
        self._mounts = mounts
        self._fetcher = fetcher
        self._store = store
        self._spawn = spawn
        self._open: dict[ObjectKey, _Open] = {}

    def identity(self, path: LakePath, version: Version) -> Identity:
        """Return which object of which site a version of a path is.

        Raises:
            NotFound: nothing is mounted there.
        """
        point = self._point(path)
        return Identity(point.site, point.site_path(path), version)

    async def open(self, path: LakePath, version: Version) -> tuple[ObjectKey, str]:
        """Make room for this version and hold it until `close`; return its key and the directory of its store."""
        identity = self.identity(path, version)
        key = object_key(identity.site, identity.path, identity.version)
        root = await self._fetcher.hold(identity)
        self._open.setdefault(key, _Open(identity)).holds += 1
        return key, root

    async def need(self, key: ObjectKey, offset: int, length: int, broken: int = -1, *, background: bool = False) -> str:
        """Return the store's directory once every block of the range is there.

        Args:
            broken: a block that its reader found wrong, dropped first; -1: none.
            background: nobody waits for it right now.

        Raises:
            NotFound: the object is not open.
            Stale, NotFound, Denied, Unavailable: no origin or replica gave it.
        """
        found = self._open.get(key)
        if found is None:
            raise NotFound(key, "is not open in the agent")
        if broken >= 0:
            await self._fetcher.drop(key, broken)
        priority = Priority.BACKGROUND if background else Priority.FOREGROUND
        root = await self._fetcher.ensure(found.identity, offset, length, priority)
        self._seal_soon(key, found)
        return root

    def close(self, key: ObjectKey) -> None:
        """Give one hold back."""
        found = self._open[key]
        found.holds -= 1
        self._fetcher.release(key)
        if not found.holds:
            del self._open[key]

    def open_count(self) -> int:
        """Return how many objects are open."""
        return len(self._open)

    def _seal_soon(self, key: ObjectKey, found: _Open) -> None:
        if not found.sealing and self._is_complete(key, found):
            found.sealing = True
            self._spawn(self._seal(key, found))

    def _is_complete(self, key: ObjectKey, found: _Open) -> bool:
        try:
            return not self._store.missing(key, 0, found.identity.version.size)
        except ForemountError:
            return False  # it lies in memory, or the cache disk fails: there is nothing to seal

    async def _seal(self, key: ObjectKey, found: _Open) -> None:
        """Read a complete object back and seal it: its next open is passthrough."""
        try:
            await asyncio.to_thread(self._store.seal, key)
        except ForemountError as exc:
            log.info("%s: not sealed: %s", found.identity.path, exc)
        finally:
            found.sealing = False

    def _point(self, path: LakePath) -> MountPoint:
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path, "nothing is mounted there")
        return point
