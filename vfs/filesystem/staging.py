"""The staging area of a mount: content that is written here, and the journal that says what it is to become.

One for all writable remote trees of the worker. `run` follows the uploads, finds out which files nobody writes any more,
frees what the origins hold when room is needed, and keeps the journal short.

Who still writes is the kernel's to say, for handles in passthrough outlive workers and mappings outlive handles: a read
lease on a staging file is refused while anything has it open for writing, a write lease while anything has it open. The
descriptor that passthrough is given is therefore opened for reading; the kernel opens the file again, by itself, as each
handle asks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterable

import trio
from msgspec.structs import replace

from vfs import wire
from vfs.clock import Clock
from vfs.errors import ForemountError, NoSpace
from vfs.filesystem.agent import AgentClient
from vfs.filesystem.request import is_resent, request_number
from vfs.model import LakePath, Version
from vfs.namespace.catalog import Catalog
from vfs.namespace.journal import JournalWriter, content_path, sync_directory
from vfs.namespace.mounts import MountTable
from vfs.namespace.staged import NAMELESS, Begun, Change, Drop, Staged, StagedKind, StagedNodes, UploadState
from vfs.oserrors import Translated

log = logging.getLogger(__name__)
_TURN_S = 0.02
"""Between looks at what was closed: the kernel lets go of a file some microseconds after it says so."""
_FOLLOW_S = 0.25
_KEEP_S = 1.0
_HAND_OVER_S = 5.0
_CLOSED_AFTER_S = 1.0
"""Files that an earlier worker left, and those that were made and not opened: how long they must be free of writers."""
RETIRE_S = 3600.0
"""How long a file that the origin holds keeps its node, and with it mode, owner, times and cheap renames of directories."""
_FULL, _FREE_TO = 0.8, 0.6
"""Of the size: above the first what the origins hold is freed, down to the second."""


class StagingArea:
    """Staged content and its nodes.

    Args:
        size: bytes that new files wait at.

    Invariants: every number in `_closing` may have to be closed; content that a node refers to exists, except after a crash
    of the machine before anything was synced.
    """

    def __init__(
        self,
        directory: str,
        journal: JournalWriter,
        mounts: MountTable,
        *,
        catalog: Catalog,
        agent: AgentClient,
        clock: Clock,
        size: int,
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._mounts = mounts
        self._catalog = catalog
        self._agent = agent
        self._clock = clock
        self._size = size
        self._opened: Counter[int] = Counter()
        self._closing: dict[int, float] = {}
        self._unlinking: list[int] = []
        self._syncing = 0
        self._names_synced = True
        self._grown = False
        self._room = trio.Event()
        self.used = 0
        for node in list(self.nodes):
            if node.kind is StagedKind.FILE and node.content:
                self._closing[node.id] = clock.monotonic_s() + _CLOSED_AFTER_S

    @property
    def nodes(self) -> StagedNodes:
        """What is staged."""
        return self._journal.nodes

    def now_ns(self) -> int:
        """Return the wall clock's time."""
        return self._clock.wall_ns()

    def was_done(self) -> bool:
        """Return whether an earlier worker carried out the running request, and died before it could answer."""
        return is_resent() and request_number() in self._journal.requests

    def commit(self, changes: Iterable[Change]) -> None:
        """Let changes hold, together, for the running request."""
        listed = list(changes)
        if listed:
            before = [self.nodes.get(change.id) for change in listed if not isinstance(change, Begun)]
            self._journal.append(listed, request_number())
            self._grown = True
            for node in before:
                if node is not None and node.content:
                    after = self.nodes.get(node.id)
                    if after is None or after.content != node.content:
                        self._unlinking.append(node.content)

    def next_id(self) -> int:
        """Return a number for a node."""
        return self._journal.next_id()

    # Content

    def new_content(self, subject: str) -> int:
        """Make an empty staging file and return its number. The next worker removes it if no node refers to it."""
        number = self.next_id()
        with Translated(subject):
            os.close(os.open(self.path(number), os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        self._names_synced = False
        return number

    def path(self, content: int) -> str:
        """Return where a staging file lies."""
        return content_path(self._directory, content)

    def stat(self, node: Staged) -> os.stat_result | None:
        """Return size and times of a node's content, None where it is not here."""
        if not node.content:
            return None
        try:
            return os.stat(self.path(node.content))
        except FileNotFoundError:
            log.warning("staging file %x of %r is gone", node.content, node.name)
            return None

    def open(self, node_id: int, flags: int, subject: str) -> int:
        """Open a node's content and return the descriptor; `opened` and `closed` count what holds it."""
        node = self.nodes.get(node_id)
        assert node is not None and node.content, subject
        with Translated(subject):
            return os.open(self.path(node.content), flags | os.O_CLOEXEC)

    def opened(self, node_id: int) -> None:
        """Count one that reads the content: it stays here while there are some."""
        self._opened[node_id] += 1

    def closed(self, node_id: int) -> None:
        """Take one back."""
        self._opened[node_id] -= 1
        if self._opened[node_id] <= 0:
            del self._opened[node_id]

    def is_open(self, node_id: int) -> bool:
        """Return whether this worker has the content open."""
        return self._opened[node_id] > 0

    def is_known_to_origin(self, node_id: int, path: LakePath) -> bool:
        """Return whether the upload of a node has begun, or the origin had something at its path before."""
        known = self._catalog.known(path)
        return (known is not None and known.entry is not None) or self._catalog.upload(node_id) is not None

    def is_in_place(self, node: Staged) -> bool:
        """Return whether the origin holds a node, and where it is to be."""
        path = self.nodes.path(node)
        point = self._mounts.find(path) if path is not None else None
        if not node.settled or node.at is None or path is None or point is None:
            return False
        return node.at.path == point.site_path(path)

    def shows_origin(self, node: Staged) -> bool:
        """Return whether the origin is asked for what lies beside a node: without the node its object would be seen."""
        above = self.nodes.get(node.parent)
        return above is None or above.through or self.is_in_place(above)

    def uploads_serial(self) -> int:
        """Return a number that is another one whenever the agent has noted something."""
        return self._catalog.uploads_serial()

    def version_at_origin(self, node: Staged) -> Version | None:
        """Return the version in which the origin has a node's content, as the agent noted last; None: not that content."""
        upload = self._catalog.upload(node.id)
        if upload is None or upload.at is None or upload.seq != node.seq:
            return None
        return upload.at.version

    async def admit(self, subject: str, deadline_s: float) -> None:
        """Return when there is room for another file; at once as long as there is.

        Raises:
            NoSpace: the uploads did not make room within the deadline.
        """
        if self.used < self._size:
            return
        with trio.move_on_after(deadline_s):
            while self.used >= self._size:
                await self._room.wait()
            return
        raise NoSpace(subject, "the staging area is full", "its uploads make room: see `foremount status`")

    # Writers

    def begin_writing(self, node: Staged) -> None:
        """The content may change from now on: the agent leaves it alone."""
        if not node.writing:
            self.commit([replace(node, writing=True, seq=node.seq + 1)])
        self._closing.pop(node.id, None)

    def released(self, node_id: int, *, last: bool) -> None:
        """A handle was closed; look whether somebody can still write."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        if node.parent == NAMELESS:
            if last:
                self.commit([Drop(node_id)])
            return
        self._closing.setdefault(node_id, self._clock.monotonic_s())
        self._close_unwritten(node_id)

    def _close_unwritten(self, node_id: int) -> bool:
        """Note what a file holds now if nobody can write it any more; return whether there is nothing left to wait for."""
        node = self.nodes.get(node_id)
        if node is None or not node.content or node.parent == NAMELESS:
            self._closing.pop(node_id, None)
            return True
        if not self._is_unwritten(node.content):
            return False
        self._closing.pop(node_id, None)
        found = self.stat(node)
        if found is not None and (node.writing or (found.st_size, found.st_mtime_ns) != (node.size, node.mtime_ns)):
            self.commit([self.with_content(node, found)])
        return True

    def with_content(self, node: Staged, found: os.stat_result) -> Staged:
        """Return the node with the content that it has now: complete, and another one than before."""
        return replace(
            node,
            writing=False,
            seq=node.seq + 1,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            written_ns=self.now_ns(),
            synced_ns=0,
            settled_ns=0,
        )

    def _is_unwritten(self, content: int) -> bool:
        """Return whether nothing has the file open for writing."""
        return self._may_lease(content, fcntl.F_RDLCK)

    def _is_unused(self, content: int) -> bool:
        """Return whether nothing has the file open at all: nor a handle that an earlier worker gave out."""
        return self._may_lease(content, fcntl.F_WRLCK)

    def _may_lease(self, content: int, lease: int) -> bool:
        try:
            fd = os.open(self.path(content), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, lease)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as exc:
            # A disk without leases: what this worker has open itself is known at least.
            return exc.errno != errno.EAGAIN
        finally:
            os.close(fd)
        return True

    # Durability

    async def sync(self, node_id: int, subject: LakePath, *, remote: bool, deadline_s: float) -> None:
        """Return when a file's content and name are on the disk, with `remote` when its origin has them.

        Raises:
            DeadlineExceeded: the origin does not have it yet; it is on the disk, and its upload goes on.
        """
        node = self.nodes.get(node_id)
        if node is None or not node.content:
            return
        fd = self.open(node_id, os.O_RDONLY, subject)
        try:
            with Translated(subject):
                await trio.to_thread.run_sync(os.fsync, fd)
            node = self.nodes.get(node_id)
            if node is None or node.parent == NAMELESS:
                return
            found = os.fstat(fd)
        finally:
            os.close(fd)
        changed = node.writing or (found.st_size, found.st_mtime_ns) != (node.size, node.mtime_ns)
        if remote and changed:
            node = self.with_content(node, found)
        self.commit([node := replace(node, synced_ns=self.now_ns())])
        await self.sync_names()
        if remote:
            await self.settle(node, subject, deadline_s)

    async def sync_names(self) -> None:
        """Return when the journal is on the disk, and the names of the staging files with it."""
        names_synced, self._names_synced = self._names_synced, True
        self._syncing += 1
        try:
            if not names_synced:
                await trio.to_thread.run_sync(sync_directory, os.path.join(self._directory, "content"))
            await trio.to_thread.run_sync(self._journal.sync)
        except BaseException:
            self._names_synced = False
            raise
        finally:
            self._syncing -= 1

    async def settle(self, node: Staged, subject: LakePath, deadline_s: float) -> None:
        """Return when the origin holds the node."""
        self._tell()
        await self._agent.call(wire.Settle(node.id, node.seq), wire.Settled, subject, deadline_s)
        self._follow()

    # What goes on by itself

    async def run(self) -> None:
        """Follow uploads and writers, and keep room, for as long as the worker lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._keep_room)

    async def _watch(self) -> None:
        next_follow = 0.0
        serial = -1
        while True:
            await trio.sleep(_TURN_S)
            now_s = self._clock.monotonic_s()
            self._tell()
            for node_id in [node_id for node_id, at_s in self._closing.items() if at_s <= now_s]:
                if not self._close_unwritten(node_id):
                    self._closing[node_id] = now_s + min(1.0, max(_TURN_S, now_s - self._closing[node_id]) * 2)
            if now_s >= next_follow:
                next_follow = now_s + _FOLLOW_S
                if (found := self.uploads_serial()) != serial:
                    serial = found
                    self._follow()

    async def _keep_room(self) -> None:
        while True:
            try:
                await self._keep()
            except ForemountError as exc:
                log.warning("staging area: %s", exc)
            await trio.sleep(_KEEP_S)

    def _tell(self) -> None:
        if self._grown and self._agent.connected:
            self._grown = False
            self._agent.tell_nowait(wire.Staging())

    def _follow(self) -> None:
        """Take in what the agent has brought to the origins: what lies in a directory before itself."""
        for node_id, upload in sorted(self._catalog.uploads().items(), reverse=True):
            node = self.nodes.get(node_id)
            if node is None or upload.state is not UploadState.DONE or upload.seq != node.seq or node.writing:
                continue
            if node.kind is StagedKind.ABSENT:
                if not self.nodes.children(node_id):
                    self.commit([Drop(node_id, retired=True)])
            elif not node.settled or node.at != upload.at:
                self.commit([replace(node, at=upload.at, settled_seq=upload.seq, settled_ns=upload.done_ns)])

    async def _keep(self) -> None:
        """Measure, free, retire, compact."""
        doomed, self._unlinking = self._unlinking, []
        self.used = await trio.to_thread.run_sync(_measure, os.path.join(self._directory, "content"), doomed)
        if self.used > self._size * _FULL:
            await self._free(self.used - int(self._size * _FREE_TO))
        self._retire()
        if self.used < self._size:
            self._room.set()
            self._room = trio.Event()
        if self._journal.wants_compaction and not self._syncing:
            self._journal.compact()

    async def _free(self, wanted: int) -> None:
        """Let go of content that the origins hold and nobody reads, what was written first goes first.

        The cache takes it over, where it can. Versions that are too young to last are left for the end.
        """
        idle = [node for node in self.nodes if node.content and self.is_in_place(node)]
        for node in sorted(idle, key=lambda node: (node.at is not None and node.at.version.generation, node.written_ns)):
            if wanted <= 0:
                return
            if self.nodes.get(node.id) is not node or self._opened[node.id] or node.id in self._closing:
                continue
            if self._is_unused(node.content):
                found = self.stat(node)
                wanted -= found.st_blocks * 512 if found is not None else 0
                self.commit([replace(node, content=0)])  # from here on nobody can open the file any more
                await self._hand_over(node)

    async def _hand_over(self, node: Staged) -> None:
        """Have the agent take a file into the cache; what it does not take goes with the next look."""
        if self._agent.connected:
            with contextlib.suppress(ForemountError):
                adopt = wire.Adopt(node.id, node.seq, node.content)
                await self._agent.call(adopt, wire.Adopted, node.name, _HAND_OVER_S)

    def _retire(self) -> None:
        """Drop nodes that say nothing which their origin does not say."""
        before_ns = self.now_ns() - int(RETIRE_S * 1e9)
        for node in list(self.nodes):
            if node.kind is StagedKind.FILE:
                is_done = not node.content and self._is_settled_since(node, before_ns) and not self._opened[node.id]
            elif node.kind is StagedKind.DIRECTORY:
                is_done = self._is_idle_directory(node, before_ns)
            else:
                is_done = False
            if is_done and self._origin_agrees(node):
                self.commit([Drop(node.id, retired=True)])

    def _is_idle_directory(self, node: Staged, before_ns: int) -> bool:
        if self.nodes.children(node.id) or not node.parent:
            return False
        return not node.mode if node.through else self._is_settled_since(node, before_ns)

    def _is_settled_since(self, node: Staged, before_ns: int) -> bool:
        return node.settled_ns < before_ns and self.is_in_place(node) and self.shows_origin(node)

    def _origin_agrees(self, node: Staged) -> bool:
        """Return whether the origin's listing, as far as there is one, was begun after it had the object."""
        path = self.nodes.path(node)
        if path is None or node.through:
            return True
        listing = self._catalog.listing(LakePath(path.rpartition("/")[0]))
        return listing is None or (listing.complete and listing.begun_ns > node.settled_ns)

    def sweep(self, *, fresh: bool) -> None:
        """Remove what a crash has left: content without a node and, on a fresh mount, files without a name."""
        if fresh:
            self.commit([Drop(node.id) for node in self.nodes if node.parent == NAMELESS])
        kept = {f"{node.content:x}" for node in self.nodes}
        directory = os.path.join(self._directory, "content")
        for name in os.listdir(directory):
            if name not in kept:
                os.unlink(os.path.join(directory, name))

    def close(self) -> None:
        """Let another worker have the area."""
        self._journal.close()


def _measure(directory: str, doomed: list[int]) -> int:
    """Remove what is doomed; return how many bytes the staging files take on the disk."""
    for number in doomed:
        try:
            os.unlink(os.path.join(directory, f"{number:x}"))
        except FileNotFoundError:
            continue
    used = 0
    with os.scandir(directory) as found:
        for entry in found:
            try:
                used += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return used
