"""A remote origin as a tree: answered from the catalog and the cache, else from the agent.

What was listed or read before costs no message and goes on while the agent or the origin is away. Bytes never come over the
socket: the agent puts them into the cache, the worker reads and checks them there.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable

from vfs import wire
from vfs.clock import Clock
from vfs.errors import Corrupt, DeadlineExceeded, NotADirectory, NotFound, ReadOnly, Stale, Unavailable
from vfs.extents.layout import BLOCK, PASSTHROUGH_BYTES_MIN, data_path
from vfs.extents.placement import is_same, served_here
from vfs.extents.reader import BrokenBlock, CachedObject
from vfs.filesystem.agent import AgentClient
from vfs.filesystem.beneath import open_beneath
from vfs.filesystem.copyhere import copy_here, open_copy
from vfs.filesystem.expected import PAGE, PUSH_BYTES_MIN, Expected
from vfs.filesystem.local import LocalSource
from vfs.filesystem.reads import ReadReports
from vfs.filesystem.scratch import read_at, scratch
from vfs.filesystem.tree import MODE_OF, Buffer, Child, Node, Push, Source, identity_of
from vfs.filesystem.verified import VerifiedFile, state_of
from vfs.model import Entry, Kind, LakePath, ObjectKey, Version, can_posix_carry, join, object_key, split
from vfs.namespace.catalog import POSITION_MAX, Catalog, Known, Listing
from vfs.namespace.mounts import MountPoint
from vfs.policy.facts import Access
from vfs.policy.inforce import KERNEL_TTL_S_MAX, InForce
from vfs.usage import NOBODY, CallerFacts
from vfs.usage import Source as From

log = logging.getLogger(__name__)
_PAGE_ENTRIES = 512
_CALLERS_MAX = 16
"""Of one open object that the agent is told of."""
_REREADS_MAX = 3
"""Times that a block which fails its digest is fetched again before the read fails."""


class RemoteTree:
    """The objects below a mount point whose origin is not on this host.

    Args:
        cache_root: the store's directory; objects that are complete there are opened without asking the agent.
        objects: bounds the descriptors of cached objects that are open in page-cache mode.
    """

    writable = False

    def __init__(
        self,
        point: MountPoint,
        *,
        agent: AgentClient,
        catalog: Catalog,
        cache_root: str,
        objects: OpenObjects,
        reports: ReadReports,
        expected: Expected,
        clock: Clock,
        policy: InForce,
        owner: tuple[int, int],
    ) -> None:
        self._point = point
        self._agent = agent
        self._catalog = catalog
        self._cache_root = cache_root
        self._objects = objects
        self._reports = reports
        self._expected = expected
        self._clock = clock
        self._policy = policy
        self._owner = owner

    def is_fixed(self, identity: str) -> bool:
        return True

    async def lookup(self, path: LakePath) -> Node:
        """Return what the origin says, or what it said last where it can't be asked now."""
        if not can_posix_carry(split(path)[1]) and path:
            raise NotFound(path, "no origin can hold a name that is not UTF-8")
        # The listing first: what it holds when it is complete is known. Asked the other way round, the agent may complete
        # it in between, and a name that is there would be taken for absent.
        is_listed = self._is_listed(LakePath(split(path)[0]))
        known = self._catalog.known(path)
        if known is not None and (node := self._fresh(path, known)) is not None:
            return node
        if known is None and is_listed:
            raise NotFound(path)
        try:
            found = await self._agent.call(wire.Stat(path), wire.Found, path, self._deadline_s(path, Access.OPEN))
        except (Unavailable, DeadlineExceeded):
            if known is None or known.entry is None or not self._believed_s(path, known.entry):
                raise
            log.debug("%s: origin away, serving what it said before", path)
            return self._node(path, known.entry)
        if found.entry is None:
            raise NotFound(path)
        seen = self._catalog.known(path)
        return self._node(path, found.entry, self._clock.wall_ns() if seen is None else seen.seen_ns)

    def _fresh(self, path: LakePath, known: Known) -> Node | None:
        """Return what is known where that may be believed still, None where the origin is to be asked.

        Raises:
            NotFound: it may be believed that nothing is there.
        """
        listing = self._catalog.listing(LakePath(split(path)[0]))
        if listing is not None and listing.complete and listing.begun_ns > known.seen_ns:
            return None  # a later listing did not have it
        if self._age_s(known.seen_ns) >= self._believed_s(path, known.entry):
            return None
        if known.seen_ns <= self._catalog.doubted_ns(path):
            return None
        if known.entry is None:
            raise NotFound(path)
        return self._node(path, known.entry, known.seen_ns)

    def _believed_s(self, path: LakePath, entry: Entry | None) -> float:
        """Return how long what was said about a path is believed: of a file its version, else the names around it."""
        if entry is None or entry.kind is Kind.DIRECTORY:
            return self._policy.listing_ttl_s(LakePath(split(path)[0]), self._point.site)
        return self._policy.version_ttl_s(path, self._point.site, entry.version.size)

    def _kernel_believes_s(self, path: LakePath, entry: Entry) -> float:
        """Return how long the kernel may believe it, whoever asks it: as `_believed_s` for who believes it the shortest."""
        if entry.kind is Kind.DIRECTORY:
            return self._policy.kernel_listing_ttl_s(LakePath(split(path)[0]), self._point.site)
        return self._policy.kernel_version_ttl_s(path, self._point.site, entry.version.size)

    def _age_s(self, seen_ns: int) -> float:
        return (self._clock.wall_ns() - seen_ns) / 1e9

    def _deadline_s(self, path: LakePath, access: Access, size: int | None = None) -> float:
        return self._policy.deadline_s(path, access, self._point.site, size)

    def _is_listed(self, path: LakePath) -> bool:
        listing = self._catalog.listing(path)
        return listing is not None and listing.complete and self._is_current(path, listing)

    def _is_current(self, path: LakePath, listing: Listing) -> bool:
        if listing.begun_ns <= self._catalog.doubted_ns(path):
            return False
        return self._age_s(listing.begun_ns) < self._policy.listing_ttl_s(path, self._point.site)

    def _node(self, path: LakePath, entry: Entry, seen_ns: int | None = None) -> Node:
        """Return the attributes that an entry states.

        Args:
            seen_ns: when the origin stated it: the kernel may believe it for the rest of its time. None: it is served only
                because the origin is away, and the next look asks again.
        """
        ttl_s = 0.0
        if seen_ns is not None:
            ttl_s = min(max(self._kernel_believes_s(path, entry) - self._age_s(seen_ns), 0.0), KERNEL_TTL_S_MAX)
        identity = identity_of(entry.version)
        writing = 0o200 if self._point.writable and entry.kind is not Kind.SYMLINK else 0
        mode = MODE_OF[entry.kind] | writing
        if entry.mode is not None:
            mode = (mode & ~0o7777) | (entry.mode & (0o777 if writing else 0o555))
        if entry.kind is Kind.DIRECTORY:
            identity = "directory"
            mode |= 0o555
        return Node(entry.kind, identity, entry.version, mode, *self._owner, target=entry.target, ttl_s=ttl_s)

    async def open_directory(self, path: LakePath) -> RemoteDirectory:
        listing, current = self._catalog.listing(path), True
        if listing is None or not self._is_current(path, listing):
            try:
                await self._agent.call(wire.List(path, 0, 0), wire.Listed, path, self._deadline_s(path, Access.LIST))
            except (Unavailable, DeadlineExceeded):
                if listing is None or not (listing.complete or listing.previous):
                    raise
                log.debug("%s: origin away, serving its last complete listing", path)
                current = False
        deadline_s = functools.partial(self._deadline_s, path, Access.LIST)
        return RemoteDirectory(path, self._catalog, self._agent, self._node, deadline_s, current=current)

    async def open(self, path: LakePath, identity: str, version: Version, *, write: bool) -> Source:
        if write:
            raise ReadOnly(path, "lies on a mount that is not writable")
        replica = self._open_replica(path, version)
        if replica is not None:
            return replica
        key = object_key(self._point.site, self._point.site_path(path), version)
        deadline_s = functools.partial(self._deadline_s, path, size=version.size)
        source = ObjectSource(path, key, version, self._agent, self._objects, self._reports, self._expected, deadline_s)
        source.root = self._cache_root
        if version.size >= PASSTHROUGH_BYTES_MIN and not source.open_complete():
            return copy_here(path, await source.open_with_agent(), source)
        return source

    def _open_replica(self, path: LakePath, version: Version) -> LocalSource | None:
        """Return a local replica's file of exactly this version, if the policy's order has one before every other site."""
        point = self._point
        if not point.local_replicas:
            return None
        order = self._policy.decision(path, Access.OPEN, point.site, version.size).values.sites
        local = dict.fromkeys(replica.site for replica in point.local_replicas)
        remote = [replica.site for replica in point.replicas if replica.site not in local]
        for site in served_here(order, point.site, [*local], remote):
            for directory in (each.directory for each in point.local_replicas if each.site == site):
                try:
                    fd = open_beneath(directory, point.below(path), os.O_RDONLY | os.O_NONBLOCK)
                except OSError:
                    continue
                found = os.fstat(fd)
                if is_same(version, Version(found.st_size, found.st_mtime_ns), etags_agree=False, times_agree=True):
                    seen = VerifiedFile(directory, point.below(path), state_of(found))
                    return LocalSource(fd, path, From.REPLICA, verified=seen)
                os.close(fd)
        return None


class OpenObjects:
    """Cached objects that are open, least recently read first to be closed when there are too many descriptors."""

    def __init__(self, open_max: int) -> None:
        self._open_max = open_max
        self._objects: OrderedDict[ObjectKey, CachedObject] = OrderedDict()

    def get(self, key: ObjectKey, root: str) -> CachedObject:
        """Return the open object, opening it if need be.

        Raises:
            NotFound: it is not in that store (any more).
            Corrupt: its digest file can't be used.
        """
        found = self._objects.get(key)
        if found is not None and found.root == root:
            self._objects.move_to_end(key)
            return found
        self.drop(key)
        self._objects[key] = opened = CachedObject.open(root, key)
        while len(self._objects) > self._open_max:
            self._objects.popitem(last=False)[1].close()
        return opened

    def drop(self, key: ObjectKey) -> None:
        """Close the object if it is open."""
        found = self._objects.pop(key, None)
        if found is not None:
            found.close()

    def drop_if_gone(self, key: ObjectKey) -> None:
        """Close the object if it has left its store: what comes later lies in other files."""
        found = self._objects.get(key)
        if found is not None and found.gone():
            self.drop(key)


class ObjectSource:
    """One version of a remote object, read from the cache and filled by the agent.

    Attributes:
        root: the store that holds it, as far as is known.
        _copy: a copy on this host that came after it was opened: all that is read now is read from there. The kernel
            is not given it, since handles of one inode are either all in passthrough or none.
        _copy_tried: the copy that was opened, or could not be.
    """

    def __init__(
        self,
        path: LakePath,
        key: ObjectKey,
        version: Version,
        agent: AgentClient,
        objects: OpenObjects,
        reports: ReadReports,
        expected: Expected,
        deadline_s: Callable[[Access], float],
    ) -> None:
        self._path = path
        self._key = key
        self._version = version
        self._agent = agent
        self._objects = objects
        self._reports = reports
        self._expected = expected
        self._deadline_s = deadline_s
        self._in_hand: Counter[int] = Counter()
        self._callers: set[CallerFacts] = set()
        self._backing_fd: int | None = None
        self._copy: tuple[int, VerifiedFile] | None = None
        self._copy_tried: wire.CopyHere | None = None
        self._is_complete = False
        self._connection = self._kept_by = -1
        self.root = ""
        self.served_from = From.CACHE
        self.verified: VerifiedFile | None = None

    @property
    def backing_fd(self) -> int | None:
        return self._backing_fd

    def open_complete(self) -> bool:
        """Open the object if it lies sealed in its store; return whether it did."""
        try:
            found = self._objects.get(self._key, self.root)
        except (NotFound, Corrupt, Unavailable):
            return False
        as_sealed = None if found.gone() else found.as_sealed()
        if as_sealed is None:
            self._objects.drop(self._key)
            return False
        self._backing_fd = os.dup(found.fileno())
        directory, name = os.path.split(data_path(self.root, self._key))
        self.verified = VerifiedFile(directory, name, state_of(as_sealed))
        self._is_complete = True
        self.announce()
        return True

    def joined(self) -> None:
        """Tell the agent who else has it open: bytes that one of them asks for, the others may wait for in the kernel."""
        caller = self._agent.caller()
        if caller == NOBODY or caller in self._callers or len(self._callers) >= _CALLERS_MAX:
            return
        self._callers.add(caller)
        if self._connection >= 0:
            self._agent.tell_nowait(wire.Joined(self._key, caller))

    def announce(self) -> None:
        """Have the agent keep the object while the kernel may read it: evicted, its space would not be free."""
        if self._is_complete and self._agent.connected:
            self._agent.tell_nowait(wire.Hold(self._key))
            self._kept_by = self._agent.connections

    async def open_with_agent(self) -> wire.Opened:
        """Have the agent prepare the object and keep it."""
        call = wire.OpenObject(self._path, self._version)
        self._expected.opened(self._key)  # before the answer: what is expected may come right behind it
        try:
            opened = await self._agent.call(call, wire.Opened, self._path, self._deadline_s(Access.OPEN))
        except BaseException:
            self._expected.forget(self._key)
            raise
        self._connection = self._agent.connections
        for caller in self._callers:
            self._agent.tell_nowait(wire.Joined(self._key, caller))
        self.root = opened.root
        return opened

    async def read(self, offset: int, length: int, push: Push | None = None) -> Buffer:
        length = min(length, self._version.size - offset)
        if length <= 0:
            return b""
        if self._copy is not None:
            fd, verified = self._copy
            if state_of(os.fstat(fd)) == verified.state:
                return read_at(fd, offset, length, self._path)
            self._close_copy()
        self._reports.note(self._key, offset, length)
        self._in_hand[offset] += 1
        try:
            return await self._read(offset, length, push)
        finally:
            self._in_hand[offset] -= 1
            if not self._in_hand[offset]:
                del self._in_hand[offset]

    async def _read(self, offset: int, length: int, push: Push | None) -> Buffer:
        needs: Counter[int] = Counter()  # by what was broken; a range of many broken blocks takes as many rounds
        while max(needs.values(), default=0) <= _REREADS_MAX:
            gap, broken = (offset, length), -1
            try:
                cached = self._objects.get(self._key, self.root)
                absent = cached.missing(offset, length)
                if absent is not None:
                    gap = absent
                elif push is not None and (behind := self._behind(cached, offset, length)):
                    await self._push(cached, offset + length, behind, push)
                    push = None
                    continue  # the world may have changed
                elif (found := cached.read(offset, length, scratch(length + 2 * BLOCK))) is not None:
                    return found  # else it was evicted between the two looks
            except (NotFound, Corrupt) as exc:
                self._objects.drop(self._key)
                if isinstance(exc, NotFound) and self._connection < 0:  # nobody has asked for it yet
                    await self.open_with_agent()
                    continue
                broken = exc.index if isinstance(exc, BrokenBlock) else wire.WHOLE
                log.warning("%s: cached bytes can't be used, fetching them again: %s", self._path, exc)
            needs[broken] += 1
            await self._need(*gap, broken)
            self._objects.drop_if_gone(self._key)
        raise Corrupt(self._path, f"bytes {offset}+{length} keep failing their digest", "check the cache disk")

    def _behind(self, cached: CachedObject, offset: int, length: int) -> int:
        """Return how many bytes behind a read are expected to be read, lie in the cache, and in no page of a read in hand."""
        end = offset + length
        wanted = self._expected.behind(self._key, offset, end)
        if not wanted or end % PAGE:
            return 0
        stop = min(-(-(end + wanted) // PAGE) * PAGE, self._version.size)
        stop = min((other for other in self._in_hand if end <= other < stop), default=stop)
        absent = cached.missing(end, stop - end)
        found = (stop if absent is None else absent[0]) - end
        return found if found >= PUSH_BYTES_MIN else 0

    async def _push(self, cached: CachedObject, start: int, length: int, push: Push) -> None:
        # Told before it is done: the reader is quicker than the thread that pushes, and its next read would look like a jump.
        self._reports.note(self._key, start, length)
        if await push(cached, start, length):
            self._expected.pushed(self._key, start, start + length)

    async def _need(self, offset: int, length: int, broken: int) -> None:
        self._reports.send(self._key)
        try:
            ready = await self._ask(offset, length, broken)
        except NotFound:  # another agent may know nothing of our objects
            await self.open_with_agent()
            try:
                ready = await self._ask(offset, length, broken)
            except NotFound as exc:
                raise Stale(self._path, "is not at its origin any more") from exc
        if ready.root != self.root:
            self._objects.drop(self._key)
            self.root = ready.root
        if ready.here is not None and ready.here != self._copy_tried:
            self._close_copy()
            self._copy_tried, self._copy = ready.here, open_copy(self._path, ready.here)
            self.served_from = From.CACHE if self._copy is None else From.REPLICA

    async def _ask(self, offset: int, length: int, broken: int) -> wire.Ready:
        if self._connection != self._agent.connections:
            await self.open_with_agent()
        call = wire.Need(self._key, offset, length, broken)
        return await self._agent.call(call, wire.Ready, self._path, self._deadline_s(Access.READ))

    async def write(self, offset: int, content: Buffer) -> int:
        raise ReadOnly(self._path)

    async def sync(self) -> None:
        return

    def shed(self) -> bool:
        self._objects.drop(self._key)
        if self._backing_fd is not None:
            os.close(self._backing_fd)
            self._backing_fd = None
        self._close_copy()
        return True

    def _close_copy(self) -> None:
        if self._copy is not None:
            os.close(self._copy[0])
        self._copy = self._copy_tried = None
        self.served_from = From.CACHE

    def rest(self) -> bool:
        self.close()
        return self._version.size < PASSTHROUGH_BYTES_MIN

    def close(self) -> None:
        self.shed()
        self._expected.forget(self._key)
        if self._agent.connections in (self._connection, self._kept_by):
            self._reports.send(self._key)  # the last reads count too
            self._agent.tell_nowait(wire.CloseObject(self._key))
        self._connection = self._kept_by = -1
        self._callers.clear()


class RemoteDirectory:
    """A directory stream over the catalog, going on while the agent lists.

    A position holds generation and place: another worker continues in the same listing.

    Args:
        node: makes attributes of path, entry, and when it was stated.
        deadline_s: says how long the agent may take, by the policy in force when it is asked.
        current: the origin answers; where it does not, a complete older listing is better than one that hangs.
    """

    def __init__(
        self,
        path: LakePath,
        catalog: Catalog,
        agent: AgentClient,
        node: Callable[[LakePath, Entry, int | None], Node],
        deadline_s: Callable[[], float],
        *,
        current: bool,
    ) -> None:
        self._path = path
        self._current = current
        self._catalog = catalog
        self._agent = agent
        self._node = node
        self._deadline_s = deadline_s

    async def read(self, position: int) -> list[Child]:
        generation, place = position >> 40, position & POSITION_MAX
        if position == 0:
            generation = await self._first_generation()
        while True:
            page = self._catalog.page(self._path, generation, place, _PAGE_ENTRIES)
            if any(page):
                listing = self._catalog.listing(self._path)
                seen_ns = listing.begun_ns if listing is not None and listing.generation == generation else None
                return [
                    Child(entry.name.encode(), self._node(self._below(entry), entry, seen_ns), generation << 40 | at)
                    for at, entry in enumerate(page, place + 1)
                    if entry is not None
                ]
            if page:
                place += len(page)
                continue
            if await self._is_at_end(generation, place):
                return []

    def _below(self, entry: Entry) -> LakePath:
        return LakePath(join(self._path, entry.name))

    async def _first_generation(self) -> int:
        listing = self._catalog.listing(self._path)
        if listing is None:
            raise NotADirectory(self._path)
        if not listing.complete and listing.previous and not (self._current and self._agent.connected):
            return listing.previous
        return listing.generation

    async def _is_at_end(self, generation: int, place: int) -> bool:
        """Wait for more of a listing that is under way; return whether there will be none."""
        listing = self._catalog.listing(self._path)
        if listing is not None and listing.previous == generation:
            return True  # replaced meanwhile, but it was complete and is still there
        if listing is None or listing.generation != generation:
            # Withdrawn because the origin failed, or replaced twice: an end here would be a listing with names missing.
            raise Stale(self._path, "was listed anew while being read", "read the directory again")
        if listing.complete:
            return place >= listing.count
        call = wire.List(self._path, generation, place)
        listed = await self._agent.call(call, wire.Listed, self._path, self._deadline_s())
        if listed.generation != generation:
            raise Stale(self._path, "was listed anew while being read", "read the directory again")
        return listed.complete and place >= listed.count

    def close(self) -> None:
        return
