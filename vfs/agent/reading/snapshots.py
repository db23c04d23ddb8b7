"""Takes snapshots of prefixes, drops them, and says what there is.

Tasks: those that list directories for one snapshot; they end with the call that takes it. A snapshot that was not finished
answers nothing, and goes at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from vfs.backoff import doubled_s
from vfs.clock import Clock
from vfs.errors import AlreadyExists, Busy, ForemountError, NotADirectory, NotFound, Stale, Unavailable, Unsupported
from vfs.model import Entry, Kind, LakePath, SiteName, join
from vfs.namespace.catalog import CatalogWriter, Known
from vfs.namespace.mounts import MountTable
from vfs.namespace.pins import root_entry
from vfs.namespace.snapshots import Snapshot, next_id, roots_of
from vfs.policy.inforce import Documents, snapshots_named
from vfs.policy.written import SNAPSHOT_NAME
from vfs.sites.protocol import Site

log = logging.getLogger(__name__)
_DIRECTORIES_AT_A_TIME = 16
"""Being listed: over a round trip of 100 ms some 150 directories a second."""
_ATTEMPTS_MAX = 4
_BACKOFF_S, _BACKOFF_S_MAX = 0.2, 2.0
_FORGET_NAMES = 2000
"""In one transaction: 10 ms of the loop."""
_PROGRESS_S = 0.5

Progress = dict[str, Any]


class Snapshots:
    """The snapshots of this host.

    Args:
        documents: the policy in force: a snapshot that a rule names is not dropped.

    Invariant: `_busy` holds the names that are being taken or dropped.
    """

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        catalog: CatalogWriter,
        documents: Documents,
        clock: Clock,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._catalog = catalog
        self._documents = documents
        self._clock = clock
        self._busy: set[str] = set()

    async def take(self, name: str, prefix: LakePath) -> AsyncIterator[Progress]:
        """List all below a prefix into the snapshot `name`; yield how far it is, and last `{"done": true, …}`.

        Raises:
            AlreadyExists: the name is taken. Busy: it is being taken right now.
            NotADirectory, NotFound, Denied, Unavailable, Stale: the origins'; there is no snapshot then.
        Cancellation: there is no snapshot.
        """
        snapshot = self._begin(name, prefix)
        walk = _Walk(self._mounts, self._sites, self._catalog, snapshot)
        self._busy.add(name)
        try:
            walking = asyncio.ensure_future(walk.run())
            try:
                while not (await asyncio.wait({walking}, timeout=_PROGRESS_S))[0]:
                    yield walk.progress()
                await walking
            finally:
                walking.cancel()
                await asyncio.gather(walking, return_exceptions=True)
            done = replace(
                snapshot,
                taken_ns=self._clock.wall_ns(),
                directories=walk.directories,
                files=walk.files,
                bytes=walk.bytes,
            )
            self._catalog.put_snapshot(done)
        except BaseException:
            await asyncio.shield(self._forget(snapshot))
            raise
        finally:
            self._busy.discard(name)
        log.info("snapshot %s of /%s taken: %s files", name, prefix, walk.files)
        yield {"done": True, **self._facts(done, "")}

    def _begin(self, name: str, prefix: LakePath) -> Snapshot:
        if not re.fullmatch(SNAPSHOT_NAME, name):
            raise Unsupported(name, "is no name of a snapshot", "use letters, digits, '.', '_' and '-'")
        self._refuse_busy(name)
        known = self._catalog.snapshots()
        if any(each.name == name for each in known):
            raise AlreadyExists(name, "is the name of a snapshot", "drop that one first, or choose another name")
        roots = roots_of(self._mounts, prefix)
        if not roots:
            raise NotFound(prefix, "nothing is mounted there")
        snapshot = Snapshot(name, next_id(known), prefix, roots, self._clock.wall_ns())
        self._catalog.put_snapshot(snapshot)
        return snapshot

    async def drop(self, name: str) -> Progress:
        """Forget a snapshot and return what it was.

        Raises:
            NotFound: there is none of this name. Busy: a rule names it, or it is being taken.
        """
        found = self._catalog.snapshot(name)
        if found is None:
            raise NotFound(name, "is no snapshot of this host", "see foremount snapshot list")
        self._refuse_busy(name)
        rule = snapshots_named(self._documents.current.rules).get(name)
        if rule is not None:
            raise Busy(name, f"is named by the rule {rule}", "change the rule and reload it first")
        facts = self._facts(found, "")
        self._busy.add(name)
        try:
            await self._forget(found)
        finally:
            self._busy.discard(name)
        return facts

    async def sweep(self) -> None:
        """Forget what an earlier agent did not finish."""
        for snapshot in self._catalog.snapshots():
            if not snapshot.taken_ns and snapshot.name not in self._busy:
                log.warning("snapshot %s of /%s was not finished and goes", snapshot.name, snapshot.prefix)
                await self._forget(snapshot)

    async def _forget(self, snapshot: Snapshot) -> None:
        self._catalog.put_snapshot(replace(snapshot, taken_ns=0))  # it answers nothing from here on
        for root in snapshot.roots:
            await _forget_tree(self._catalog, snapshot.held_at(root))
            self._catalog.forget(snapshot.held_at(root))
        self._catalog.drop_snapshot(snapshot.name)

    def _refuse_busy(self, name: str) -> None:
        if name in self._busy:
            raise Busy(name, "is being taken or dropped")

    def facts(self) -> list[Progress]:
        """Return the snapshots of this host, and those that rules name although they are not here."""
        named = {name: str(origin) for name, origin in snapshots_named(self._documents.current.rules).items()}
        known = {snapshot.name: snapshot for snapshot in self._catalog.snapshots()}
        missing = [Snapshot(name, 0, LakePath(""), (), 0) for name in named if name not in known]
        return [self._facts(each, named.get(each.name, "")) for each in (*known.values(), *missing)]

    def _facts(self, snapshot: Snapshot, pinned_by: str) -> Progress:
        taken = datetime.fromtimestamp(snapshot.begun_ns / 1e9, UTC).isoformat(timespec="seconds")
        return {
            "name": snapshot.name,
            "prefix": "/" + snapshot.prefix,
            "taken": taken if snapshot.taken_ns else "",
            "directories": snapshot.directories,
            "files": snapshot.files,
            "bytes": snapshot.bytes,
            "pinned_by": pinned_by,
            "state": "ready" if snapshot.taken_ns else "unfinished" if snapshot.id else "missing",
        }

    async def about(self, name: str, path: LakePath) -> Progress:
        """Return what a snapshot holds of a path, and whether its origin still has that, for `explain`."""
        found = self._catalog.snapshot(name)
        if found is None or not found.taken_ns or not found.covers(path):
            return {"name": name, "state": "missing" if found is None else "does not hold this path"}
        known = self._catalog.known(found.held_at(path))
        entry = None if known is None else known.entry
        return self._facts(found, "") | {"origin": await self._compare(path, entry)}

    async def _compare(self, path: LakePath, entry: Entry | None) -> str:
        point = self._mounts.find(path)
        assert point is not None, "who asks has found it"
        now: Entry | None = None
        try:
            now = await self._sites[point.site].stat(point.site_path(path))
        except NotFound:
            pass
        except ForemountError as exc:
            return f"can't be asked: {exc.reason}"
        if now is None or entry is None:
            return "has nothing there" if now is None else "has something new there"
        is_same = now.kind is entry.kind and (entry.kind is Kind.DIRECTORY or now.version == entry.version)
        return "has it as it was" if is_same else "has another version"


class _Walk:
    """Lists everything of one snapshot.

    Attributes:
        directories, files, bytes: listed so far.
    """

    def __init__(
        self, mounts: MountTable, sites: Mapping[SiteName, Site], catalog: CatalogWriter, snapshot: Snapshot
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._catalog = catalog
        self._snapshot = snapshot
        self._queue: asyncio.Queue[LakePath] = asyncio.Queue()
        self.directories = self.files = self.bytes = 0

    async def run(self) -> None:
        for root in self._snapshot.roots:
            await self._check_root(root)
            known = Known(root_entry(root), self._snapshot.begun_ns)
            self._catalog.put(self._snapshot.held_at(root), known)
            self._queue.put_nowait(root)
        try:
            async with asyncio.TaskGroup() as group:
                listing = [group.create_task(self._list_from_queue()) for _ in range(_DIRECTORIES_AT_A_TIME)]
                await self._queue.join()
                for task in listing:
                    task.cancel()
        except* ForemountError as failed:
            raise _first(failed) from failed

    def progress(self) -> Progress:
        return {"directories": self.directories, "files": self.files, "bytes": self.bytes}

    async def _check_root(self, root: LakePath) -> None:
        point = self._mounts.find(root)
        assert point is not None, "roots lie in mount points"
        with contextlib.suppress(NotFound):  # of a mount point: it is empty then
            if (await self._sites[point.site].stat(point.site_path(root))).kind is not Kind.DIRECTORY:
                raise NotADirectory(root, hint="a snapshot is of a directory with all below it")
            return
        if root != point.prefix:
            raise NotFound(root)

    async def _list_from_queue(self) -> None:
        while True:
            directory = await self._queue.get()
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                try:
                    await self._list(directory)
                    break
                except Unavailable:
                    if attempt == _ATTEMPTS_MAX:
                        raise
                    await asyncio.sleep(doubled_s(_BACKOFF_S, _BACKOFF_S_MAX, attempt))
            self._queue.task_done()

    async def _list(self, directory: LakePath) -> None:
        """Bring one directory into the snapshot; what an attempt before this has left goes."""
        held, point = self._snapshot.held_at(directory), self._mounts.find(directory)
        assert point is not None, "below a root"
        await _forget_tree(self._catalog, held)
        listing = self._catalog.begin_listing(held, self._snapshot.begun_ns)
        below: list[LakePath] = []
        files = size = 0
        try:
            async for page in self._sites[point.site].list(point.site_path(directory)):
                listing = self._catalog.extend_listing(held, listing, page, self._snapshot.begun_ns)
                for entry in page:
                    path = LakePath(join(directory, entry.name))
                    if entry.kind is Kind.DIRECTORY and path not in self._snapshot.roots:
                        below.append(path)
                    elif entry.kind is Kind.FILE:
                        files, size = files + 1, size + entry.version.size
        except (NotFound, NotADirectory) as exc:
            if directory != point.prefix:
                hint = "take the snapshot when nobody publishes"
                raise Stale(directory, "went while the snapshot was taken", hint) from exc
        self._catalog.complete_listing(held, listing)
        self.directories, self.files, self.bytes = self.directories + 1, self.files + files, self.bytes + size
        for path in below:
            self._queue.put_nowait(path)


async def _forget_tree(catalog: CatalogWriter, path: LakePath) -> None:
    """Forget what the catalog has below a path, some names at a time: others are served in between."""
    directories = [path]
    while directories:
        below, more = catalog.forget_listing(directories[-1], _FORGET_NAMES)
        if not more:
            directories.pop()
        directories += below
        await asyncio.sleep(0)


def _first(failed: BaseExceptionGroup[ForemountError]) -> ForemountError:
    """Return the first of our errors in a group."""
    found = failed.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
