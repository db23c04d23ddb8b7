"""A gate in front of an S3 server: every request goes through it unchanged, and can be stopped, delayed or refused there.

A request has a name: what it does, and the object's path with its bucket, as in "part 2 lake/run/model.bin". It runs in a
thread of the caller's process. Signatures hold, since host, path and body are handed on as they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

_BODY_BYTES_MAX = 64 << 20
_NOT_HANDED_ON = {"connection", "keep-alive", "transfer-encoding", "content-encoding", "content-length", "expect"}


@dataclass(slots=True)
class Stop:
    """Where matching requests are held until the block ends, or for a while.

    Attributes:
        name: glob over the requests' names.
        answered: they are held when the server has carried them out, before their answer; else before the server sees them.
        seconds: after the first has come they are let go.
        reached: set when a request has come here.
    """

    name: str
    answered: bool
    seconds: float | None
    reached: threading.Event = field(default_factory=threading.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Gate:
    """The running gate.

    Attributes:
        passed: names of the requests that the server has carried out, in order.
    """

    def __init__(self, server: str) -> None:
        self.port = 0
        self.passed: list[str] = []
        self._server = server
        self._stops: list[Stop] = []
        self._refusals: list[tuple[str, int, str, str]] = []
        self._loop = asyncio.new_event_loop()
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()], daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def stop(self, name: str, *, answered: bool = False, seconds: float | None = None) -> Iterator[Stop]:
        """Hold matching requests until the block ends."""
        stop = Stop(name, answered, seconds)
        self._stops.append(stop)
        try:
            yield stop
        finally:
            self._stops.remove(stop)
            self._loop.call_soon_threadsafe(stop.released.set)

    @contextlib.contextmanager
    def refuse(self, name: str, status: int, code: str, *, signed_by: str = "") -> Iterator[None]:
        """Answer matching requests with an error of S3 until the block ends; the server sees nothing of them.

        Args:
            signed_by: only those that are signed with this access key.
        """
        refusal = name, status, code, signed_by
        self._refusals.append(refusal)
        try:
            yield
        finally:
            self._refusals.remove(refusal)

    def __enter__(self) -> Gate:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0.1)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._end.wait()
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if "expect" in request.headers:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body, name = await request.content.read(_BODY_BYTES_MAX), _name(request)
        while not request.content.at_eof():
            body += await request.content.read(_BODY_BYTES_MAX)
        for glob, status, code, signed_by in self._refusals:
            if fnmatch.fnmatchcase(name, glob) and signed_by in request.headers.get("Authorization", ""):
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>refused</Message></Error>"
                return web.Response(status=status, body=text.encode(), content_type="application/xml")
        await self._hold(name, answered=False)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _NOT_HANDED_ON}
        url = URL(self._server + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            content = await answer.read()
        self.passed.append(name)
        await self._hold(name, answered=True)
        kept = {key: value for key, value in answer.headers.items() if key.lower() not in _NOT_HANDED_ON}
        if request.method == "HEAD":
            return web.Response(status=answer.status, headers=kept | {"Content-Length": answer.headers["Content-Length"]})
        return web.Response(status=answer.status, body=content, headers=kept)

    async def _hold(self, name: str, *, answered: bool) -> None:
        for stop in list(self._stops):
            if stop.answered == answered and fnmatch.fnmatchcase(name, stop.name):
                if stop.seconds is not None and not stop.reached.is_set():
                    self._loop.call_later(stop.seconds, stop.released.set)
                stop.reached.set()
                await stop.released.wait()


def _name(request: web.BaseRequest) -> str:
    """Return what a request does, and to which object."""
    asked, path = request.query, request.path.strip("/")
    match request.method:
        case "POST" if "uploads" in asked:
            return f"begin {path}"
        case "POST" if "uploadId" in asked:
            return f"complete {path}"
        case "PUT" if "partNumber" in asked:
            return f"part {asked['partNumber']} {path}"
        case "DELETE" if "uploadId" in asked:
            return f"abandon {path}"
        case "PUT" | "GET" | "HEAD" | "DELETE":
            return f"{request.method.lower()} {path}"
        case _:
            return f"other {path}"
