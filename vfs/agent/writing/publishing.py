"""Carries out one step of one staged node at its origin, and says what is to be noted of it.

Flow: a file that commits others waits until they are there (`commits.py`). Then it is sent (`sending.py`), or moved where the
origin has it under another name. What has begun and arrived is noted while it goes on, so that another process can resume it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import xxhash
from msgspec.structs import replace

from vfs.agent.writing.commits import Commits, Look
from vfs.agent.writing.places import Resume, is_ours, is_unchanged, left_by, noted, resume_of
from vfs.agent.writing.sending import Sender, SendLimits, StagedFile
from vfs.agent.writing.uploadplan import Clear, MakeDirectory, Move, Remove, Send, Step, clears_below
from vfs.checkpoints import commit
from vfs.clock import Clock
from vfs.errors import DirectoryNotEmpty, NotFound, Stale, Unavailable, to_failure
from vfs.extents.fair import Priority
from vfs.extents.throttle import Throttles
from vfs.model import Entry, Kind, LakePath, SiteName, SitePath, Version, join, split
from vfs.namespace.catalog import CatalogWriter, Known
from vfs.namespace.journal import content_path
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import At, Staged, StagedKind, StagedNodes, Upload, UploadState
from vfs.policy.engine import Decision
from vfs.sites import writing
from vfs.sites.protocol import Site
from vfs.sites.writing import SiteWriter

log = logging.getLogger(__name__)
_NOTE_EVERY_S = 1.0


class Wanted(Protocol):
    """What the origins are to hold, as the journal says by now."""

    @property
    def nodes(self) -> StagedNodes:
        """What is staged."""
        ...

    def check(self, node: Staged, path: LakePath) -> None:
        """Raises:
        Stale: the node has another content or another name by now.
        """
        ...

    def note(self, node_id: int, record: Upload, digests: bytes = b"") -> None:
        """Keep what is known of a node's upload."""
        ...

    def is_named(self, site: SiteName, path: SitePath) -> bool:
        """Return whether a file is to have this path at an origin, or is to go from it."""
        ...

    def seen_ns(self, node: Staged) -> int:
        """Return when the agent first saw the node."""
        ...


@dataclass(frozen=True, slots=True)
class Carried:
    """How a step went.

    Attributes:
        record: to be noted of the node: DONE, or WAITING for others.
        digests: of the content's blocks, 8 bytes little-endian each, where it was read for this step.
    """

    record: Upload
    digests: bytes = b""


class Publisher:
    """Carries out steps, many at a time.

    Args:
        directory: of the staging area.
        decide: the policy's values for writing a path.
        counters: bytes and files are counted here.
    """

    def __init__(
        self,
        wanted: Wanted,
        sites: Mapping[SiteName, Site],
        writers: Mapping[SiteName, SiteWriter],
        catalog: CatalogWriter,
        commits: Commits,
        *,
        directory: str,
        decide: Callable[[LakePath], Decision],
        clock: Clock,
        limits: SendLimits,
        counters: Counter[str],
    ) -> None:
        self._wanted = wanted
        self._sites = sites
        self._writers = writers
        self._catalog = catalog
        self._commits = commits
        self._directory = directory
        self._decide = decide
        self._clock = clock
        self._limits = limits
        self._counters = counters
        self._host = socket.gethostname()
        self._throttles = Throttles(clock)
        self._parts = asyncio.Semaphore(limits.parts)
        self._pool = ThreadPoolExecutor(2, "upload-read")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    async def carry_out(self, node: Staged, path: LakePath, point: MountPoint, step: Step) -> Carried:
        """Carry out a step. The catalog says what the origin has before anybody notes that it is done.

        Raises:
            Stale: the node was changed meanwhile; look at it again.
            ForemountError: as the origin says.
        """
        sender, writer = self._sender(path, point), self._writers[point.site]
        record = Upload(node.seq, UploadState.DONE, site=point.site)
        if clears_below(step, node):
            await self._clear_directory(point.site, step.to, itself=not isinstance(step, MakeDirectory))
        match step:
            case Move(_, to) if to != point.site_path(path):
                return await self._move(node, path, point, step)
            case Send() | Move():
                return await self._publish(node, path, point, step)
            case MakeDirectory(to):
                self._wanted.check(node, path)
                if node.hides is StagedKind.FILE:
                    await self._remove_file(point.site, to)
                await sender.patiently(lambda _: writer.make_directory(to))
                record = replace(record, at=At(to, Version(0)))
                if node.hides is not None:  # what was known is of the one that was there before
                    self._catalog.doubt(path, self._clock.wall_ns())
            case Remove(to, directory) if not directory:
                await sender.patiently(lambda _: writer.remove(to))
                self._forget_name(path)
            case _:
                self._forget_name(path)
        return Carried(replace(record, done_ns=self._clock.wall_ns()))

    async def clear(self, clear: Clear) -> None:
        """Remove what a node has left at a place. What another is to have there, or somebody else has put there, stays."""
        if clear.begun is not None:
            await self._writers[clear.site].abandon(clear.begun)
        if not self._wanted.is_named(clear.site, clear.to):
            await self._remove_file(clear.site, clear.to, clear.at.version)

    async def _remove_file(self, site: SiteName, path: SitePath, version: Version | None = None) -> None:
        """Remove a file that is there, in this version if one is given."""
        with contextlib.suppress(NotFound):
            entry = await self._sites[site].stat(path)
            if entry.kind is Kind.FILE and (version is None or is_ours(version, entry.version)):
                await self._writers[site].remove(path)

    async def _clear_directory(self, site: SiteName, path: SitePath, *, itself: bool) -> None:
        """Remove the directories that were left in a directory, with `itself` that as well. Files are somebody's, and stay.

        Raises:
            DirectoryNotEmpty: there are some, and it was to go itself.
        """
        try:
            if (await self._sites[site].stat(path)).kind is not Kind.DIRECTORY:
                return
            async for page in self._sites[site].list(path):
                for entry in page:
                    if entry.kind is Kind.DIRECTORY:
                        with contextlib.suppress(DirectoryNotEmpty):
                            await self._clear_directory(site, SitePath(join(path, entry.name)), itself=True)
        except NotFound:
            pass
        if itself:
            await self._writers[site].remove(path, directory=True)

    def _forget_name(self, path: LakePath) -> None:
        self._catalog.put(path, Known(None, self._clock.wall_ns()))

    def record(self, node: Staged, point: MountPoint) -> Upload | None:
        """Return what is known of a node at its origin, also of one that came from there and was never sent."""
        known = self._catalog.upload(node.id)
        if known is None and (settled := self._commits.record(node)) is not None:
            return replace(settled, site=point.site)
        return known

    def aside(self, node: Staged, to: SitePath) -> SitePath:
        """Return a hidden name beside another, for content that is in the way of what it waits for."""
        return SitePath(join(split(to)[0], writing.HIDDEN_PREFIX + self._token(node, to)))

    async def _publish(self, node: Staged, path: LakePath, point: MountPoint, step: Send | Move) -> Carried:
        """Bring a file to its origin, after those that it commits."""
        rule = self._commits.rule(path, self._decide(path).values.commit_marker)
        look = None
        if rule is not None and node.content:
            look = await self._look_at_marker(rule, node, path, point)
            if look.blocked:
                return Carried(self._waiting(node, look))
        if isinstance(step, Move):
            carried = await self._move(node, path, point, step)
        else:
            carried = await self._send(node, path, point, step.to)
        record = carried.record
        assert record.at is not None
        if look is not None and look.cover is not None:
            manifest = self._commits.commit(look, node, record, path, point, self._wanted.nodes)
            log.info("%s of %s files is committed at %s", manifest.path, len(manifest.files), point.site)
        self._catalog.put(path, Known(Entry(split(path)[1], Kind.FILE, record.at.version), self._clock.wall_ns()))
        return carried

    async def _look_at_marker(self, rule: commit.Rule, node: Staged, path: LakePath, point: MountPoint) -> Look:
        content = content_path(self._directory, node.content)
        return await self._commits.look(rule, node, path, content, point, self._sites[point.site], self._wanted.nodes)

    def _waiting(self, node: Staged, look: Look) -> Upload:
        """Return the record of a marker that waits."""
        first = look.blocked[0]
        more = f" and {len(look.blocked) - 1} more" if len(look.blocked) > 1 else ""
        failure = to_failure(Unavailable(first.path, f"{first.why}{more}"))
        return Upload(node.seq, UploadState.WAITING, failure=failure, seen_ns=self._wanted.seen_ns(node))

    async def _move(self, node: Staged, path: LakePath, point: MountPoint, step: Move) -> Carried:
        """Give an object of the origin its new name, or send it again where it is not there any more."""
        writer, site = self._writers[point.site], self._sites[point.site]
        record = self.record(node, point)
        assert record is not None and record.at is not None
        self._wanted.note(node.id, replace(record, moving=step.to))
        try:
            await self._sender(path, point).patiently(lambda _: writer.rename(step.source, step.to))
        except NotFound:
            if not await self._has_moved(site, step.to, record.at.version):  # else an earlier try got that far
                if not node.content:
                    raise
                self._wanted.note(node.id, replace(record, moving=SitePath("")))
                return await self._send(node, path, point, point.site_path(path))
        version = (await site.stat(step.to)).version
        if (old := point.lake_path(step.source)) is not None and not self._wanted.is_named(point.site, step.source):
            self._forget_name(old)
        return Carried(replace(record, at=At(step.to, version), moving=SitePath(""), failure=None))

    async def _has_moved(self, site: Site, to: SitePath, version: Version) -> bool:
        try:
            return is_unchanged(version, (await site.stat(to)).version)
        except NotFound:
            return False

    async def _send(self, node: Staged, path: LakePath, point: MountPoint, to: SitePath) -> Carried:
        file = StagedFile(content_path(self._directory, node.content), node.size, node.mtime_ns, self._pool)
        try:
            return await self._send_file(file, node, path, point, to)
        finally:
            file.close()

    async def _send_file(self, file: StagedFile, node: Staged, path: LakePath, point: MountPoint, to: SitePath) -> Carried:
        old = self.record(node, point)
        begun_ns = old.begun_ns if old is not None and old.seq == node.seq and old.begun_ns else self._clock.wall_ns()
        seen_ns = old.seen_ns if old is not None and old.seen_ns else self._wanted.seen_ns(node)
        left = left_by(old)
        record = Upload(node.seq, UploadState.UPLOADING, begun_ns=begun_ns, seen_ns=seen_ns, site=point.site, left=left)
        noted_s, is_sent = -math.inf, False

        def begun(upload: writing.Upload) -> None:
            nonlocal record
            record = replace(record, resume=noted(Resume(point.site, upload)))
            self._wanted.note(node.id, record)

        def arrived(size: int) -> None:
            nonlocal record, noted_s
            record = replace(record, sent=record.sent + size)
            self._counters["bytes"] += size
            if self._clock.monotonic_s() - noted_s >= _NOTE_EVERY_S:
                noted_s = self._clock.monotonic_s()
                self._wanted.note(node.id, record)

        def still_wanted() -> None:
            nonlocal is_sent
            self._wanted.check(node, path)
            is_sent = True  # the first bytes go now

        sender, resumed = self._sender(path, point), resume_of(old)
        upload = resumed.upload if resumed is not None and resumed.site == point.site else None
        try:
            sent = await sender.send(file, to, self._token(node, to), upload, begun, arrived, still_wanted)
        except Stale:
            if record.resume and resumed is None and not is_sent:  # the origin has nothing of it to be asked for
                self._wanted.note(node.id, replace(record, resume=b""))
            raise
        except NotFound:  # its parts are gone: what the origin may show stays noted, but nothing is resumed
            if (gone := resume_of(record)) is not None:
                forgotten = Resume(gone.site, replace(gone.upload, token=""))
                self._wanted.note(node.id, replace(record, resume=noted(forgotten)))
            raise
        self._counters["files"] += 1
        done = replace(
            record,
            state=UploadState.DONE,
            at=At(to, sent.version),
            left=tuple(at for at in left if at.path != to),
            sent=node.size,
            done_ns=self._clock.wall_ns(),
            resume=b"",
            digest=sent.digest,
            hash_s=file.hash_s,
        )
        return Carried(done, file.block_digests())

    def _token(self, node: Staged, to: SitePath) -> str:
        """Return what tells this content at this path from every other upload of any host."""
        content = (
            f"{to}\0{self._host}\0{self._directory}\0{node.id}\0{node.seq}\0{node.content}\0{node.size}\0{node.mtime_ns}"
        )
        return xxhash.xxh3_128_hexdigest(content.encode("utf-8", "surrogateescape"))

    def _sender(self, path: LakePath, point: MountPoint) -> Sender:
        def bound() -> tuple[str, float]:
            decision = self._decide(path)
            return str(decision.origins["upload_bandwidth"]), decision.values.upload_bandwidth

        async def wait(size: int) -> None:
            """Let bytes go as the policy is by then."""
            await self._throttles.passed(point.site, size, bound, lambda: Priority.BACKGROUND)

        return Sender(self._writers[point.site], self._limits, self._clock, self._parts, wait)
