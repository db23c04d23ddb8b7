"""The worker's line to the agent: calls that survive an agent's death.

One task owns the connection (`run`), any number of tasks call. A call that was not answered when the connection broke is sent
again on the next one: all calls are idempotent. A call ends at its deadline, whatever the agent does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

import trio

from vfs import usage, wire
from vfs.errors import DeadlineExceeded, Failure, from_failure
from vfs.frames import BrokenFrame, Dialect, Failed, FrameBuffer
from vfs.samples import wire as samples
from vfs.usage import NOBODY, CallerFacts, Cause

log = logging.getLogger(__name__)
CallT = TypeVar("CallT")
TellT = TypeVar("TellT")
AnswerT = TypeVar("AnswerT")

asked: ContextVar[bool] = ContextVar("asked", default=False)
"""Set where a task has called the agent; who wants to know unsets it before."""
_RETRY_S = 0.05
"""Between attempts to connect: an agent starts in some 300 ms."""
_REST: dict[type, Cause] = {
    wire.Stat: Cause.NAMES,
    wire.List: Cause.NAMES,
    wire.Settle: Cause.UPLOAD,
    samples.Look: Cause.NAMES,
    samples.Children: Cause.NAMES,
}
"""What a call waited for beyond what its answer explains; the others: the agent."""
_FOR_BYTES = (wire.Need, samples.Content)


class _Waiting:
    """One call under way: the frame to repeat, and where its answer goes."""

    __slots__ = ("answer", "causes", "done", "frame")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.done = trio.Event()
        self.answer: object = None
        self.causes: dict[Cause, float] = {}


class Line(Generic[CallT, TellT]):
    """Calls to the agent.

    Args:
        socket_path: of the agent's Unix socket.
        hello: makes the first message of each connection.
        dialect: what is spoken.
        deadline_s: after which a call fails.

    Attributes:
        caller: tells the process that the call is made for.

    Invariant: `_waiting` holds exactly the calls that somebody awaits.
    """

    def __init__(
        self, socket_path: str, hello: Callable[[], CallT], *, deadline_s: float, dialect: Dialect[CallT, TellT]
    ) -> None:  # fmt: skip
        self._dialect = dialect
        self._socket_path = socket_path
        self._hello = hello
        self._deadline_s = deadline_s
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 1
        self._outbox_in, self._outbox = trio.open_memory_channel[bytes](10_000)
        self.connections = 0
        self.on_connect: Callable[[], None] = lambda: None
        self.on_told: Callable[[TellT], None] = lambda _: None
        self.caller: Callable[[], CallerFacts] = lambda: NOBODY

    @property
    def connected(self) -> bool:
        """Whether an agent is listening right now."""
        return self._stream is not None

    @property
    def backlog(self) -> int:
        """Return how many messages the agent has not taken yet."""
        return self._outbox_in.statistics().current_buffer_used

    _stream: trio.SocketStream | None = None

    async def call(self, call: CallT, expected: type[AnswerT], subject: str, deadline_s: float | None = None) -> AnswerT:
        """Send a call and return its answer.

        Args:
            deadline_s: None: the client's own.
        Raises:
            DeadlineExceeded: no agent or no answer in time.
            ForemountError: what the agent answered instead.
        """
        asked.set(True)
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        began_s, rest = trio.current_time(), _REST.get(type(call), Cause.AGENT)
        causes: dict[Cause, float] = {}
        number = self._next_id
        self._next_id += 1
        waiting = self._waiting[number] = _Waiting(self._dialect.request(number, call, deadline_s, self.caller()))
        failure: Failure | None = None
        try:
            with trio.fail_after(deadline_s):
                self._post(waiting.frame)
                await waiting.done.wait()
        except trio.TooSlowError as exc:
            rest = Cause.DEADLINE if self.connected else Cause.AGENT
            what = "no answer" if self.connected else "the agent is not running"
            raise DeadlineExceeded(subject, what, "see `foremount status`") from exc
        else:
            causes, failure = waiting.causes, waiting.answer.failure if isinstance(waiting.answer, Failed) else None
            if failure is not None and failure.kind == DeadlineExceeded.__name__:
                causes, rest = {}, Cause.DEADLINE
        finally:
            del self._waiting[number]
            usage.waited(causes, rest, trio.current_time() - began_s, for_bytes=isinstance(call, _FOR_BYTES))
        if failure is not None:
            raise from_failure(failure)
        assert isinstance(waiting.answer, expected), waiting.answer
        return waiting.answer

    def tell_nowait(self, call: CallT) -> None:
        """Send a call that is not answered; lost when no agent is there, which every such call must survive."""
        if self._stream is not None:
            self._post(self._dialect.request(0, call))

    def _post(self, frame: bytes) -> None:
        if self._stream is None:
            return  # sent by `run` on connecting, if somebody still waits for it
        try:
            self._outbox_in.send_nowait(frame)
        except trio.WouldBlock:
            log.warning("agent does not read: %s queued messages, dropping one", 10_000)

    async def run(self) -> None:
        """Keep a connection for as long as the worker lives."""
        while True:
            try:
                stream = await trio.open_unix_socket(self._socket_path)
            except OSError:
                await trio.sleep(_RETRY_S)
                continue
            async with stream:
                self._stream = stream
                self.connections += 1
                try:
                    await self._serve(stream)
                finally:
                    self._stream = None
                    self._drain()
            log.info("agent went away, waiting for the next one")

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Repeat what is unanswered, then send and receive until the connection breaks."""
        try:
            await stream.send_all(self._dialect.request(0, self._hello()))
            self.on_connect()
            for waiting in list(self._waiting.values()):
                await stream.send_all(waiting.frame)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream)
                await self._receive(stream)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, BrokenFrame) as broken:
            log.info("connection to the agent broke: %s", broken.exceptions[0])

    async def _send(self, stream: trio.SocketStream) -> None:
        try:
            async for frame in self._outbox:
                await stream.send_all(frame)
        except trio.BrokenResourceError:
            return  # the receiving side notices too and ends the connection

    async def _receive(self, stream: trio.SocketStream) -> None:
        frames = FrameBuffer()
        async for received in stream:
            for body in frames.feed(bytes(received)):
                response = self._dialect.decode_response(body)
                if not response.id:
                    self.on_told(response.answer)
                    continue
                waiting = self._waiting.get(response.id)
                if waiting is not None and not waiting.done.is_set():
                    waiting.answer, waiting.causes = response.answer, dict(response.causes)
                    waiting.done.set()

    def _drain(self) -> None:
        """Forget frames of the broken connection: what matters of them is repeated from `_waiting`."""
        try:
            while True:
                self._outbox.receive_nowait()
        except trio.WouldBlock:
            return


class AgentClient(Line[wire.Call, wire.Answer]):
    """The fs worker's line."""

    def __init__(self, socket_path: str, hello: Callable[[], wire.Hello], *, deadline_s: float) -> None:
        super().__init__(socket_path, hello, deadline_s=deadline_s, dialect=wire.DIALECT)


class SamplesClient(Line[samples.Call, samples.Answer]):
    """The line of the worker of `.jobs`."""

    def __init__(self, socket_path: str, hello: Callable[[], samples.Greet], *, deadline_s: float) -> None:
        super().__init__(socket_path, hello, deadline_s=deadline_s, dialect=samples.DIALECT)
