"""A long line in front of any TCP server: a round-trip time and a shared bandwidth, for servers that have neither.

Runs in a thread of the caller's process. The first bytes of a connection pay a second round trip, as the handshake does; what
the server sends shares the cap, as in `wan_origin.py`, which is the line of the HTTP benches.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

from tests.servers.wan_origin import Bucket

_PIECE = 256 << 10
_PIECES_MAX = 512
"""On their way at most, for each connection and direction."""


class FarLine:
    """A running line.

    Attributes:
        port: to connect to in place of the server's.
        sent_bytes: by the server so far.
        end: lets all connections go, from any thread.
        cut, mend: nothing passes any more, either way, and nobody is told; all goes on. From any thread.
    """

    def __init__(self, port: int, rtt_ms: float, mbit: float) -> None:
        self.port = 0
        self.sent_bytes = 0
        self.end: Callable[[], object] = lambda: None
        self.cut: Callable[[], object] = lambda: None
        self.mend: Callable[[], object] = lambda: None
        self._whole = asyncio.Event()
        self._server_port = port
        self._rtt_s = rtt_ms / 1e3
        self._bucket = Bucket(mbit)

    def shape(self, mbit: float) -> None:
        """Change the cap for what comes from now on; 0: none."""
        self._bucket.bytes_per_s = mbit * 1e6 / 8

    async def serve(self, ready: threading.Event) -> None:
        """Carry connections until `end`."""
        ended, soon = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
        self.end = functools.partial(soon, ended.set)
        self.cut, self.mend = functools.partial(soon, self._whole.clear), functools.partial(soon, self._whole.set)
        self._whole.set()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await ended.wait()
        server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Streams would log the end of a connection as a bug.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._whole.wait()
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            await asyncio.sleep(self._rtt_s)
            up = asyncio.create_task(self._pass(reader, there_writer, is_capped=False))
            await self._pass(there_reader, writer, is_capped=True)
            up.cancel()
            there_writer.close()
        writer.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_capped: bool) -> None:
        """Hand on what comes, each piece half a round trip after it came."""
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)

        async def arrive() -> None:
            while True:
                due_s, piece = await on_the_way.get()
                await asyncio.sleep(due_s - loop.time())
                await self._whole.wait()
                if not piece:
                    return
                target.write(piece)
                await target.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(arrive())
            while piece := await source.read(_PIECE):
                if is_capped:
                    self.sent_bytes += len(piece)
                    await self._bucket.take(len(piece))
                await on_the_way.put((loop.time() + self._rtt_s / 2, piece))
            await on_the_way.put((loop.time() + self._rtt_s / 2, b""))


@contextlib.contextmanager
def far_line(port: int, *, rtt_ms: float, mbit: float) -> Iterator[FarLine]:
    """Put a line in front of a server of this host.

    Args:
        mbit: of all connections together; 0: no cap.
    """
    line, ready = FarLine(port, rtt_ms, mbit), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=[line.serve(ready)], daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield line
    finally:
        line.end()
        thread.join(10)
