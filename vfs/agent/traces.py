"""Hands what the fs worker records to one client at a time, and has the worker record only as long as there is one.

Memory: `_QUEUE_MAX` messages of at most 45 KiB; what a client does not take in time is counted and not kept.

Task: none of its own but a thread's work for each layout that has to be packed; `record` runs in its client's request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from vfs import __version__, wire
from vfs.agent.server import WorkerServer
from vfs.checkpoints.layout import Layout
from vfs.checkpoints.learned import Learned
from vfs.config import Config, LocalSite
from vfs.errors import Busy
from vfs.extents.counters import FetchCounters
from vfs.extents.layout import Identity
from vfs.extents.link import LineFacts
from vfs.model import SiteName
from vfs.policy.store import PolicyStore
from vfs.traces.recording import Line, PolicyText, Said, Setting, pack
from vfs.traces.records import RECORD

log = logging.getLogger(__name__)
_QUEUE_MAX = 256
_LINES_EVERY_S = 1.0
_LAST_S = 2.0
"""For the worker to send what it has recorded when a recording ends."""
_MEMBERS_MAX = 50_000
"""Of a layout that goes into a trace: some 0.5 MB packed."""


class Traces:
    """The recording of this mount, if one goes on.

    Invariant: the worker was told to record if and only if `_queue` is there.
    """

    def __init__(
        self,
        server: WorkerServer,
        config: Config,
        policies: PolicyStore,
        *,
        lines: Callable[[], Iterable[LineFacts]],
        counters: FetchCounters,
        layouts: Callable[[], Iterable[tuple[Identity, Layout, Learned | None]]],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._server = server
        self._config = config
        self._policies = policies
        self._lines = lines
        self._counters = counters
        self._before = (0, 0)
        self._layouts = layouts
        self._spawn = spawn
        self._queue: asyncio.Queue[Said] | None = None
        self._lost = 0
        server.on_worker = self._greet
        server.on_traced = self._received

    async def record(self) -> AsyncIterator[Said]:
        """Yield what is opened and read until `end` is called; closing the iterator ends the recording too.

        Raises:
            Busy: another recording goes on.
        """
        if self._queue is not None:
            raise Busy("trace", "another recording of this mount goes on", "wait for it, or end the other `foremount trace`")
        queue = self._queue = asyncio.Queue(_QUEUE_MAX)
        self._before = self._counters.fetches, self._counters.fetched_bytes
        try:
            yield Said(setting=self._setting())
            self._greet()
            log.info("recording what is read")
            for known in list(self._layouts()):
                self.layout_known(*known)
            done = False
            while not done:
                try:
                    said = await asyncio.wait_for(queue.get(), _LINES_EVERY_S)
                except TimeoutError:
                    said = self._measured()
                done = said.done
                yield said
        finally:
            self._queue = None
            self._server.tell(wire.Tracing(on=False))
            log.info("recording ended")

    async def end(self) -> bool:
        """Have the recording end with everything that was read until now; returns whether there was one."""
        queue = self._queue
        if queue is None:
            return False
        if not self._server.tell(wire.Tracing(on=False)):
            await queue.put(self._measured(done=True))
        else:
            asyncio.get_running_loop().call_later(_LAST_S, self._give_up, queue)
        return True

    def layout_known(self, identity: Identity, layout: Layout, learned: Learned | None) -> None:
        """A file's layout was read."""
        if self._queue is not None and len(layout) <= _MEMBERS_MAX:
            self._spawn(self._pack(identity, layout, learned))

    async def _pack(self, identity: Identity, layout: Layout, learned: Learned | None) -> None:
        key = identity.key
        packed = await asyncio.to_thread(pack, key, layout, learned)
        self._put(Said(layout=packed))

    def _greet(self) -> None:
        if self._queue is not None:
            self._server.tell(wire.Tracing(on=True))

    def _received(self, traced: wire.Traced) -> None:
        said = Said(worker=traced.worker, files=traced.files, records=traced.records, lost=traced.lost + self._lost)
        self._lost = 0
        self._put(said)
        if traced.last:
            self._put(self._measured(done=True))

    def _put(self, said: Said) -> None:
        queue = self._queue
        if queue is None:
            return
        if said.done and queue.full():
            queue.get_nowait()
        try:
            queue.put_nowait(said)
        except asyncio.QueueFull:
            self._lost += said.lost + len(said.records) // RECORD.size

    def _give_up(self, queue: asyncio.Queue[Said]) -> None:
        if self._queue is queue:
            self._put(self._measured(done=True))

    def _measured(self, *, done: bool = False) -> Said:
        seen = {line.site: Line(line.seen.ttfb_s, line.seen.bytes_per_s, line.seen.window) for line in self._lines()}
        requests, fetched_bytes = self._before
        return Said(
            lines=seen,
            requests=self._counters.fetches - requests,
            fetched_bytes=self._counters.fetched_bytes - fetched_bytes,
            done=done,
        )

    def _setting(self) -> Setting:
        sites = self._config.sites
        return Setting(
            version=__version__,
            host=socket.gethostname(),
            sites=[SiteName(name) for name in sites],
            local_sites=[SiteName(name) for name, site in sites.items() if isinstance(site, LocalSite)],
            mounts=self._config.mounts,
            cache_size=self._config.cache.size,
            limits=self._config.limits,
            policies=[PolicyText(text.source, text.shipped, text.text) for text in self._policies.current.texts],
        )
