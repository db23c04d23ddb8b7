"""The agent's end of the line of the worker of `.jobs`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from vfs.agent.line import WorkerLine
from vfs.agent.samples.answers import Samples
from vfs.errors import Unsupported
from vfs.samples import wire

log = logging.getLogger(__name__)


class SampleServer:
    """Serves one worker at a time on a Unix socket. A request ends at the deadline that it carries.

    Attributes:
        counters: what the worker counted last.
        on_greeted: called when a worker has connected.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._line = WorkerLine("worker of .jobs", wire.DIALECT, lambda: self)
        self.counters: dict[str, float] = {}
        self.on_greeted: Callable[[], None] = lambda: None

    def listening(self, socket_path: str) -> AbstractAsyncContextManager[None]:
        """Serve until the block ends; the socket of a dead agent is replaced."""
        return self._line.listening(socket_path)

    def tell(self, told: wire.Placed | wire.Dropped) -> bool:
        """Tell the worker of its own accord; False: none is connected."""
        return self._line.tell(told)

    def left(self) -> None:
        """Its samples hold nothing for a connection."""

    def note(self, call: wire.Call) -> None:
        """Take in a message that is not answered."""
        match call:
            case wire.Greet(pid):
                log.info("worker %s of .jobs connected", pid)
                self.on_greeted()
            case wire.Entered(path):
                self._samples.entered(path)
            case wire.Counters(values):
                self.counters = values
            case wire.Forgotten():
                pass  # what the kernel holds costs us nothing: bytes that are gone are made again
            case _:
                log.warning("a %s without a number is not answered", type(call).__name__)

    async def carry_out(self, call: wire.Call) -> wire.Answer:
        """Return the answer."""
        match call:
            case wire.Look(path):
                return wire.Seen(await self._samples.look(path))
            case wire.Children(path):
                return wire.Nodes(await self._samples.children(path))
            case wire.Content(path, key):
                return wire.At(await self._samples.content(path, key))
            case _:
                raise Unsupported(type(call).__name__, "has no answer")
