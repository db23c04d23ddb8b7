"""The agent's end of the worker's line: requests in, answers out, each request a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from vfs import wire
from vfs.agent.adoption import Adoption
from vfs.agent.metadata import Metadata
from vfs.agent.objects import Objects
from vfs.agent.uploads import Uploads
from vfs.errors import DeadlineExceeded, ForemountError, Unavailable, Unsupported, to_failure
from vfs.extents.store import Store
from vfs.model import ObjectKey
from vfs.usage import Cause, Usage, collecting

log = logging.getLogger(__name__)
_READ_BYTES = 256 << 10


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
        self._metadata = metadata
        self._objects = objects
        self._store = store
        self._on_reads = on_reads
        self._on_used = on_used
        self._uploads = uploads
        self._adoption = adoption
        self.on_seen: Callable[[Usage], None] = lambda usage: None
        self.hello: wire.Hello | None = None
        self._greeted: asyncio.StreamWriter | None = None
        self.counters: dict[str, float] = {}
        self.on_worker: Callable[[], None] = lambda: None
        self.on_traced: Callable[[wire.Traced], None] = lambda _: None
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, socket_path: str) -> AsyncIterator[None]:
        """Serve until the block ends; the socket of a dead agent is replaced."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)
        server = await asyncio.start_unix_server(self._accept, socket_path)
        try:
            yield
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def tell(self, told: wire.Answer) -> bool:
        """Tell the worker something of our own accord; False: none is connected."""
        if self._greeted is None:
            return False
        self._greeted.write(wire.encode(wire.Response(0, told)))
        return True

    def expect(self, key: ObjectKey, ranges: list[tuple[int, int]]) -> None:
        """Tell the worker what is going to be read of an object."""
        self.tell(wire.Expect(key, ranges))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the worker goes."""
        held = _Held()
        frames = wire.FrameBuffer()
        try:
            async with asyncio.TaskGroup() as group:
                while received := await reader.read(_READ_BYTES):
                    for body in frames.feed(received):
                        request = wire.decode_request(body)
                        if request.id:
                            group.create_task(self._answer(request, writer, held))
                        else:  # in order, and without a task: there may be two for each open of a small file
                            self._note(request.call, writer, held)
                raise _Gone
        except* (_Gone, ConnectionError, wire.BrokenFrame):
            log.info("worker went away")
        finally:
            for key in held.opened:
                self._objects.close(key)
            for key in held.kept:
                self._store.release(key)
            if writer is self._greeted:
                self.hello = self._greeted = None
            writer.close()

    def _note(self, call: wire.Call, writer: asyncio.StreamWriter, held: _Held) -> None:
        """Take in a message that is not answered."""
        match call:
            case wire.Hello():
                self.hello, self._greeted = call, writer
                log.info("worker %s connected, passthrough: %s", call.pid, call.why_not or "in force")
                self.on_worker()
            case wire.Hold(key):
                if key not in held.kept and self._store.hold(key):
                    held.kept.add(key)
            case wire.CloseObject(key):
                if key in held.opened:
                    held.opened.remove(key)
                    self._objects.close(key)
                if key in held.kept:
                    held.kept.remove(key)
                    self._store.release(key)
            case wire.Reads(key, ranges):
                self._on_reads(key, ranges)
            case wire.Counters(values):
                self.counters = values
            case wire.Traced():
                self.on_traced(call)
            case wire.Used():
                self._on_used(call)
            case wire.Staging():
                if self._uploads is not None:
                    self._uploads.wake()
            case wire.Seen(usage):
                self.on_seen(usage)
            case _:
                log.warning("a %s without a number is not answered", type(call).__name__)

    async def _answer(self, request: wire.Request, writer: asyncio.StreamWriter, held: _Held) -> None:
        causes: dict[Cause, float] = {}
        try:
            with collecting() as causes:
                async with asyncio.timeout(request.deadline_s or None):
                    answer = await self._carry_out(request.call, held)
        except ForemountError as exc:
            answer = wire.Failed(to_failure(exc))
        except TimeoutError:
            late = DeadlineExceeded(getattr(request.call, "path", "read"), "the origin did not answer in time")
            answer = wire.Failed(to_failure(late))
        except Exception as exc:
            log.exception("bug while answering %s", type(request.call).__name__)
            answer = wire.Failed(to_failure(Unavailable("agent", f"bug: {type(exc).__name__}, see agent.log")))
        writer.write(wire.encode(wire.Response(request.id, answer, causes)))
        await writer.drain()

    async def _carry_out(self, call: wire.Call, held: _Held) -> wire.Answer:
        match call:
            case wire.Stat(path):
                return wire.Found(await self._metadata.stat(path))
            case wire.List(path, generation, after):
                return await self._metadata.list(path, generation, after)
            case wire.Settle(node_id, seq) if self._uploads is not None:
                await self._uploads.settle(node_id, seq)
                return wire.Settled()
            case wire.Adopt(node_id, seq, content) if self._adoption is not None:
                return wire.Adopted(await self._adoption.adopt(node_id, seq, content))
            case wire.OpenObject(path, version):
                if self._adoption is not None:
                    await self._adoption.passed(self._objects.identity(path, version))
                key, root = await self._objects.open(path, version)
                if key in held.opened:  # one hold for each connection, however often its worker opens the object
                    self._objects.close(key)
                held.opened.add(key)
                return wire.Opened(root)
            case wire.Need(key, offset, length, broken):
                return wire.Ready(await self._objects.need(key, offset, length, broken=broken))
            case _:
                raise Unsupported(type(call).__name__, "has no answer")


@dataclass(slots=True)
class _Held:
    """What one connection holds.

    Attributes:
        opened: objects that the agent fills for it.
        kept: complete objects that it reads without us.
    """

    opened: set[ObjectKey] = field(default_factory=set)
    kept: set[ObjectKey] = field(default_factory=set)


class _Gone(Exception):  # a signal inside this module, not an error
    """The worker closed its end: ends the connection's task group and with it what it still asked for."""
