"""An HTTP/1.1 origin at the end of a long line: ranges over a folder, a round-trip time, a shared bandwidth cap, and faults.

    python -m tests.servers.wan_origin ROOT --port 0 --rtt-ms 100 --mbit 1000

prints its port as the first line, and the one where the same folder is near by: without round trips, and written by PUT. Each
request pays one round trip, the first one of a connection a second one (the TCP handshake). All connections share the cap.
Bodies go out with sendfile in pieces, so that 10 Gbit/s cost little CPU.

Directories are listed as nginx's autoindex does in JSON, with one key more: "etag". ETags are strong and change with every
write (mtime in ns, size, inode). Control paths, not charged with the round trip:

    GET    /__stats            {"requests", "bytes", "connections", "by_path": {path: {"requests", "bytes", "heads", "gets"}}}
    DELETE /__stats            start counting again
    POST   /__shape            {"rtt_ms", "mbit", "listing": "json" | "html"}: change any of them
    POST   /__faults           a list of faults (`Fault`); the first that matches a request strikes
    DELETE /__faults           no more faults; whatever stalls is let go
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import email.utils
import fnmatch
import gzip
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests.servers.origin_answers import (
    BadRequest,
    Request,
    asked_range,
    etag_of,
    has_moved_on,
    html_rows,
    is_known,
    json_rows,
    locate,
    read_request,
)

PIECE = 1 << 20


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """What goes wrong with matching requests.

    Attributes:
        kind: "status" answers `status`. "stall" goes silent after `after` bytes of the body (-1: before the headers) until
            the faults are cleared. "reset" resets the connection after `after` bytes (-1: before the headers). "length"
            announces `delta` bytes more than are sent, "extra" sends `delta` bytes more than the range without announcing a
            length. "range" shifts Content-Range by `delta`. "gzip" compresses whatever was asked. "no_range" answers 200
            with the whole. "no_length" answers with chunks and no Content-Length. "no_head" answers HEAD with 405. "etag"
            answers with another ETag and does not look at conditions.
        path: glob over the decoded path.
        share: of the matching requests that it strikes, drawn from a seeded generator.
        times: requests that it strikes at most; 0 means no limit.
    """

    kind: Literal["status", "stall", "reset", "length", "extra", "range", "gzip", "no_range", "no_length", "no_head", "etag"]
    path: str = "*"
    status: int = 503
    after: int = -1
    delta: int = 1
    share: float = 1.0
    times: int = 0
    struck: int = 0


class Bucket:
    """The line's bandwidth, shared by all connections.

    Attributes:
        free_at_s: when everything that was taken so far has left the line.
    """

    def __init__(self, mbit: float) -> None:
        self.bytes_per_s = mbit * 1e6 / 8
        self.free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` more bytes would have left."""
        if not self.bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        self.free_at_s = max(self.free_at_s, now_s) + count / self.bytes_per_s
        if self.free_at_s - now_s > 0.002:
            await asyncio.sleep(self.free_at_s - now_s)


@dataclass
class Stats:
    """What was asked and sent since the last reset."""

    requests: int = 0
    bytes: int = 0
    connections: int = 0
    by_path: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, path: str, method: str) -> dict[str, int]:
        """Count a request; return the path's own counters."""
        self.requests += 1
        own = self.by_path.setdefault(path, {"requests": 0, "bytes": 0, "heads": 0, "gets": 0})
        own["requests"] += 1
        own["heads" if method == "HEAD" else "gets"] += 1
        return own


class Origin:
    """The server's state and its answers."""

    def __init__(self, root: Path, rtt_ms: float, mbit: float, listing: str = "json") -> None:
        self.root = root
        self.rtt_s = rtt_ms / 1e3
        self.listing = listing
        self.bucket = Bucket(mbit)
        self.stats = Stats()
        self.faults: list[Fault] = []
        self.released = asyncio.Event()
        self.dice = random.Random(7)

    async def serve_near(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a client that is near by, and may write."""
        await self.serve(reader, writer, near=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, near: bool = False) -> None:
        """Answer one connection's requests until either side ends it."""
        fresh = True
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError, BadRequest):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                request = await read_request(reader)
                if request.path.startswith("/__"):
                    await Reply(writer, request).json(*self.control(request))
                    continue
                if near and request.method in ("PUT", "DELETE"):
                    await self.change(request, Reply(writer, request))
                    continue
                if near:
                    await self.answer(request, writer)
                    continue
                self.stats.connections += fresh
                await asyncio.sleep(self.rtt_s * (2 if fresh else 1))
                fresh = False
                await self.answer(request, writer)
                if request.headers.get("connection", "").lower() == "close":
                    break
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def change(self, request: Request, reply: Reply) -> None:
        """Store or remove a file; one that is read meanwhile stays whole."""
        target = locate(self.root, request.path)
        if request.method == "DELETE":
            target.unlink(missing_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            hidden = target.with_name(f".{target.name}.part")
            await asyncio.to_thread(hidden.write_bytes, request.body)
            hidden.rename(target)
        await reply.empty(204)

    def control(self, request: Request) -> tuple[int, Any]:
        """Carry out a control request; return status and answer."""
        match request.method, request.path:
            case "GET", "/__stats":
                return 200, vars(self.stats)
            case "DELETE", "/__stats":
                self.stats = Stats()
            case "POST", "/__shape":
                wanted = json.loads(request.body)
                self.rtt_s = wanted.get("rtt_ms", self.rtt_s * 1e3) / 1e3
                self.listing = wanted.get("listing", self.listing)
                if "mbit" in wanted:
                    self.bucket = Bucket(wanted["mbit"])
            case "POST", "/__faults":
                self.faults = msgspec.json.decode(request.body, type=list[Fault])
            case "DELETE", "/__faults":
                self.faults = []
                self.released.set()
                self.released = asyncio.Event()
            case _:
                return 404, {"error": "no such control path"}
        return 200, {}

    def strike(self, request: Request) -> Fault | None:
        """Return the fault that this request meets, and count it."""
        for fault in self.faults:
            if not fnmatch.fnmatchcase(request.path, fault.path) or (fault.times and fault.struck >= fault.times):
                continue
            if fault.kind == "no_head" and request.method != "HEAD":
                continue
            if fault.share < 1 and self.dice.random() >= fault.share:
                continue
            fault.struck += 1
            return fault
        return None

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Answer one GET or HEAD."""
        if request.method not in ("GET", "HEAD"):  # a writer's tries; counted are reads
            await Reply(writer, request).empty(405)
            return
        own = self.stats.count(request.path, request.method)
        fault = self.strike(request)
        reply = Reply(writer, request)
        if fault and fault.after < 0 and fault.kind in ("stall", "reset"):
            await self.break_off(fault, writer)
        if fault and fault.kind in ("status", "no_head"):
            await reply.empty(405 if fault.kind == "no_head" else fault.status)
            return
        target = locate(self.root, request.path)
        try:
            info = target.stat()
        except OSError:
            await reply.empty(404)
            return
        if stat.S_ISDIR(info.st_mode):
            await self.answer_directory(request, reply, target)
        elif request.path.endswith("/"):
            await reply.empty(404)
        else:
            await self.answer_file(request, reply, target, fault, own)

    async def answer_directory(self, request: Request, reply: Reply, target: Path) -> None:
        """Send the listing in chunks, or the redirect that adds the slash."""
        if not request.path.endswith("/"):
            await reply.empty(301, {"Location": urllib.parse.quote(request.path) + "/"})
            return
        kind = "application/json" if self.listing == "json" else "text/html; charset=utf-8"
        rows = json_rows(target) if self.listing == "json" else html_rows(target)
        await reply.chunked({"Content-Type": kind}, rows)

    async def answer_file(
        self, request: Request, reply: Reply, target: Path, fault: Fault | None, own: dict[str, int]
    ) -> None:
        """Send a file or a range of it, with whatever goes wrong meanwhile."""
        with target.open("rb", buffering=0) as source:
            info = os.fstat(source.fileno())
            headers = {
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
                "Last-Modified": email.utils.formatdate(int(info.st_mtime), usegmt=True),
                "ETag": etag_of(info) if not fault or fault.kind != "etag" else '"another"',
            }
            if not (fault and fault.kind == "etag") and has_moved_on(request, info):
                await reply.empty(412, headers)
                return
            if is_known(request, info):
                await reply.head(304, headers)
                return
            first, end = 0, info.st_size
            status = 200
            wanted = None if fault and fault.kind in ("no_range", "gzip") else asked_range(request, info)
            if wanted is not None:
                first, end = wanted
                status = 206
                shift = fault.delta if fault and fault.kind == "range" else 0
                headers["Content-Range"] = f"bytes {first + shift}-{end - 1 + shift}/{info.st_size}"
                if first >= info.st_size:
                    await reply.empty(416, {"Content-Range": f"bytes */{info.st_size}"})
                    return
            if fault and fault.kind in ("gzip", "no_length", "extra"):
                await self.answer_oddly(reply, status, headers, os.pread(source.fileno(), end - first, first), fault)
                return
            announced = end - first + (fault.delta if fault and fault.kind == "length" else 0)
            await reply.head(status, headers | {"Content-Length": str(announced)})
            if request.method == "HEAD":
                return
            stop = min(end, first + fault.after) if fault and fault.kind in ("stall", "reset") else end
            await self.send(source, first, stop, reply.writer, own)
            if fault and fault.kind in ("stall", "reset"):
                await self.break_off(fault, reply.writer)
            if announced > end - first:
                raise ConnectionAbortedError
            if announced < end - first:
                reply.writer.close()
                raise ConnectionAbortedError

    async def send(self, source: Any, first: int, end: int, writer: asyncio.StreamWriter, own: dict[str, int]) -> None:
        """Let the kernel copy `[first, end)` to the socket, no faster than the line."""
        loop = asyncio.get_running_loop()
        await writer.drain()
        while first < end:
            count = min(PIECE, end - first)
            await self.bucket.take(count)
            sent = await loop.sendfile(writer.transport, source, first, count)
            if not sent:
                raise ConnectionAbortedError
            first += sent
            self.stats.bytes += sent
            own["bytes"] += sent

    async def answer_oddly(self, reply: Reply, status: int, headers: dict[str, str], body: bytes, fault: Fault) -> None:
        """Send a small body in a way that no careful client may believe."""
        if fault.kind == "gzip":
            packed = gzip.compress(body)
            await reply.head(status, headers | {"Content-Encoding": "gzip", "Content-Length": str(len(packed))})
            reply.writer.write(packed if reply.request.method == "GET" else b"")
            return
        extra = b"?" * (fault.delta if fault.kind == "extra" else 0)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 64 << 10):
                yield body[start : start + (64 << 10)]
            if extra:
                yield extra

        await reply.chunked(headers, pieces(), status)

    async def break_off(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        """Stay silent until released, or reset the connection; the connection is not used afterwards."""
        if fault.kind == "stall":
            await self.released.wait()
        else:
            await drained(writer)
            linger = b"\1\0\0\0\0\0\0\0"
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        raise ConnectionAbortedError


@dataclass(frozen=True, slots=True)
class Reply:
    """Writes one answer."""

    writer: asyncio.StreamWriter
    request: Request

    async def head(self, status: int, headers: dict[str, str]) -> None:
        """Send status line and headers."""
        lines = [f"HTTP/1.1 {status} {status}", f"Date: {email.utils.formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self.writer.drain()

    async def empty(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Send an answer without a body."""
        await self.head(status, {**(headers or {}), "Content-Length": "0"})

    async def json(self, status: int, answer: Any) -> None:
        """Send a JSON body."""
        body = json.dumps(answer).encode()
        await self.head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.writer.write(body)
        await self.writer.drain()

    async def chunked(self, headers: dict[str, str], pieces: AsyncIterator[bytes], status: int = 200) -> None:
        """Send a body of unknown length."""
        await self.head(status, headers | {"Transfer-Encoding": "chunked"})
        if self.request.method == "HEAD":
            return
        async for piece in pieces:
            self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self.writer.drain()
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


async def drained(writer: asyncio.StreamWriter) -> None:
    """Wait until the socket took everything that was written."""
    writer.transport.set_write_buffer_limits(0)
    await writer.drain()


@dataclass(frozen=True, slots=True)
class WanOrigin:
    """A running origin, as tests see it.

    Attributes:
        root: the folder that it serves; tests put their files below a directory of their own.
        near_port: where the folder is served without round trips, and written by PUT.
    """

    root: Path
    port: int
    pid: int
    near_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def near_url(self) -> str:
        return f"http://127.0.0.1:{self.near_port}"

    def stats(self) -> dict[str, Any]:
        """Return the counters (see the module's text)."""
        return self._call("GET", "/__stats")

    def reset_stats(self) -> None:
        """Start counting again."""
        self._call("DELETE", "/__stats")

    def shape(self, **wanted: float | str) -> None:
        """Change `rtt_ms`, `mbit` (0: no cap) or `listing`."""
        self._call("POST", "/__shape", wanted)

    def inject(self, *faults: Fault) -> None:
        """Put these faults in place of those before."""
        self._call("POST", "/__faults", [msgspec.to_builtins(fault) for fault in faults])

    def heal(self) -> None:
        """Remove all faults and let go of what stalls."""
        self._call("DELETE", "/__faults")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode()
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def wan_origin(
    root: Path,
    *,
    rtt_ms: float = 100,
    mbit: float = 1000,
    listing: str = "json",
    log: Path | None = None,
) -> Iterator[WanOrigin]:
    """Run an origin over `root` in a process of its own.

    Args:
        mbit: of all connections together; 0 means no cap.
        log: takes what it says on stderr; None lets it through.
    """
    argv = [sys.executable, "-m", "tests.servers.wan_origin", str(root), "--port", "0"]
    argv += ["--rtt-ms", str(rtt_ms), "--mbit", str(mbit), "--listing", listing]
    project = Path(__file__).resolve().parents[2]
    with log.open("ab") if log else contextlib.nullcontext() as errors:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, cwd=project, start_new_session=True)
    assert child.stdout is not None
    try:
        ports = child.stdout.readline().split()
        if not ports:
            raise RuntimeError(f"the origin ended with {child.wait()}")
        yield WanOrigin(root, int(ports[0]), child.pid, int(ports[1]))
    finally:
        child.terminate()
        child.wait(10)
        child.stdout.close()


async def run(origin: Origin, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = await asyncio.start_server(origin.serve, "127.0.0.1", port, backlog=1024)
    near = await asyncio.start_server(origin.serve_near, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], near.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    server.close()
    near.close()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description="An HTTP origin with a round-trip time and a bandwidth cap.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rtt-ms", type=float, default=100)
    parser.add_argument("--mbit", type=float, default=1000, help="shared by all connections; 0: no cap")
    parser.add_argument("--listing", choices=["json", "html"], default="json")
    given = parser.parse_args()

    async def serve() -> None:
        await run(Origin(given.root, given.rtt_ms, given.mbit, given.listing), given.port)

    asyncio.run(serve())


if __name__ == "__main__":
    main()
