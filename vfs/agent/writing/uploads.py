"""Brings what is staged on this host to its origins: desired state from the journal, observed state in the catalog.

Flow: `_look` reads what the worker appended and says which nodes have something to do (`uploadplan.py`); each becomes a task
that has one step carried out (`publishing.py`), notes it in the catalog and lets the node be looked at again. Whatever is
killed is found again by comparing the two states; parts that had arrived are not sent again. What fails rests, longer each
time, and is tried for ever: nowhere else are these bytes.

Tasks: one that looks, one for each step under way; all end with the service. Files under way are bounded by `limits.files`,
parts by `limits.parts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from vfs.agent.writing.commits import Commits, site_path_of
from vfs.agent.writing.publishing import Carried, Publisher, resume_of
from vfs.agent.writing.sending import SendLimits
from vfs.agent.writing.uploadplan import Move, Send, Step, all_below, next_step, node_at, old_markers, order
from vfs.backoff import doubled_s
from vfs.checkpoints.manifest import Manifest, ManifestFile
from vfs.clock import Clock
from vfs.errors import (
    Corrupt,
    Denied,
    ForemountError,
    NoSpace,
    Stale,
    Unavailable,
    Unsupported,
    from_failure,
    to_failure,
)
from vfs.model import Entry, Kind, LakePath, SiteName, SitePath, Version, split
from vfs.namespace.catalog import CatalogWriter, Known
from vfs.namespace.journal import JournalReader
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.namespace.staged import At, Staged, StagedKind, StagedNodes, Upload, UploadState
from vfs.policy.engine import Decision
from vfs.sites.protocol import Site
from vfs.sites.writing import SiteWriter

log = logging.getLogger(__name__)
TURN_S = 0.5
"""Between looks when nobody tells; the worker does."""
_NOTE_EVERY_S = 1.0
_RELOOK_S = 0.1
"""A marker is looked at again so long after a file is done: one look for many files."""
_FINAL = (Denied, NoSpace, Unsupported, Corrupt)
"""What a waiting fsync is told at once; the upload is tried again nevertheless."""
RACY_S = 2.5
"""Stores that state whole seconds know a new object's final version after this."""


@dataclass(slots=True)
class _Rest:
    """A node that failed or waits.

    Attributes:
        until_s: when it is looked at again, monotonic.
    """

    attempts: int
    until_s: float


@dataclass(slots=True)
class _Waiter:
    """Somebody who wants a content to be at its origin.

    Invariant: `done` is set exactly once.
    """

    seq: int
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Uploads:
    """The service. `async with Uploads(…) as uploads:` runs it; leaving cancels what it does, which is resumed next time.

    Args:
        writers: by site; of sites that can't be written there is none.
        directory: of the staging area.
        decide: the policy's values for writing a path.

    Attributes:
        counters: bytes and files uploaded, parts sent again are not told apart.

    Invariants: a node has one task at most, and so has a path at an origin.
    """

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        writers: Mapping[SiteName, SiteWriter],
        catalog: CatalogWriter,
        *,
        directory: str,
        decide: Callable[[LakePath], Decision],
        clock: Clock,
        limits: SendLimits,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._writers = writers
        self._catalog = catalog
        self._clock = clock
        self._limits = limits
        self._journal = JournalReader(directory)
        self._commits = Commits(catalog)
        self._dirty: set[int] = set()
        self._retired: set[int] = set()
        self._rests: dict[int, _Rest] = {}
        self._seen_ns: dict[int, int] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._paths: set[tuple[SiteName, SitePath]] = set()
        self._waiters: dict[int, list[_Waiter]] = {}
        self._woken = asyncio.Event()
        self._stepped = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self.counters: Counter[str] = Counter()
        self._on_begun: Callable[[LakePath], None] = lambda path: None
        self._on_stored: Callable[[LakePath, ManifestFile], None] = lambda path, file: None
        self._publisher = Publisher(
            self,
            sites,
            writers,
            catalog,
            self._commits,
            directory=directory,
            decide=decide,
            clock=clock,
            limits=limits,
            counters=self.counters,
        )

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._following = self._tasks.create_task(self._follow(), name="uploads")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._following.cancel()
        for task in self._running.values():
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._journal.close()
        self._publisher.close()

    # What others ask for

    def notify(
        self,
        *,
        begun: Callable[[LakePath], None],
        stored: Callable[[LakePath, ManifestFile], None],
        committed: Callable[[Manifest], None],
    ) -> None:
        """Have somebody told of files that come into the staging area, that are at their origin, and of commits."""
        self._on_begun, self._on_stored, self._commits.on_commit = begun, stored, committed

    def wake(self) -> None:
        """The journal has grown."""
        self._woken.set()

    async def settle(self, node_id: int, seq: int) -> None:
        """Return when the origin holds this content of a node, or a later one.

        Raises:
            Stale: the journal does not hold the node any more.
            Denied, NoSpace, Unsupported, Corrupt: its upload has failed in a way that time alone does not mend.
        """
        waiter = _Waiter(seq)
        self._waiters.setdefault(node_id, []).append(waiter)
        self._rests.pop(node_id, None)
        self._dirty.add(node_id)
        self.wake()
        try:
            await waiter.done
        finally:
            self._waiters[node_id].remove(waiter)
            if not self._waiters[node_id]:
                del self._waiters[node_id]

    def pending(self) -> list[tuple[Staged, Upload | None]]:
        """Return the files that the origins don't have as they are now, and what is noted of each."""
        nodes = self._journal.nodes
        return [
            (node, self._catalog.upload(node.id))
            for node in nodes
            if node.kind is StagedKind.FILE and node.content and not node.settled and self._commits.record(node) is None
            if nodes.path(node) is not None
        ]

    @property
    def busy(self) -> bool:
        """Whether a step is under way or could begin."""
        return bool(self._running or self._dirty - self._rests.keys())

    @property
    def nodes(self) -> StagedNodes:
        """What is staged, as the journal said last."""
        return self._journal.nodes

    async def drained(self) -> None:
        """Return when the origins have all that can be uploaded."""
        while any(not node.writing for node, _ in self.pending()):
            await self._stepped.wait()

    # Looking

    async def _follow(self) -> None:
        while True:
            self._woken.clear()
            try:
                self._look()
            except ForemountError as exc:
                log.error("staged writes are not uploaded: %s", exc)  # noqa: TRY400  its sentence says it all
                await asyncio.sleep(_NOTE_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._turn_s()):
                    await self._woken.wait()

    def _turn_s(self) -> float:
        """Return how long there is nothing to do unless somebody tells."""
        due_s = min((rest.until_s for rest in self._rests.values()), default=math.inf) - self._clock.monotonic_s()
        return min(TURN_S, max(0.0, due_s))

    def _take_in(self) -> None:
        """Read what was appended to the journal."""
        polled = self._journal.poll()
        now_ns = self._clock.wall_ns()
        if polled.anew:
            self._dirty |= {node.id for node in self._journal.nodes} | self._catalog.uploads().keys()
        self._dirty |= polled.changed
        for node_id in polled.changed:
            node = self._journal.nodes.get(node_id)
            if node is not None and node.kind is StagedKind.DIRECTORY:
                self._dirty |= {below.id for below in all_below(self._journal.nodes, node)}
        self._retired |= polled.retired
        for node_id in polled.changed:
            if node_id not in self._seen_ns:
                self._tell_begun(node_id)
            self._seen_ns.setdefault(node_id, now_ns)
            self._rests.pop(node_id, None)

    def _tell_begun(self, node_id: int) -> None:
        node = self._journal.nodes.get(node_id)
        path = self._journal.nodes.path(node) if node is not None and node.kind is StagedKind.FILE else None
        if path:
            self._on_begun(path)

    def _look(self) -> None:
        """Take in what has changed and begin what can be begun."""
        self._take_in()
        nodes, now_s = self._journal.nodes, self._clock.monotonic_s()
        ready: list[Staged] = []
        for node_id in [each for each in self._dirty if self._is_ready(each, now_s)]:
            node = nodes.get(node_id)
            if node is None:
                self._forget(node_id)
            else:
                ready.append(node)
        if len(self._running) < self._limits.files:  # else thousands would be sorted at each step of one of them
            ready.sort(key=lambda node: (node.id not in self._waiters, *order(node)))
        for node in ready:
            if len(self._running) >= self._limits.files:
                break
            self._begin(node, nodes.path(node) or LakePath(""))

    def _is_ready(self, node_id: int, now_s: float) -> bool:
        rest = self._rests.get(node_id)
        return node_id not in self._running and (rest is None or rest.until_s <= now_s)

    def _begin(self, node: Staged, path: LakePath) -> None:
        point = self._mounts.find(path)
        record = self._catalog.upload(node.id)
        to = site_path_of(point, path or None) if point is not None else None
        step = next_step(node, to, record)
        if step is None or point is None or point.site not in self._writers:
            self._dirty.discard(node.id)
            self._rests.pop(node.id, None)
            self._tell_waiters(node)
            return
        key = (point.site, step.to)
        if key in self._paths or (isinstance(step, Send | Move) and self._has_old_markers(node)):
            return  # stays dirty
        self._dirty.discard(node.id)
        self._paths.add(key)
        self._running[node.id] = self._tasks.create_task(self._run(node, path, point, step), name=f"upload {path}")

    def _has_old_markers(self, node: Staged) -> bool:
        return any(self._commits.record(marker) is None for marker in old_markers(self._journal.nodes, node))

    def _forget(self, node_id: int) -> None:
        """The journal does not hold the node any more."""
        retired = node_id in self._retired
        self._retired.discard(node_id)
        self._dirty.discard(node_id)
        self._rests.pop(node_id, None)
        self._seen_ns.pop(node_id, None)
        record = self._catalog.upload(node_id)
        for waiter in self._waiters.get(node_id, ()):
            if not waiter.done.done():
                waiter.done.set_exception(Stale("staged file", "is not there any more"))
        if record is not None:
            if not retired:
                self._abandon(record)
            self._catalog.drop_upload(node_id)

    def _abandon(self, record: Upload) -> None:
        """Have removed what has arrived of a file that is gone, also where it was sent under a name that it had before."""
        resume, at = resume_of(record), record.at
        if resume is not None and resume.site in self._writers:
            abandoning = functools.partial(self._writers[resume.site].abandon, resume.upload)
            self._tasks.create_task(self._clear(resume.site, resume.upload.path, abandoning))
        elif record.state is UploadState.DONE and at is not None and record.site in self._writers:
            leaving = functools.partial(self._remove_left, record.site, at)
            self._tasks.create_task(self._clear(record.site, at.path, leaving))

    async def _clear(self, site: SiteName, path: SitePath, remove: Callable[[], Awaitable[None]]) -> None:
        """Remove something at a path, while no step is under way there: nothing that was sent meanwhile goes with it."""
        while (site, path) in self._paths:
            await self._stepped.wait()
        self._paths.add((site, path))
        try:
            with contextlib.suppress(ForemountError):
                await remove()
        finally:
            self._leave(site, path)

    async def _remove_left(self, site: SiteName, at: At) -> None:
        """Remove an object of ours that no name leads to; what somebody else has put there stays."""
        if not self._is_named(site, at.path) and is_unchanged(at.version, (await self._sites[site].stat(at.path)).version):
            await self._writers[site].remove(at.path)

    def _leave(self, site: SiteName, path: SitePath) -> None:
        """Let others begin at a path."""
        self._paths.discard((site, path))
        self.wake()
        self._stepped.set()
        self._stepped = asyncio.Event()

    def _tell_waiters(self, node: Staged, failure: ForemountError | None = None) -> None:
        record = self._commits.record(node)
        for waiter in self._waiters.get(node.id, ()):
            if waiter.done.done():
                continue
            if failure is not None:
                waiter.done.set_exception(failure)
            elif (record is not None and waiter.seq <= record.seq) or node.kind is StagedKind.SYMLINK:
                waiter.done.set_result(None)

    # Doing

    async def _run(self, node: Staged, path: LakePath, point: MountPoint, step: Step) -> None:
        """Carry out one step of one node and note how it went."""
        try:
            carried = await self._publisher.carry_out(node, path, point, step)
            if carried.record.state is UploadState.WAITING:
                self._wait(node, carried.record)
            else:
                self._done(node, path, point, carried)
                self._rests.pop(node.id, None)
        except Stale as exc:
            log.debug("%s: %s", path, exc)
            self._rest(node)
        except ForemountError as exc:
            self._failed(node, path, exc)
        except Exception as exc:
            log.exception("bug while uploading %s", path)
            self._failed(node, path, Unavailable(path, f"bug: {type(exc).__name__}, see agent.log"))
        finally:
            del self._running[node.id]
            self._dirty.add(node.id)
            self._leave(point.site, step.to)

    def _failed(self, node: Staged, path: LakePath, failure: ForemountError) -> None:
        record = self._catalog.upload(node.id)
        if record is None or record.seq != node.seq:
            record = Upload(node.seq, UploadState.FAILED, seen_ns=self._seen_ns.get(node.id, 0))
        if record.failure is None or from_failure(record.failure).reason != failure.reason:
            log.warning("upload of %s failed, it is tried again: %s", path, failure)
        self.counters["failures"] += 1
        self._catalog.put_upload(node.id, replace(record, state=UploadState.FAILED, failure=to_failure(failure)))
        self._rest(node)
        if isinstance(failure, _FINAL):
            self._tell_waiters(node, failure)

    def _rest(self, node: Staged) -> None:
        rest = self._rests.setdefault(node.id, _Rest(0, 0.0))
        rest.attempts += 1
        rest_s = doubled_s(self._limits.rest_s, self._limits.rest_s_max, rest.attempts)
        rest.until_s = self._clock.monotonic_s() + rest_s

    def _done(self, node: Staged, path: LakePath, point: MountPoint, carried: Carried) -> None:
        """Note what a step has brought about, and tell those who wait for it."""
        record = carried.record
        self._catalog.put_upload(node.id, record, carried.digests)
        if node.kind is not StagedKind.FILE:
            return
        self._tell_waiters(node)
        if record.at is not None:
            self._on_stored(path, ManifestFile("", node.size, record.digest, record.at.path, record.at.version))
        for node_id, rest in self._rests.items():
            waiting = self._catalog.upload(node_id)
            if waiting is not None and waiting.state is UploadState.WAITING:
                rest.until_s = min(rest.until_s, self._clock.monotonic_s() + _RELOOK_S)
        if record.at is not None and record.at.version.generation:
            self._tasks.create_task(self._look_again(node, path, point, record))

    def _wait(self, node: Staged, record: Upload) -> None:
        """Note what a marker waits for; it is looked at again when a file is done, and from time to time."""
        old = self._catalog.upload(node.id)
        if old is None or (old.seq, old.state, old.failure) != (record.seq, record.state, record.failure):
            self._catalog.put_upload(node.id, record)
        self._rest(node)

    async def _look_again(self, node: Staged, path: LakePath, point: MountPoint, record: Upload) -> None:
        """Note the version that a new object keeps, where the store could not tell it at once."""
        await asyncio.sleep(RACY_S)
        assert record.at is not None
        try:
            entry = await self._sites[point.site].stat(record.at.path)
        except ForemountError:
            return
        old, new = record.at.version, entry.version
        if is_unchanged(old, new) and self._catalog.upload(node.id) == record:
            self._catalog.put(path, Known(Entry(split(path)[1], Kind.FILE, new), self._clock.wall_ns()))
            self._catalog.put_upload(node.id, replace(record, at=At(record.at.path, new)))

    # What a step asks while it goes on (`publishing.Wanted`)

    def check(self, node: Staged, path: LakePath) -> None:
        """Raises:
        Stale: the node has another content or another name by now.
        """
        self._take_in()
        current = self._journal.nodes.get(node.id)
        if current is None or current.seq != node.seq or self._journal.nodes.path(current) != path:
            raise Stale(path, "was changed while it was uploaded")

    def is_wanted(self, site: SiteName, path: SitePath) -> bool:
        """Return whether some node is to have this path at an origin, or a step is under way there."""
        return (site, path) in self._paths or self._is_named(site, path)

    def _is_named(self, site: SiteName, path: SitePath) -> bool:
        places = [(point, point.lake_path(path)) for point in self._mounts.points if point.site == site]
        found = [node_at(self._journal.nodes, point.prefix, below) for point, below in places if below is not None]
        return any(node is not None and node.kind in (StagedKind.FILE, StagedKind.ABSENT) for node in found)

    def seen_ns(self, node: Staged) -> int:
        """Return when the agent first saw the node."""
        return self._seen_ns.get(node.id, self._clock.wall_ns())


def is_unchanged(old: Version, new: Version) -> bool:
    """Return whether two versions are one content; the generation may tell that the first one was too young to last."""
    return (old.size, old.mtime_ns, old.etag) == (new.size, new.mtime_ns, new.etag)
