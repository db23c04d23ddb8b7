"""Local copies on request: fetch a tree, evict it, verify it. Progress as records, for the command line and the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from vfs.agent.reading.metadata import Metadata
from vfs.agent.reading.objects import Objects
from vfs.errors import ForemountError, NotFound, Stale, Unsupported, to_failure
from vfs.extents.store import Store, Stored
from vfs.model import Entry, Kind, LakePath, join, lies_in
from vfs.namespace.mounts import MountTable

log = logging.getLogger(__name__)
_PIECE = 16 << 20
"""Asked for at a time while fetching a file: what progress moves by, and a link is kept busy with."""
_FILES_AT_A_TIME = 16
_PAGE_ENTRIES = 1000

Progress = dict[str, Any]


class LocalCopies:
    """What `foremount fetch`, `evict` and `verify` do.

    Attributes:
        runs: of `fetch`, that go on.
    """

    def __init__(self, mounts: MountTable, metadata: Metadata, objects: Objects, store: Store) -> None:
        self._mounts = mounts
        self._metadata = metadata
        self._objects = objects
        self._store = store
        self.runs: list[Run] = []

    async def fetch(self, paths: Iterable[LakePath]) -> AsyncIterator[Progress]:
        """Make everything below `paths` local; yield progress, and `{"done": true, "failed": […]}` last."""
        paths = list(paths)
        run = Run(paths)
        self.runs.append(run)
        queue: asyncio.Queue[Progress] = asyncio.Queue(maxsize=100)
        slots = asyncio.Semaphore(_FILES_AT_A_TIME)

        async def fetch_all() -> None:
            async with asyncio.TaskGroup() as group:
                for path in paths:
                    async for file, entry in self._walk(path, run):
                        run.files_total += 1
                        run.bytes_total += entry.version.size
                        await slots.acquire()
                        group.create_task(self._fetch_file(file, entry, run, queue, slots))

        work = asyncio.ensure_future(fetch_all())
        try:
            async for record in _drain(queue, work):
                yield record
            await work
        finally:
            work.cancel()
            self.runs.remove(run)
        yield run.record("") | {"done": True, "failed": run.failed}

    async def _fetch_file(
        self, path: LakePath, entry: Entry, run: Run, queue: asyncio.Queue[Progress], slots: asyncio.Semaphore
    ) -> None:
        try:
            key, _ = await self._objects.open(path, entry.version)
            try:
                for offset in range(0, entry.version.size, _PIECE):
                    length = min(_PIECE, entry.version.size - offset)
                    await self._objects.need(key, offset, length, background=True)
                    run.bytes_done += length
                    await queue.put(run.record(path) | {"state": "fetching"})
                if self._store.needs_seal(key):
                    await asyncio.to_thread(self._store.seal, key)
            finally:
                self._objects.close(key)
            run.files_done += 1
            await queue.put(run.record(path) | {"state": "fetched"})
        except ForemountError as exc:
            run.fail(path, exc)
        finally:
            slots.release()

    async def evict(self, paths: Iterable[LakePath]) -> dict[str, int]:
        """Drop the copies of everything below `paths` that nobody has open."""
        objects = size = 0
        for stored in self._below(paths):
            if await asyncio.to_thread(self._store.evict, stored.key):
                objects += 1
                size += stored.used
        return {"objects": objects, "bytes": size}

    async def verify(self, paths: Iterable[LakePath]) -> AsyncIterator[Progress]:
        """Check every block of the copies below `paths` and drop the broken ones."""
        paths = list(paths)
        run, broken = Run(paths), 0
        chosen = self._below(paths)
        run.files_total, run.bytes_total = len(chosen), sum(stored.present for stored in chosen)
        for stored in chosen:
            try:
                broken += len(await asyncio.to_thread(self._store.verify, stored.key))
            except ForemountError as exc:
                run.fail(LakePath(stored.identity.path), exc)
            run.files_done += 1
            run.bytes_done += stored.present
            yield run.record(stored.identity.path) | {"state": "verified", "broken_blocks": broken}
        yield run.record("") | {"done": True, "failed": run.failed, "broken_blocks": broken}

    def _below(self, paths: Iterable[LakePath]) -> list[Stored]:
        """Return the stored objects below any of the lake paths, whatever version."""
        wanted = list(paths)
        return [stored for stored in self._store.objects() if any(self._covers(path, stored) for path in wanted)]

    def _covers(self, path: LakePath, stored: Stored) -> bool:
        for point in self._mounts.points:
            if point.site != stored.identity.site:
                continue
            if not path or point.prefix.startswith(path + "/") or point.prefix == path:
                if lies_in(stored.identity.path, point.root):
                    return True
            elif self._mounts.find(path) is point and lies_in(stored.identity.path, point.site_path(path)):
                return True
        return False

    async def _walk(self, path: LakePath, run: Run) -> AsyncIterator[tuple[LakePath, Entry]]:
        """Yield the files at and below a path; what can't be listed is noted in `run`."""
        try:
            point = self._mounts.find(path)
            if point is not None and point.local_root is not None:
                raise Unsupported(path, "lies on this host already")
            entry = await self._metadata.stat(path)
            if entry is None:
                raise NotFound(path)
            if entry.kind is Kind.FILE:
                yield path, entry
            elif entry.kind is Kind.DIRECTORY:
                async for child in self._children(path):
                    inner = LakePath(join(path, child.name))
                    if child.kind is Kind.FILE:
                        yield inner, child
                    elif child.kind is Kind.DIRECTORY:
                        async for found in self._walk(inner, run):
                            yield found
        except ForemountError as exc:
            run.fail(path, exc)

    async def _children(self, path: LakePath) -> AsyncIterator[Entry]:
        listed = await self._metadata.list(path, 0, 0)
        place = 0
        while True:
            page = self._metadata.page(path, listed.generation, place, _PAGE_ENTRIES)
            for entry in page:
                if entry is not None:
                    yield entry
            place += len(page)
            is_gone = not page and place < listed.count
            if place >= listed.count:
                if listed.complete:
                    return
                generation = listed.generation
                listed = await self._metadata.list(path, generation, place)
                is_gone = listed.generation != generation
            if is_gone:  # listed anew meanwhile: an end here would leave files out
                raise Stale(path, "was listed anew while it was being fetched", "fetch it again")


class Run:
    """The running totals of one order."""

    def __init__(self, paths: list[LakePath]) -> None:
        self.paths = paths
        self.began_s = time.time()
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = 0
        self.failed: list[Progress] = []

    def record(self, path: str) -> Progress:
        return {
            "path": path,
            "files_done": self.files_done,
            "files_total": self.files_total,
            "bytes_done": self.bytes_done,
            "bytes_total": self.bytes_total,
        }

    def fail(self, path: LakePath, error: ForemountError) -> None:
        failure = to_failure(error)
        fields = {name: getattr(failure, name) for name in failure.__struct_fields__}
        self.failed.append({"path": path, "error": fields})


async def _drain(queue: asyncio.Queue[Progress], work: asyncio.Future[None]) -> AsyncIterator[Progress]:
    """Yield what is put into the queue until the work is done and the queue empty."""
    while True:
        getting = asyncio.ensure_future(queue.get())
        waited: set[asyncio.Future[Any]] = {getting, work}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            yield getting.result()
            continue
        getting.cancel()
        while not queue.empty():
            yield queue.get_nowait()
        return
