"""The agent's end of the worker's line: requests in, answers out, each request a task of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from vfs import wire
from vfs.agent.line import WorkerLine
from vfs.agent.reading.metadata import Metadata
from vfs.agent.reading.objects import Objects
from vfs.agent.writing.adoption import Adoption
from vfs.agent.writing.uploads import Uploads
from vfs.errors import Unsupported
from vfs.extents.store import Store
from vfs.model import ObjectKey
from vfs.usage import Usage

log = logging.getLogger(__name__)


class WorkerServer:
    """Serves fs workers on a Unix socket. A request ends at the deadline that it carries.

    Attributes:
        hello: what the worker that is connected said of itself, None while there is none.
        counters: its latest counters.
        on_worker: called when a worker has connected.
        on_traced: called with what it recorded.
    """

    def __init__(
        self,
        metadata: Metadata,
        objects: Objects,
        store: Store,
        *,
        on_reads: Callable[[ObjectKey, list[tuple[int, int]]], None],
        on_used: Callable[[wire.Used], None],
        uploads: Uploads | None = None,
        adoption: Adoption | None = None,
    ) -> None:
        self.metadata = metadata
        self.objects = objects
        self.store = store
        self.on_reads = on_reads
        self.on_used = on_used
        self.uploads = uploads
        self.adoption = adoption
        self.on_seen: Callable[[Usage], None] = lambda usage: None
        self.hello: wire.Hello | None = None
        self.counters: dict[str, float] = {}
        self.on_worker: Callable[[], None] = lambda: None
        self.on_traced: Callable[[wire.Traced], None] = lambda _: None
        self._line = WorkerLine("worker", wire.DIALECT, lambda: _Worker(self))

    def listening(self, socket_path: str) -> AbstractAsyncContextManager[None]:
        """Serve until the block ends; the socket of a dead agent is replaced."""
        return self._line.listening(socket_path)

    def tell(self, told: wire.Answer) -> bool:
        """Tell the worker something of our own accord; False: none is connected."""
        return self._line.tell(told)

    def expect(self, key: ObjectKey, ranges: list[tuple[int, int]]) -> None:
        """Tell the worker what is going to be read of an object."""
        self.tell(wire.Expect(key, ranges))


class _Worker:
    """One worker that is connected.

    Attributes:
        opened: objects that the agent fills for it.
        kept: complete objects that it reads without us.
    """

    def __init__(self, server: WorkerServer) -> None:
        self._server = server
        self._hello: wire.Hello | None = None
        self.opened: set[ObjectKey] = set()
        self.kept: set[ObjectKey] = set()

    def left(self) -> None:
        for key in self.opened:
            self._server.objects.close(key)
        for key in self.kept:
            self._server.store.release(key)
        if self._server.hello is self._hello:
            self._server.hello = None

    def note(self, call: wire.Call) -> None:
        match call:
            case wire.Hello():
                self._hello = self._server.hello = call
                log.info("worker %s connected, passthrough: %s", call.pid, call.why_not or "in force")
                self._server.on_worker()
            case wire.Hold(key):
                if key not in self.kept and self._server.store.hold(key):
                    self.kept.add(key)
            case wire.CloseObject(key):
                if key in self.opened:
                    self.opened.remove(key)
                    self._server.objects.close(key)
                if key in self.kept:
                    self.kept.remove(key)
                    self._server.store.release(key)
            case wire.Joined(key, caller):
                self._server.objects.joined(key, caller)
            case wire.Reads(key, ranges):
                self._server.on_reads(key, ranges)
            case wire.Counters(values):
                self._server.counters = values
            case wire.Traced():
                self._server.on_traced(call)
            case wire.Used():
                self._server.on_used(call)
            case wire.Staging():
                if self._server.uploads is not None:
                    self._server.uploads.wake()
            case wire.Seen(usage):
                self._server.on_seen(usage)
            case _:
                log.warning("a %s without a number is not answered", type(call).__name__)

    async def carry_out(self, call: wire.Call) -> wire.Answer:
        match call:
            case wire.Stat(path):
                return wire.Found(await self._server.metadata.stat(path))
            case wire.List(path, generation, after):
                return await self._server.metadata.list(path, generation, after)
            case wire.Settle(node_id, seq) if self._server.uploads is not None:
                await self._server.uploads.settle(node_id, seq)
                return wire.Settled()
            case wire.Adopt(node_id, seq, content) if self._server.adoption is not None:
                return wire.Adopted(await self._server.adoption.adopt(node_id, seq, content))
            case wire.OpenObject(path, version):
                if self._server.adoption is not None:
                    await self._server.adoption.passed(self._server.objects.identity(path, version))
                key, root = await self._server.objects.open(path, version)
                if key in self.opened:  # one hold for each connection, however often its worker opens the object
                    self._server.objects.close(key)
                self.opened.add(key)
                return wire.Opened(root, self._server.objects.here(key))
            case wire.Need(key, offset, length, broken):
                root = await self._server.objects.need(key, offset, length, broken=broken)
                return wire.Ready(root, self._server.objects.here(key))
            case _:
                raise Unsupported(type(call).__name__, "has no answer")
