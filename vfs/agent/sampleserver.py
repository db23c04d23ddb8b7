"""The agent's end of the line of the worker of `.jobs`: requests in, answers out, each request a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable

from vfs.agent.samples import Samples
from vfs.errors import DeadlineExceeded, ForemountError, Unavailable, Unsupported, to_failure
from vfs.samples import wire
from vfs.usage import Cause, collecting
from vfs.wire import BrokenFrame, FrameBuffer

log = logging.getLogger(__name__)
_READ_BYTES = 256 << 10


class SampleServer:
    """Serves one worker at a time on a Unix socket. A request ends at the deadline that it carries.

    Attributes:
        counters: what the worker counted last.
        on_greeted: called when a worker has connected.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._greeted: asyncio.StreamWriter | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.counters: dict[str, float] = {}
        self.on_greeted: Callable[[], None] = lambda: None

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

    def tell(self, told: wire.Placed | wire.Dropped) -> bool:
        """Tell the worker of its own accord; False: none is connected."""
        if self._greeted is None:
            return False
        self._greeted.write(wire.encode(wire.Response(0, told)))
        return True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the worker goes."""
        frames = FrameBuffer()
        try:
            async with asyncio.TaskGroup() as group:
                while received := await reader.read(_READ_BYTES):
                    for body in frames.feed(received):
                        request = wire.decode_request(body)
                        if request.id:
                            group.create_task(self._answer(request, writer))
                        else:
                            self._note(request.call, writer)
                raise _Gone
        except* (_Gone, ConnectionError, BrokenFrame):
            log.info("worker of .jobs went away")
        finally:
            if writer is self._greeted:
                self._greeted = None
            writer.close()

    def _note(self, call: wire.Call, writer: asyncio.StreamWriter) -> None:
        match call:
            case wire.Greet(pid):
                log.info("worker %s of .jobs connected", pid)
                self._greeted = writer
                self.on_greeted()
            case wire.Entered(path):
                self._samples.entered(path)
            case wire.Counters(values):
                self.counters = values
            case wire.Forgotten():
                pass  # what the kernel holds costs us nothing: bytes that are gone are made again
            case _:
                log.warning("a %s without a number is not answered", type(call).__name__)

    async def _answer(self, request: wire.Request, writer: asyncio.StreamWriter) -> None:
        causes: dict[Cause, float] = {}
        path = getattr(request.call, "path", "")
        try:
            with collecting() as causes:
                async with asyncio.timeout(request.deadline_s or None):
                    answer = await self._carry_out(request.call)
        except ForemountError as exc:
            answer = wire.Failed(to_failure(exc))
        except TimeoutError:
            answer = wire.Failed(to_failure(DeadlineExceeded(path, "its bytes did not come in time")))
        except Exception as exc:
            log.exception("bug while answering %s", type(request.call).__name__)
            answer = wire.Failed(to_failure(Unavailable("agent", f"bug: {type(exc).__name__}, see agent.log")))
        with contextlib.suppress(ConnectionError):
            writer.write(wire.encode(wire.Response(request.id, answer, causes)))
            await writer.drain()

    async def _carry_out(self, call: wire.Call) -> wire.Answer:
        match call:
            case wire.Look(path):
                return wire.Seen(await self._samples.look(path))
            case wire.Children(path):
                return wire.Nodes(await self._samples.children(path))
            case wire.Content(path, key):
                return wire.At(await self._samples.content(path, key))
            case _:
                raise Unsupported(type(call).__name__, "has no answer")


class _Gone(Exception):  # a signal inside this module, not an error
    """The worker closed its end: ends the connection's task group and with it what it still asked for."""
