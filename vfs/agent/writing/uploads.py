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
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from vfs.agent.writing.commits import Commits
from vfs.agent.writing.places import Place, Places, cleared, is_unchanged, left_by, resume_of
from vfs.agent.writing.publishing import Carried, Publisher
from vfs.agent.writing.sending import SendLimits
from vfs.agent.writing.turns import Turns
from vfs.agent.writing.uploadplan import (
    Clear,
    MakeDirectory,
    Move,
    Step,
    all_below,
    clears_below,
    next_clearing,
    node_at,
    order,
    places_of_step,
)
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
from vfs.model import Entry, Kind, LakePath, SiteName, SitePath, split
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
        self._dropped: set[int] = set()
        self._rests: dict[int, _Rest] = {}
        self._seen_ns: dict[int, int] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._places = Places()
        self._turns = Turns(self._journal, mounts, writers, catalog, self._commits, self._places)
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
            if node.kind is StagedKind.FILE and nodes.path(node) is not None and self._is_behind(node)
        ]

    def _is_behind(self, node: Staged) -> bool:
        return self._places.is_displaced(node.id) or bool(
            node.content and not node.settled and self._commits.record(node) is None
        )

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
        polled, nodes = self._journal.poll(), self._journal.nodes
        now_ns = self._clock.wall_ns()
        changed = set(polled.changed)
        if polled.anew:
            changed |= {node.id for node in nodes} | self._catalog.uploads().keys()
        for node_id in polled.changed:
            node = nodes.get(node_id)
            if node is None and node_id not in polled.retired:
                self._dropped.add(node_id)
            if node is not None and node.kind is StagedKind.DIRECTORY:
                changed |= {below.id for below in all_below(nodes, node)}
        self._dirty |= changed
        for node_id in changed:
            self._turns.place(node_id)
        for node_id in polled.changed:
            if node_id not in self._seen_ns:
                self._tell_begun(node_id)
            self._seen_ns.setdefault(node_id, now_ns)
            self._rests.pop(node_id, None)

    def note(self, node_id: int, record: Upload, digests: bytes = b"") -> None:
        """Keep what is known of a node's upload."""
        self._catalog.put_upload(node_id, record, digests)
        self._turns.place(node_id)

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
                self._leave_behind(node_id)
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
        step = self._turns.next_step(node, path, point)
        if step is None or point is None:
            self._dirty.discard(node.id)
            self._rests.pop(node.id, None)
            self._tell_waiters(node)
            return
        if isinstance(step, Clear):
            self._begin_clearing(node.id, step)
            return
        if isinstance(step, MakeDirectory) and self._catalog.upload(node.id) is None:
            # Noted before anything is sent below it: who renames or removes it from now on knows that the origin may show it.
            self.note(node.id, Upload(node.seq, UploadState.UPLOADING))
        if isinstance(step, Move) and self._turns.goes_round(node):
            step = Move(step.source, self._publisher.aside(node, step.to))
        elif not self._turns.has_come(node, point, step):
            return  # stays dirty
        places = places_of_step(step, point.site)
        if not self._places.is_free(places, below=clears_below(step, node)):
            return
        self._dirty.discard(node.id)
        self._places.busy.update(places)
        self._running[node.id] = self._tasks.create_task(self._run(node, path, point, step, places), name=f"upload {path}")

    def _leave_behind(self, node_id: int) -> None:
        """The journal does not hold the node any more: nothing of it stays, unless its origin is to keep that.

        Whether it is can't be told of a record that the log says nothing of any more: what is finished then stays.
        """
        for waiter in self._waiters.get(node_id, ()):
            if not waiter.done.done():
                waiter.done.set_exception(Stale("staged file", "is not there any more"))
        record = self._catalog.upload(node_id)
        clear = next_clearing(record) if record is not None else None
        while record is not None and clear is not None and clear.begun is None:
            if node_id in self._dropped and not self.is_named(clear.site, clear.to):
                break
            record = cleared(record, clear.to)
            clear = next_clearing(record)
        if clear is not None and clear.site in self._writers:
            self._begin_clearing(node_id, clear)
            return
        self._dirty.discard(node_id)
        self._dropped.discard(node_id)
        self._rests.pop(node_id, None)
        self._seen_ns.pop(node_id, None)
        if record is not None:
            self._catalog.drop_upload(node_id)
        self._turns.place(node_id)

    def _begin_clearing(self, node_id: int, clear: Clear) -> None:
        place = (clear.site, clear.to)
        if place in self._places.busy or len(self._running) >= self._limits.files:
            return  # stays dirty
        self._dirty.discard(node_id)
        self._places.busy.add(place)
        self._running[node_id] = self._tasks.create_task(self._clear(node_id, clear), name=f"clear {clear.to}")

    async def _clear(self, node_id: int, clear: Clear) -> None:
        """Remove what a node has left at a place; what another is to have there, or somebody else has put there, stays."""
        try:
            await self._publisher.clear(clear)
            record = self._catalog.upload(node_id)
            if record is not None:
                self.note(node_id, cleared(record, clear.to))
            self._rests.pop(node_id, None)
        except ForemountError as exc:
            log.warning("%s of %s is not removed yet: %s", clear.to, clear.site, exc)
            self._rest(node_id)
        finally:
            self._end(node_id, [(clear.site, clear.to)])

    def _end(self, node_id: int, places: Iterable[Place]) -> None:
        """Let others begin at these places."""
        del self._running[node_id]
        self._dirty.add(node_id)
        self._places.busy.difference_update(places)
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

    async def _run(self, node: Staged, path: LakePath, point: MountPoint, step: Step, places: Iterable[Place]) -> None:
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
            self._rest(node.id)
        except ForemountError as exc:
            self._failed(node, path, point, exc)
        except Exception as exc:
            log.exception("bug while uploading %s", path)
            self._failed(node, path, point, Unavailable(path, f"bug: {type(exc).__name__}, see agent.log"))
        finally:
            self._end(node.id, places)

    def _failed(self, node: Staged, path: LakePath, point: MountPoint, failure: ForemountError) -> None:
        record = self._publisher.record(node, point)
        if record is None or record.failure is None or from_failure(record.failure).reason != failure.reason:
            log.warning("upload of %s failed, it is tried again: %s", path, failure)
        self.counters["failures"] += 1
        if record is None:
            record = Upload(node.seq, UploadState.FAILED, seen_ns=self._seen_ns.get(node.id, 0))
        if record.seq != node.seq:
            left = left_by(record)
            record = replace(record, seq=node.seq, state=UploadState.FAILED, at=None, moving=SitePath(""), left=left)
        state = UploadState.DONE if record.at is not None and record.state is UploadState.DONE else UploadState.FAILED
        self.note(node.id, replace(record, state=state, failure=to_failure(failure)))
        self._rest(node.id)
        if isinstance(failure, _FINAL):
            self._tell_waiters(node, failure)

    def _rest(self, node_id: int) -> None:
        rest = self._rests.setdefault(node_id, _Rest(0, 0.0))
        rest.attempts += 1
        rest_s = doubled_s(self._limits.rest_s, self._limits.rest_s_max, rest.attempts)
        rest.until_s = self._clock.monotonic_s() + rest_s

    def _done(self, node: Staged, path: LakePath, point: MountPoint, carried: Carried) -> None:
        """Note what a step has brought about, and tell those who wait for it."""
        record = carried.record
        is_there = record.at is not None and record.at.path == point.site_path(path)
        self.note(node.id, record, carried.digests)
        if node.kind is not StagedKind.FILE:
            return
        self._tell_waiters(node)
        if record.at is not None and is_there:
            self._on_stored(path, ManifestFile("", node.size, record.digest, record.at.path, record.at.version))
        for node_id, rest in self._rests.items():
            waiting = self._catalog.upload(node_id)
            if waiting is not None and waiting.state in (UploadState.WAITING, UploadState.DONE):
                rest.until_s = min(rest.until_s, self._clock.monotonic_s() + _RELOOK_S)
        if record.at is not None and record.at.version.generation:
            self._tasks.create_task(self._look_again(node, path, point, record))

    def _wait(self, node: Staged, record: Upload) -> None:
        """Note what a marker waits for; it is looked at again when a file is done, and from time to time."""
        old = self._catalog.upload(node.id)
        if old is not None and old.seq == record.seq and old.state is UploadState.DONE:  # it waits to be moved
            record = replace(old, failure=record.failure)
        elif old is not None:
            record = replace(record, resume=old.resume if resume_of(old) else b"", left=left_by(old))
        if old is None or (old.seq, old.state, old.failure) != (record.seq, record.state, record.failure):
            self.note(node.id, record)
        self._rest(node.id)

    async def _look_again(self, node: Staged, path: LakePath, point: MountPoint, record: Upload) -> None:
        """Note the version that a new object keeps, where the store could not tell it at once."""
        await asyncio.sleep(RACY_S)
        assert record.at is not None
        try:
            entry = await self._sites[point.site].stat(record.at.path)
        except ForemountError:
            return
        old, new, now = record.at.version, entry.version, self._catalog.upload(node.id)
        if (
            is_unchanged(old, new)
            and now is not None
            and (now.seq, now.state, now.at) == (record.seq, record.state, record.at)
        ):
            self._catalog.put(path, Known(Entry(split(path)[1], Kind.FILE, new), self._clock.wall_ns()))
            self.note(node.id, replace(now, at=At(record.at.path, new)))

    # What a step asks while it goes on (`publishing.Wanted`)

    def check(self, node: Staged, path: LakePath) -> None:
        """Raises:
        Stale: the node has another content or another name by now.
        """
        self._take_in()
        current = self._journal.nodes.get(node.id)
        if current is None or current.seq != node.seq or self._journal.nodes.path(current) != path:
            raise Stale(path, "was changed while it was uploaded")

    def is_named(self, site: SiteName, path: SitePath) -> bool:
        """Return whether a file is to have this path at an origin, or is to go from it."""
        places = [(point, point.lake_path(path)) for point in self._mounts.points if point.site == site]
        found = [node_at(self._journal.nodes, point.prefix, below) for point, below in places if below is not None]
        return any(node is not None and node.kind in (StagedKind.FILE, StagedKind.ABSENT) for node in found)

    def seen_ns(self, node: Staged) -> int:
        """Return when the agent first saw the node."""
        return self._seen_ns.get(node.id, self._clock.wall_ns())
