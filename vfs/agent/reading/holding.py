"""Holds versions of lake paths in the fetch service, each with the replicas that the policy lets serve it."""

from __future__ import annotations

from vfs import wire
from vfs.agent.reading.published import Published
from vfs.agent.reading.replicas import Replicas
from vfs.agent.rules import PathRules
from vfs.errors import NotFound
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import PASSTHROUGH_BYTES_MIN, Identity
from vfs.extents.placement import served_here
from vfs.model import LakePath, ObjectKey, Version
from vfs.namespace.mounts import MountTable
from vfs.usage import CallerFacts, asking


class Holding:
    """Turns a path's version into an object of its origin that can be fetched.

    Args:
        published: copies that were made for readers to come; None: there are none.
    """

    def __init__(
        self,
        mounts: MountTable,
        fetcher: Fetcher,
        replicas: Replicas,
        rules: PathRules,
        published: Published | None = None,
    ) -> None:
        self._mounts = mounts
        self._fetcher = fetcher
        self._replicas = replicas
        self._rules = rules
        self._published = published

    def identity(self, path: LakePath, version: Version) -> Identity:
        """Return which object of which site a version of a path is.

        Raises:
            NotFound: nothing is mounted there.
        """
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path, "nothing is mounted there")
        return Identity(point.site, point.site_path(path), version)

    async def hold(self, path: LakePath, version: Version) -> tuple[Identity, ObjectKey, str]:
        """Make room for this version and hold it until `release`; return it, its key and the directory of its store.

        Raises:
            NotFound, NoSpace, Unavailable, Unsupported: as `identity` and `Fetcher.hold`.
        """
        identity, serving = self.identity(path, version), self._rules.serving(path, version.size)
        key = identity.key
        self._rules.opened(key, asking())
        found = await self._replicas.find(path, identity, serving, lambda late: self._fetcher.add_replicas(key, [late]))
        copies = self._published.of(identity) if self._published is not None else []
        return identity, key, await self._fetcher.hold(identity, found, serving=serving, copies=copies)

    def here(self, path: LakePath, identity: Identity, start: int = 0) -> wire.CopyHere | None:
        """Return a file of this host that is a copy of a whole object made ahead, where the policy has it serve first.

        Args:
            start: it is about to be opened, and counts as read from there on: what the kernel reads, nobody else sees.
        """
        copy = self._copy_here(path, identity)
        if copy is None or self._published is None:
            return None
        self._fetcher.opened_here(copy, identity, start)
        return wire.CopyHere(self._published.directory(copy), copy.path, copy.version)

    def is_here(self, path: LakePath, identity: Identity) -> bool:
        """Return whether whoever opens it would read it from such a copy: to fetch it ahead would be for nobody."""
        return self._copy_here(path, identity) is not None

    def _copy_here(self, path: LakePath, identity: Identity) -> Identity | None:
        if self._published is None or identity.version.size < PASSTHROUGH_BYTES_MIN:
            return None
        copies = self._published.of(identity)
        point = self._mounts.find(path) if copies else None
        local = {copy.identity.site: copy for copy in copies if not copy.ranges and self._published.directory(copy.identity)}
        if not local or point is None:
            return None
        remote = {copy.identity.site for copy in copies} | {replica.site for replica in point.replicas}
        order = self._rules.serving(path, identity.version.size).order
        first = served_here(order, identity.site, list(local), sorted(remote - local.keys()))
        return local[first[0]].identity if first else None

    def joined(self, key: ObjectKey, caller: CallerFacts) -> None:
        """Note that a process has an object open, or reads it, that is held for another one."""
        self._rules.opened(key, caller)

    def closed(self, key: ObjectKey) -> None:
        """Note that no process has an object open any more."""
        self._rules.closed(key)

    def release(self, key: ObjectKey) -> None:
        """Undo one `hold`."""
        self._fetcher.release(key)
