"""Makes and drops copies between sites: the executor of what the controller has decided.

Flow: files go largest first, tiny ones together (`foresight/transfers.py`); each is read from its origin in the budget of the
origin's line, so that reads of the mount and other copies have their shares, digested on its way, compared before it gets its
name, and read back from where it lies: only then is it reported. Nobody is shown any of it before the controller publishes
the whole.

Tasks: those of one `copy`, which end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from vfs.agent.foresight import streamed
from vfs.agent.foresight.multiplying import multiply, reduce
from vfs.agent.foresight.streamed import Streamed
from vfs.agent.writing.checkpoints import entries_of
from vfs.agent.writing.sending import Sender, SendLimits, gravest
from vfs.checkpoints.manifest import ManifestFile
from vfs.clock import Clock
from vfs.errors import Corrupt, Denied, ForemountError, NotFound, Unavailable, Unsupported
from vfs.extents.fair import Flow, Priority
from vfs.extents.layout import Identity
from vfs.foresight.governance import PlaceFacts, ruling
from vfs.foresight.model import FileCopy, ReplicaRecord
from vfs.foresight.priority import kind, weight
from vfs.foresight.transfers import batches, place_in_copy, ranges_of, share_of_cpu_s
from vfs.model import Kind, SiteName, SitePath, Version, join, split
from vfs.namespace.mounts import MountTable
from vfs.sites.protocol import Piece, Site
from vfs.sites.writing import Multiplies, SiteWriter, Upload

log = logging.getLogger(__name__)
BATCHES_AT_ONCE = 8
ABANDON_S = 10.0


class Read(Protocol):
    """Reads a range of a site in its line's budget: `Fetcher.read`."""

    def __call__(
        self, source: Identity, offset: int, length: int, priority: Priority, *, flow: Flow
    ) -> AsyncIterator[Piece]: ...


@dataclass(slots=True)
class Transfer:
    """One copy that is going on.

    Attributes:
        files, bytes: that it is to bring.
        files_done, bytes_done: of them, brought and verified.
    """

    replica: ReplicaRecord
    files: int
    bytes: int
    files_done: int = 0
    bytes_done: int = 0


class Copier:
    """An `Executor` over the sites of one host.

    Args:
        writers: by site; one that has none refuses copies.
        places: what the sites say of themselves, for governance.
        meter: returns CPU seconds of this process so far, and bytes that it has read from sites.
        share: of a line that the mechanism of a replica may hold.

    Attributes:
        going_on: by id of the replica.
    """

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        writers: Mapping[SiteName, SiteWriter],
        *,
        read: Read,
        places: Mapping[SiteName, PlaceFacts],
        clock: Clock,
        meter: Callable[[], tuple[float, int]],
        limits: SendLimits | None = None,
        share: Callable[[ReplicaRecord], float] = lambda replica: 1.0,
    ) -> None:
        self._share = share
        self._mounts = mounts
        self._sites = sites
        self._writers = writers
        self._read = read
        self._places = places
        self._clock = clock
        self._meter = meter
        self._limits = limits or SendLimits()
        self._parts = {urgent: asyncio.Semaphore(self._limits.parts) for urgent in (True, False)}
        self.going_on: dict[str, Transfer] = {}

    async def copy(
        self, replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
    ) -> None:
        """Bring files to the replica's site; see `Executor.copy`. Those of a batch are asked for all at once."""
        self._check_rules(replica)
        site = self._site(replica.site)
        if replica.site == self._origin(replica) and isinstance(site, Multiplies):
            await multiply(site, replica, files, done)
            return
        one = _One(self, replica, self._origin(replica), self._writer(replica.site), done)
        self.going_on[replica.id] = transfer = Transfer(replica, len(files), sum(file.size for file in files))
        turns = asyncio.Semaphore(BATCHES_AT_ONCE)

        async def bring(file: ManifestFile) -> None:
            await one.bring(file)
            transfer.files_done += 1
            transfer.bytes_done += file.size

        async def bring_all(batch: list[ManifestFile]) -> None:
            async with turns, asyncio.TaskGroup() as group:
                for file in batch:
                    group.create_task(bring(file))

        try:
            async with asyncio.TaskGroup() as group:
                for batch in batches(files):
                    group.create_task(bring_all(batch))
        except BaseExceptionGroup as failed:
            raise gravest(_leaves(failed)) from failed
        finally:
            self.going_on.pop(replica.id, None)

    async def check(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> list[str]:
        """Return the paths of those that are not at the destination as they were reported."""
        site, turns = self._site(replica.site), asyncio.Semaphore(self._limits.files)

        async def is_there(copy: FileCopy) -> bool:
            async with turns:
                try:
                    return (await site.stat(copy.at)).version == copy.version
                except NotFound:
                    return False

        found = await asyncio.gather(*map(is_there, copies))
        return [copy.path for copy, there in zip(copies, found, strict=True) if not there]

    async def drop(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> int:
        """Remove all below a copy's root, recorded or left by a copy that was broken off; see `Executor.drop`."""
        site = self._site(replica.site)
        if replica.site == self._origin(replica) and isinstance(site, Multiplies):
            await reduce(site, replica, copies)
            return 0
        writer = self._writer(replica.site)
        left = [at async for at in _files_below(site, replica.root)]
        inside = sorted({*left, *(copy.at for copy in copies if copy.at.startswith(replica.root + "/"))})
        for at in inside:
            await writer.remove(at)
            with contextlib.suppress(NotFound):
                await site.stat(at)
                raise Unavailable(f"{replica.site}:{at}", "is still there after it was removed")
        directories = {above for at in inside for above in _directories(at, replica.root)}
        for directory in sorted(directories, key=len, reverse=True):
            with contextlib.suppress(ForemountError):  # what another try has left lies in it
                await writer.remove(SitePath(directory), directory=True)
        return len(inside)

    def _check_rules(self, replica: ReplicaRecord) -> None:
        """Refuse what governance forbids; it was asked before, but the duties may be others by now."""
        said = ruling(replica.labels, self._places.get(replica.site, PlaceFacts()), replica.expires_in_s)
        if not said.allowed:
            log.warning("copy of %s to %s refused by rule %s: %s", replica.path, replica.site, said.rule, said.why)
            raise Denied(replica.path, f"rule {said.rule}: {said.why}")

    def _origin(self, replica: ReplicaRecord) -> SiteName:
        point = self._mounts.find(replica.path)
        if point is None:
            raise NotFound(replica.path, "nothing is mounted there")
        return point.site

    def _site(self, name: SiteName) -> Site:
        if name not in self._sites:
            raise Unsupported(name, "is no site of this host's configuration")
        return self._sites[name]

    def _writer(self, name: SiteName) -> SiteWriter:
        self._site(name)
        if name not in self._writers:
            raise Unsupported(name, "can't be written from this host", "docs/configuration.md says which kinds of sites can")
        return self._writers[name]


class _One:
    """The files of one replica, each on its way."""

    def __init__(
        self,
        copier: Copier,
        replica: ReplicaRecord,
        origin: SiteName,
        writer: SiteWriter,
        done: Callable[[FileCopy], Awaitable[None]],
    ) -> None:
        self._replica = replica
        self._origin = origin
        self._writer = writer
        self._done = done
        self._meter = copier._meter
        priority = kind(replica.priority)
        flow = Flow(replica.id, weight(replica.priority), replica.mechanism, copier._share(replica))
        self._read = functools.partial(copier._read, priority=priority, flow=flow)
        parts = copier._parts[priority is Priority.URGENT]  # of its own: others hold theirs for as long as the link is full
        self._sender = Sender(writer, copier._limits, copier._clock, parts, before=streamed.nobody)

    async def bring(self, file: ManifestFile) -> None:
        """Copy one file, verify it where it lies, and report it."""
        replica = self._replica
        spent_before_s, moved_before = self._meter()
        ranges = ranges_of(replica, file)
        content = Streamed(Identity(self._origin, file.at, file.version), ranges, "" if ranges else file.digest, self._read)
        at = place_in_copy(replica.root, file.path)
        version = await self._send(content, at, _token(replica, file))
        lies = Streamed(Identity(replica.site, at, version), (), content.digest(), self._read)
        try:
            await lies.verify()
        except Corrupt:
            await self._writer.remove(at)
            raise
        spent_s, moved = self._meter()
        await self._done(
            FileCopy(
                path=file.path,
                size=file.size,
                digest=content.digest(),
                origin_at=file.at,
                origin=file.version,
                at=at,
                version=version,
                ranges=tuple(ranges),
                cpu_s=share_of_cpu_s(spent_s - spent_before_s, 2 * content.size, moved - moved_before),  # read twice
            )
        )

    async def _send(self, content: Streamed, at: SitePath, token: str) -> Version:
        begun: list[Upload] = []
        try:
            sent = await self._sender.send(content, at, token, None, begun.append, lambda _: None, lambda: None)
        except BaseException:
            await self._abandon(begun)
            raise
        return sent.version

    async def _abandon(self, begun: Sequence[Upload]) -> None:
        """Remove what has arrived of a file that won't be finished: a full destination has room again."""
        for upload in begun:
            with contextlib.suppress(ForemountError, TimeoutError):
                async with asyncio.timeout(ABANDON_S):
                    await asyncio.shield(asyncio.ensure_future(self._writer.abandon(upload)))


def _token(replica: ReplicaRecord, file: ManifestFile) -> str:
    fields = (replica.id, file.path, file.at, str(file.version))
    return xxhash.xxh3_128_hexdigest("\0".join(fields).encode("utf-8", "surrogateescape"))


async def _files_below(site: Site, directory: SitePath) -> AsyncIterator[SitePath]:
    """Yield the files at any depth of a directory; none where there is no such directory."""
    pending = [directory]
    while pending:
        above = pending.pop()
        for entry in await entries_of(site, above):
            path = SitePath(join(above, entry.name))
            if entry.kind is Kind.DIRECTORY:
                pending.append(path)
            else:
                yield path


def _directories(path: str, root: str) -> list[str]:
    """Return the directories above a path, down to the copy's root, the innermost first."""
    found = []
    while path != root and path:
        path = split(path)[0]
        found.append(path)
    return found


def _leaves(failed: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in failed.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found
