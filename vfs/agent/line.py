"""The agent's end of a worker's line: requests in, answers out, each request a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

from vfs.errors import DeadlineExceeded, ForemountError, Unavailable, to_failure
from vfs.frames import BrokenFrame, Dialect, Failed, FrameBuffer, Request
from vfs.usage import Cause, asked_by, collecting

log = logging.getLogger(__name__)
CallT = TypeVar("CallT")
CallT_contra = TypeVar("CallT_contra", contravariant=True)
AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)
_READ_BYTES = 256 << 10


class Connection(Protocol[CallT_contra, AnswerT_co]):
    """What answers one worker for as long as it is connected."""

    def note(self, call: CallT_contra) -> None:
        """Take in a message that is not answered. The first one of a connection is its greeting."""
        ...

    async def carry_out(self, call: CallT_contra) -> AnswerT_co:
        """Return the answer. A `ForemountError` is answered as `Failed`."""
        ...

    def left(self) -> None:
        """Let go of what the worker held: it closed its end."""
        ...


class WorkerLine(Generic[CallT, AnswerT]):
    """Serves workers of one kind on a Unix socket. A request ends at the deadline that it carries.

    Args:
        who: the worker, in the log.
        dialect: what is said.
        connect: makes what answers a worker that has just connected.
    """

    def __init__(
        self, who: str, dialect: Dialect[CallT, AnswerT], connect: Callable[[], Connection[CallT, AnswerT]]
    ) -> None:  # fmt: skip
        self._who = who
        self._dialect = dialect
        self._connect = connect
        self._greeted: asyncio.StreamWriter | None = None
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

    def tell(self, told: AnswerT) -> bool:
        """Tell the worker that greeted last something of our own accord; False: none is connected."""
        if self._greeted is None:
            return False
        self._greeted.write(self._dialect.response(0, told))
        return True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the worker goes."""
        connection, frames, greeted = self._connect(), FrameBuffer(), False
        try:
            async with asyncio.TaskGroup() as group:
                while received := await reader.read(_READ_BYTES):
                    for body in frames.feed(received):
                        request = self._dialect.decode_request(body)
                        if request.id:
                            group.create_task(self._answer(request, connection, writer))
                            continue
                        if not greeted:
                            self._greeted, greeted = writer, True
                        # In order, and without a task: there may be two for each open of a small file.
                        connection.note(request.call)
                raise _Gone
        except* (_Gone, ConnectionError, BrokenFrame):
            log.info("%s went away", self._who)
        finally:
            if writer is self._greeted:
                self._greeted = None
            connection.left()
            writer.close()

    async def _answer(
        self, request: Request[CallT], connection: Connection[CallT, AnswerT], writer: asyncio.StreamWriter
    ) -> None:  # fmt: skip
        causes: dict[Cause, float] = {}
        answer: AnswerT | Failed
        try:
            with collecting() as causes, asked_by(request.caller):
                async with asyncio.timeout(request.deadline_s or None):
                    answer = await connection.carry_out(request.call)
        except ForemountError as exc:
            answer = Failed(to_failure(exc))
        except TimeoutError:
            late = DeadlineExceeded(getattr(request.call, "path", "read"), "the origin did not answer in time")
            answer = Failed(to_failure(late))
        except Exception as exc:
            log.exception("bug while answering %s", type(request.call).__name__)
            answer = Failed(to_failure(Unavailable("agent", f"bug: {type(exc).__name__}, see agent.log")))
        with contextlib.suppress(ConnectionError):
            writer.write(self._dialect.response(request.id, answer, causes))
            await writer.drain()


class _Gone(Exception):  # a signal inside this module, not an error
    """The worker closed its end: ends the connection's task group and with it what it still asked for."""
