"""A server of copies: takes files that were verified, and serves ranges of them, each block checked against its digest.

To everybody else it is an HTTP site: `kind = "http"`, `writes = "put"` and a token. A file has its name when all of it has
arrived, was read back and is on the disk; what an interrupted upload has left is removed at the next start. Nothing is ever
evicted: what does not fit is refused (507), what is not wanted any more is deleted by whoever put it there. Files are bounded
by how many are on their way at a time (503 beyond), listings and strangers by a rate (429): `vfs/httpservice.py`.

    GET, HEAD /PATH     a range, or all of it; If-Match is heeded     role read
    GET /PATH/          names below a directory, as nginx lists them  role read
    PUT /PATH           Content-Length is needed                      role write
    DELETE /PATH        204 whether or not it was there               role write

Flow: the bytes lie in a `Store` (`vfs/extents/store.py`), one object for each name. Threads: one pool reads, checks and
writes. Tasks: one for each request, aiohttp's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import math
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from vfs.config import ReplicaServer as Settings
from vfs.config import host_and_port
from vfs.errors import Corrupt, InvalidConfig, NoSpace
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.reader import CachedObject, scratch_bytes
from vfs.extents.store import Store
from vfs.foresight import bearing
from vfs.httpservice import AtOnce, Rates, TooMany, TooOften, refused_for_now, runner_of, send
from vfs.model import ObjectKey, SiteName, SitePath, Version, can_posix_carry
from vfs.rates import BURST_S, TokenBucket
from vfs.sites.http import READERS_HEADER
from vfs.tls import Server, files_of

log = logging.getLogger(__name__)
SITE = SiteName("replica-server")
PIECE_BYTES = 1 << 20
THREADS = 8
TRANSFERS_MAX = 1024
"""Of 2 MiB at most in memory; six copies' worth of the readers that one bears (PROBLEM.md A2)."""
SILENT_S = 300.0
"""After which an upload is given up that brings nothing: one that is throttled sends a MiB now and then."""
COUNTED_S = 600.0
"""A million leftovers take some ten seconds; what is found later than this is not served before the next start."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
T = TypeVar("T")


@dataclass(slots=True)
class Counters:
    """Since the server was started.

    Attributes:
        readers: GETs that are being answered now; `readers_max` the most at a time.
        broken: objects that were found broken when they were read, and removed.
        refused: requests without the right token.
    """

    reads: int = 0
    read_bytes: int = 0
    readers: int = 0
    readers_max: int = 0
    writes: int = 0
    written_bytes: int = 0
    broken: int = 0
    refused: int = 0


class Tokens:
    """Who may do what: a file of lines "read TOKEN" or "write TOKEN"; who may write may read. Read again when it changes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._roles: list[tuple[str, str]] = []
        self._refresh()

    def allows(self, authorization: str, *, write: bool) -> bool:
        """Return whether a request with this header may be answered."""
        self._refresh()
        scheme, _, given = authorization.partition(" ")
        found = [role for role, token in self._roles if hmac.compare_digest(token.encode(), given.strip().encode())]
        return scheme.lower() == "bearer" and any(role == "write" or not write for role in found)

    def _refresh(self) -> None:
        try:
            info = os.stat(self._path)
            if (info.st_mtime_ns, info.st_size) == self._seen:
                return
            if info.st_mode & 0o077:
                raise InvalidConfig(self._path, "may be read by others", "chmod 600")
            with open(self._path, encoding="utf-8") as text:
                lines = [line.split() for line in text if line.strip() and not line.startswith("#")]
        except OSError as exc:
            raise InvalidConfig(self._path, f"can't be read: {exc.strerror}") from exc
        if any(len(line) != 2 or line[0] not in ("read", "write") for line in lines) or not lines:
            raise InvalidConfig(self._path, 'has a line that is not "read TOKEN" or "write TOKEN", or none at all')
        self._roles, self._seen = [(line[0], line[1]) for line in lines], (info.st_mtime_ns, info.st_size)


class Throttle:
    """A rate that all answers share, first come, first served."""

    def __init__(self, rate: float) -> None:
        self._bucket = TokenBucket(rate, rate * BURST_S)
        self._turn = asyncio.Lock()

    async def pass_on(self, amount: int) -> None:
        """Return when so many bytes may be sent."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._bucket.wait_s(loop.time()))
            self._bucket.take(amount, loop.time())


class ReplicaServer:
    """The handlers, over one store.

    Invariants: every name in `_names` is of a complete, sealed object, which is held; so nothing that has a name is evicted.
    `_directories` counts the names below each directory.
    """

    def __init__(self, store: Store, tokens: Tokens, rate: float, rates: Rates) -> None:
        self.counters = Counters()
        self._store = store
        self._tokens = tokens
        self._throttle = Throttle(rate)
        self._rates = rates
        self._transfers = AtOnce("replica server", TRANSFERS_MAX)
        self._loads = bearing.Loads()
        self._names: dict[str, tuple[ObjectKey, Version]] = {}
        self._directories: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(THREADS, "replicas")
        self._take_stock()

    def _take_stock(self) -> None:
        """Name what is complete, of each path the newest; remove the rest."""
        found = sorted(self._store.objects(), key=lambda each: each.identity.version.mtime_ns)
        for each in found:
            if each.present < each.identity.version.size or not each.sealed:
                self._store.evict(each.key)
            else:
                self._name(each.identity.path, each.key, each.identity.version)

    def _name(self, path: str, key: ObjectKey, version: Version) -> None:
        self._store.hold(key)
        before = self._names.get(path)
        self._names[path] = key, version
        if before is None:
            self._directories.update(_directories_of(path))
        else:
            self._let_go(before[0])

    def _let_go(self, key: ObjectKey) -> None:
        self._store.release(key)
        self._store.evict(key)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def application(self) -> web.Application:
        """Return what serves it."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._guarded(self.get, write=False))  # and HEAD
        app.router.add_route("PUT", "/{path:.*}", self._guarded(self.put, write=True))
        app.router.add_route("DELETE", "/{path:.*}", self._guarded(self.delete, write=True))
        return app

    def _guarded(self, handler: Handler, *, write: bool) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                if self._tokens.allows(request.headers.get("Authorization", ""), write=write):
                    return await handler(request)
                self.counters.refused += 1
                self._rates.stranger(request)
                return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
            except (TooOften, TooMany) as exc:
                return refused_for_now(exc)

        return guarded

    async def get(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if not path or path.endswith("/"):
            self._rates.known("reader", request)
            listing = self._list(path.strip("/"))
            if (measured := self._loads.bearing()) is not None:
                listing.headers[READERS_HEADER] = bearing.written(measured)
            return listing
        known = self._names.get(path)
        if known is None:
            headers = {"Location": f"{request.rel_url.raw_path}/"}
            return web.Response(status=301, headers=headers) if self._directories[path] else web.Response(status=404)
        key, version = known
        headers = {
            "ETag": f'"{key}"',
            "Last-Modified": formatdate(version.mtime_ns // 10**9, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if request.headers.get("If-Match", headers["ETag"]) not in (headers["ETag"], "*"):
            return web.Response(status=412, headers=headers)
        span = _span(request.headers.get("Range", ""), version.size)
        if span is None:
            return web.Response(status=416, headers=headers | {"Content-Range": f"bytes */{version.size}"})
        start, end = span
        response = web.StreamResponse(status=206 if "Range" in request.headers else 200, headers=headers)
        response.content_length = end - start
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{version.size}"
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        with self._transfers.one():
            await response.prepare(request)
            await self._send(request, response, path, key, start, end)
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, path: str, key: ObjectKey, start: int, end: int
    ) -> None:
        counters, scratch = self.counters, memoryview(bytearray(scratch_bytes(min(PIECE_BYTES, end - start))))
        counters.reads += 1
        counters.readers += 1
        counters.readers_max = max(counters.readers_max, counters.readers)
        self._loads.changed(counters.readers, time.monotonic())
        cached = await self._call(CachedObject.open, self._store.root, key)
        try:
            while start < end:
                count = min(PIECE_BYTES, end - start)
                piece = await self._call(cached.read, start, count, scratch)
                if piece is None:
                    raise Corrupt(path, "has lost a block")
                await self._throttle.pass_on(count)
                await send(request, response, bytes(piece))
                start += count
                counters.read_bytes += count
                self._loads.sent(count)
        except Corrupt as exc:
            log.error("%s is removed: %s", path, exc)  # noqa: TRY400  # the sentence says it all
            counters.broken += 1
            self._forget(path, key)
            raise  # the answer is cut off: its reader goes to another copy
        except ConnectionError:
            log.debug("who read %s has gone", path)
        finally:
            counters.readers -= 1
            self._loads.changed(counters.readers, time.monotonic())
            await self._call(cached.close)

    def _list(self, directory: str) -> web.Response:
        above = f"{directory}/" if directory else ""
        rows: dict[str, dict[str, Any]] = {}
        for name, (key, version) in self._names.items():
            if not name.startswith(above):
                continue
            first, slash, _ = name[len(above) :].partition("/")
            if slash:
                rows[first] = {"name": first, "type": "directory"}
            else:
                mtime = formatdate(version.mtime_ns // 10**9, usegmt=True)
                rows[first] = {"name": first, "type": "file", "mtime": mtime, "size": version.size, "etag": f'"{key}"'}
        return web.json_response(list(rows.values())) if rows or not directory else web.Response(status=404)

    async def put(self, request: web.Request) -> web.StreamResponse:
        with self._transfers.one():
            return await self._take_in(request)

    async def _take_in(self, request: web.Request) -> web.StreamResponse:
        path, size = request.match_info["path"], request.content_length
        if size is None:
            return web.Response(status=411)
        if not all(can_posix_carry(part) for part in path.split("/")):
            return web.Response(status=400, text="the path has a part that no file can have")
        identity = Identity(SITE, SitePath(path), Version(size, time.time_ns(), uuid.uuid4().hex))
        try:
            key = await self._call(self._store.prepare, identity)
        except ValueError:
            return web.Response(status=414)
        self._store.hold(key)
        try:
            await self._receive(request, key, size)
            await self._call(self._store.seal, key)
        except NoSpace as exc:
            return web.Response(status=507, text=str(exc))
        except _Short:
            return web.Response(status=400, text="the body is shorter than Content-Length")
        else:
            self.counters.writes += 1
            self._name(path, key, identity.version)
            return web.Response(status=201, headers={"ETag": f'"{key}"'})
        finally:
            self._store.release(key)
            if self._names.get(path, ("",))[0] != key:
                self._store.evict(key)

    async def _receive(self, request: web.Request, key: ObjectKey, size: int) -> None:
        pending, block, left = bytearray(), 0, size
        while piece := await self._next_piece(request):
            pending += piece
            left -= len(piece)
            whole = len(pending) if not left else len(pending) // BLOCK * BLOCK if len(pending) >= PIECE_BYTES else 0
            if whole:
                await self._call(self._store.write_blocks, key, block, bytes(pending[:whole]))
                self.counters.written_bytes += whole
                block += -(-whole // BLOCK)
                del pending[:whole]
        if left:
            raise _Short

    async def _next_piece(self, request: web.Request) -> bytes:
        """Return what has come of a body, b"" at its end."""
        try:
            async with asyncio.timeout(SILENT_S):
                return await request.content.readany()
        except TimeoutError as exc:
            raise _Short from exc

    async def delete(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        known = self._names.get(path)
        if known is not None:
            self._forget(path, known[0])
        return web.Response(status=204)

    def _forget(self, path: str, key: ObjectKey) -> None:
        if self._names.get(path, ("",))[0] == key:
            del self._names[path]
            for directory in _directories_of(path):
                self._directories[directory] -= 1
                if not self._directories[directory]:
                    del self._directories[directory]
            self._let_go(key)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def facts(self) -> dict[str, Any]:
        """Return what it holds and did, for status and metrics."""
        totals = self._store.totals()
        counted = {name: getattr(self.counters, name) for name in Counters.__slots__}
        measured = self._loads.bearing()
        bears = bearing.written(measured) if measured is not None else "not measured yet"
        return {"objects": len(self._names), "used": totals.used, "size": totals.cap, "bears": bears, **counted}


class _Short(Exception):  # a signal inside this module, not an error
    """A body ended early."""


def _directories_of(path: str) -> list[str]:
    """Return all directories that a path lies in."""
    return [path[:index] for index, letter in enumerate(path) if letter == "/"]


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Return the [start, end) that a Range header asks for, all for none; None: it can't be had."""
    if not header:
        return 0, size
    matched = _RANGE.fullmatch(header.strip())
    if matched is None or int(matched[1]) >= size:
        return None
    end = min(int(matched[2]) + 1, size) if matched[2] else size
    return (int(matched[1]), end) if int(matched[1]) < end else None


@contextlib.asynccontextmanager
async def serving(settings: Settings, rates: Rates) -> AsyncIterator[tuple[ReplicaServer, str]]:
    """Serve until the block ends; yields the server, and "host:port" as it was bound.

    Raises:
        InvalidConfig: tokens or certificate can't be used.
        Busy, NoSpace, Unavailable: the directory can't be used.
    """
    tokens = Tokens(settings.tokens)
    tls = Server(files_of(settings), "replica_server.certificate") if settings.certificate else None
    if tls is not None:
        tls.refresh()
    store = await asyncio.to_thread(functools.partial(Store.open, settings.directory, int(settings.size), keeps_held=True))
    with contextlib.closing(store):
        await asyncio.to_thread(store.wait_counted, COUNTED_S)  # what an earlier run has left is found meanwhile
        server = ReplicaServer(store, tokens, float(settings.rate) or math.inf, rates)
        runner = runner_of(server.application())
        try:
            await runner.setup()
            host, port = host_and_port(settings.address)
            await web.TCPSite(runner, host, port, ssl_context=tls.context if tls else None).start()
            bound = f"{runner.addresses[0][0]}:{runner.addresses[0][1]}"
            log.info("replica server on %s, %d objects", bound, len(server._names))
            yield server, bound
        except OSError as exc:
            raise InvalidConfig("replica_server.address", f"can't be listened at: {exc.strerror}") from exc
        finally:
            await runner.cleanup()
            server.close()
