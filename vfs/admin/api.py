"""The admin API: HTTP on a Unix socket that only the mount's user may open, and over TLS where `[admin]` says so.

What can be asked is in `vfs/admin/routes.py`. Nothing here is on the way of a read: a caller who asks too often, or does
not read what it asked for, is refused or left waiting alone. Answers that many ask for are made twice a second at most.

Tasks: one for each request, owned by aiohttp; what a stream asked for ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from vfs.admin import metrics, routes
from vfs.admin.access import Caller, Role, Tokens, check_browser, peer_of
from vfs.admin.events import Events
from vfs.admin.policies import Policies
from vfs.admin.records import (
    CacheQuery,
    Ended,
    EventsQuery,
    ExplainQuery,
    JobBody,
    PathQuery,
    PathsBody,
    SnapshotBody,
    SnapshotName,
    StartBody,
    TellBody,
    TimelineQuery,
    WhyQuery,
)
from vfs.admin.routes import ROUTES, Route
from vfs.admin.stats import Facts
from vfs.admin.status import Status
from vfs.agent.reading.local import LocalCopies
from vfs.agent.reading.snapshots import Snapshots
from vfs.agent.traces import Traces
from vfs.config import Config
from vfs.errors import (
    AlreadyExists,
    Busy,
    DeadlineExceeded,
    Denied,
    InvalidFeed,
    InvalidPolicy,
    NotFound,
    Stale,
    Unsupported,
)
from vfs.foresight.board import Board
from vfs.httpservice import (
    BODY_BYTES_MAX,
    AtOnce,
    Rates,
    bearer,
    body_of,
    errors_as_json,
    refused,
    runner_of,
    send,
    stranger,
)
from vfs.model import NAME_BYTES_MAX, LakePath
from vfs.units import encode_unit
from vfs.usage import CallerFacts, asked_by

if TYPE_CHECKING:
    from vfs.agent.samples.rooms import SampleRooms  # takes pyarrow along: for mounts with samples

_STATUS_OF = {
    NotFound: 404,
    Denied: 403,
    Unsupported: 400,
    InvalidPolicy: 422,
    InvalidFeed: 422,
    Stale: 409,
    Busy: 409,
    AlreadyExists: 409,
    DeadlineExceeded: 504,
}
_SNAPSHOT_S = 0.5
_STREAMS_MAX = {routes.EVENTS: 300, routes.LINES: 8}
_KEEP_ALIVE_S = 15.0
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
CALLER = web.RequestKey("caller", Caller)


class Api:
    """Handlers by name; `routes.ROUTES` says which path leads to which.

    Args:
        pages: adds what is served to browsers, without a token: it holds no facts.
    """

    def __init__(
        self,
        facts: Facts,
        status: Status,
        copies: LocalCopies,
        policies: Policies,
        traces: Traces,
        snapshots: Snapshots,
        events: Events,
        config: Callable[[], dict[str, Any]],
        rates: Rates,
        tokens: Tokens | None = None,
    ) -> None:
        self._facts = facts
        self._status = status
        self._copies = copies
        self._policies = policies
        self._traces = traces
        self._snapshots = snapshots
        self._events = events
        self._config = config
        self._tokens = tokens
        self._rates = rates
        self._streams = {media: AtOnce("admin API", most) for media, most in _STREAMS_MAX.items()}
        self._made: dict[str, tuple[float, bytes]] = {}

    def application(self, *, local: bool, pages: Callable[[web.Application], None] = lambda app: None) -> web.Application:
        """Return an application of all routes.

        Args:
            local: for the Unix socket: the kernel says who asks.
        """

        @web.middleware
        async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Count every request, of the page and of what is not there too."""
            caller = self._caller(request, local=local)
            if caller is None:
                self._rates.stranger(request)
            else:
                self._rates.known(caller.name, request)
                request[CALLER] = caller
            return await handler(request)

        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[errors_as_json(_STATUS_OF, 502), counted])
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._guarded(route, local=local))
        pages(app)
        return app

    def _guarded(self, route: Route, *, local: bool) -> Handler:
        handler: Handler = getattr(self, route.name)
        role = Role[route.role.upper()]

        async def guarded(request: web.Request) -> web.StreamResponse:
            check_browser(request.headers, local=local, changes=route.method != "GET")
            caller = request.get(CALLER)
            if caller is None:
                return stranger()
            if caller.role < role:
                raise Denied("admin API", f"{caller.name} may only {caller.role.name.lower()}", f"needs role {route.role}")
            if route.body is not None and request.content_type != routes.JSON:
                wrong = Unsupported("request", "has a body of another type", "send Content-Type: application/json")
                return refused(415, wrong)
            if route.media in self._streams:
                with self._streams[route.media].one():
                    return await handler(request)
            if route.snapshot:
                return await self._snapshot(route, request)
            return await handler(request)

        return guarded

    def _caller(self, request: web.Request, *, local: bool) -> Caller | None:
        if local:
            assert request.transport is not None
            connection: socket.socket = request.transport.get_extra_info("socket")
            return peer_of(connection)
        return self._tokens.find(bearer(request)) if self._tokens is not None else None

    async def _snapshot(self, route: Route, request: web.Request) -> web.Response:
        """Answer with what was made for another caller a moment ago, or make it."""
        _query(request, None)
        made = self._made.get(route.name)
        if made is None or time.monotonic() - made[0] > _SNAPSHOT_S:
            answer = await getattr(self, route.name)(request)
            made = self._made[route.name] = time.monotonic(), answer.body
        media = metrics.CONTENT_TYPE if route.media == routes.TEXT else routes.JSON
        return web.Response(body=made[1], headers={"Content-Type": media, "Cache-Control": "no-store"})

    # Facts

    async def overview(self, request: web.Request) -> web.Response:
        return _json(self._facts.overview())

    async def status(self, request: web.Request) -> web.Response:
        return _json(self._status.facts())

    async def stats(self, request: web.Request) -> web.Response:
        return _json(self._facts.stats())

    async def jobs(self, request: web.Request) -> web.Response:
        return _json(self._facts.jobs())

    async def why(self, request: web.Request) -> web.Response:
        return _json(self._facts.why(_query(request, WhyQuery)))

    async def explain(self, request: web.Request) -> web.Response:
        query = _query(request, ExplainQuery)
        caller = CallerFacts(query.uid, query.gid, query.job, query.world)
        with asked_by(caller):
            return _json(await self._status.explain(_lake_path(query.path), with_rules=query.rules))

    async def config(self, request: web.Request) -> web.Response:
        return _json(self._config())

    async def policies(self, request: web.Request) -> web.Response:
        _query(request, None)
        return _json(self._policies.facts(), etag=self._policies.version)

    async def cache(self, request: web.Request) -> web.Response:
        query = _query(request, CacheQuery)
        return _json(await asyncio.to_thread(self._facts.cache, query.below, query.limit))

    async def checkpoints(self, request: web.Request) -> web.Response:
        found = await self._facts.checkpoints.below(_lake_path(_query(request, PathQuery).path))
        return _json({"checkpoints": found})

    async def replicas(self, request: web.Request) -> web.Response:
        return _json(self._facts.replicas())

    async def transfers(self, request: web.Request) -> web.Response:
        return _json(self._facts.transfers())

    async def rooms(self, request: web.Request) -> web.Response:
        return _json(self._facts.rooms())

    async def foresight(self, request: web.Request) -> web.Response:
        board = self._facts.board
        return _json(Board() if board is None else await board())

    async def samples(self, request: web.Request) -> web.Response:
        _query(request, None)
        return _json(await self._samples().status())

    async def timeline(self, request: web.Request) -> web.Response:
        return _json(await self._samples().timeline(_query(request, TimelineQuery).job))

    async def openapi(self, request: web.Request) -> web.Response:
        return _json(routes.openapi())

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(self._facts.overview()))

    async def events(self, request: web.Request) -> web.StreamResponse:
        query = _query(request, EventsQuery)
        since = query.since
        if since < 0 and (last := request.headers.get("Last-Event-ID", "")).isascii() and last.isdigit():
            since = int(last)
        response = web.StreamResponse(headers={"Content-Type": routes.EVENTS, "Cache-Control": "no-store"})
        await response.prepare(request)
        with contextlib.suppress(TimeoutError, ConnectionError), self._events.listening(since) as listener:
            async with asyncio.timeout(query.seconds or None):
                await response.write(b": hello\n\n")
                while True:
                    frame = b": still here\n\n"
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_KEEP_ALIVE_S):
                            event = await listener.queue.get()
                            body = msgspec.json.encode(event)
                            frame = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), body)
                    await send(request, response, frame)
        return response

    async def snapshots(self, request: web.Request) -> web.Response:
        _query(request, None)
        return _json({"snapshots": self._snapshots.facts()})

    # Orders

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        return await _lines(request, self._copies.fetch(await _paths(request)))

    async def evict(self, request: web.Request) -> web.Response:
        return _json(await self._copies.evict(await _paths(request)))

    async def verify(self, request: web.Request) -> web.StreamResponse:
        return await _lines(request, self._copies.verify(await _paths(request)))

    async def take_snapshot(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, SnapshotBody)
        return await _lines(request, self._snapshots.take(asked.name, _lake_path(asked.prefix)))

    async def drop_snapshot(self, request: web.Request) -> web.Response:
        return _json(await self._snapshots.drop((await _body(request, SnapshotName)).name))

    async def start_job(self, request: web.Request) -> web.Response:
        asked = await _body(request, StartBody)
        declaration, directory = _lake_path(asked.declaration), _lake_path(asked.directory)
        return _json(await self._samples().start(declaration, asked.text, asked.name, directory))

    async def stop_job(self, request: web.Request) -> web.Response:
        return _json(await self._samples().stop((await _body(request, JobBody)).job))

    async def tell_job(self, request: web.Request) -> web.Response:
        asked = await _body(request, TellBody)
        return _json(await self._samples().tell(asked.job, asked.step, tuple(asked.ranks)))

    def _samples(self) -> SampleRooms:
        if self._facts.samples is None:
            raise NotFound(".jobs", "shows no samples on this mount", "add a [samples] table to foremount.toml")
        return self._facts.samples

    async def trace(self, request: web.Request) -> web.StreamResponse:
        _query(request, None)
        return await _lines(request, self._traces.record())

    async def trace_end(self, request: web.Request) -> web.Response:
        _query(request, None)
        return _json(Ended(await self._traces.end()))

    async def reload(self, request: web.Request) -> web.Response:
        caller = request[CALLER]
        _query(request, None)
        try:
            who = caller.uid if caller.uid >= 0 else caller.name
            reload = await self._policies.reload(who, _if_match(request))
        except Stale as exc:
            return refused(412, exc)
        self._made.clear()
        return _json(reload, etag=reload.after)


@contextlib.asynccontextmanager
async def serve_unix(socket_path: str, app: web.Application) -> AsyncIterator[None]:
    """Serve on a Unix socket of mode 0600 until the block ends."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)
    runner = runner_of(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, socket_path).start()
        os.chmod(socket_path, 0o600)
        yield
    finally:
        await runner.cleanup()


def public_config(config: Config) -> dict[str, Any]:
    """Return the configuration as numbers and words, without what could be a secret in a URL. Pure."""
    found: dict[str, Any] = msgspec.to_builtins(config, enc_hook=encode_unit)
    for site in found["sites"].values():
        if "url" in site:
            parts = urlsplit(site["url"])
            host = parts.netloc.rpartition("@")[2]
            site["url"] = urlunsplit((parts.scheme, host, parts.path, "***" if parts.query else "", ""))
    return found


def _query(request: web.Request, kind: type[QueryT] | None) -> QueryT:
    """Return the query as a record; None: there is none.

    Raises:
        Unsupported: it can't be understood.
    """
    given = request.query
    if len(given) != len(set(given)):
        raise Unsupported("query", "states a key more than once")
    if kind is None:
        if given:
            raise Unsupported("query", f"is not known here: {', '.join(sorted(given))[:200]}")
        return None  # type: ignore[return-value]  # the caller asked for none
    try:
        found = msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise Unsupported("query", f"can't be understood: {exc}") from exc
    if nothing := [name for name in given if getattr(found, name) is None]:  # "null", which is no number of anybody
        raise Unsupported("query", f"can't be understood: {nothing[0]} is null", "leave out what is not known")
    return found


async def _paths(request: web.Request) -> list[LakePath]:
    return [_lake_path(path) for path in (await _body(request, PathsBody)).paths]


async def _body(request: web.Request, kind: type[QueryT]) -> QueryT:
    """Return the body as a record.

    Raises:
        Unsupported: it is none.
    """
    _query(request, None)
    try:
        return msgspec.json.decode(await body_of(request), type=kind, strict=False)  # for JSON 5.0 is an integer
    except msgspec.DecodeError as exc:
        keys = ", ".join(kind.__struct_fields__)
        raise Unsupported("request", f"has no usable body: {exc}", f"send a JSON object of {keys}") from exc


def _lake_path(text: str) -> LakePath:
    path = text.strip("/")
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/") if path):
        raise NotFound(ascii(text[:200]), "is no lake path", "leave out empty parts, . and ..")
    try:
        too_long = any(len(part.encode()) > NAME_BYTES_MAX for part in path.split("/"))
    except UnicodeEncodeError as exc:
        raise Unsupported(ascii(text[:200]), "is not UTF-8") from exc
    if too_long:
        raise NotFound(f"{text[:200]}…", "no origin can hold a name that is so long")
    return LakePath(path)


async def _lines(request: web.Request, records: AsyncIterator[Any]) -> web.StreamResponse:
    """Send records as JSON lines while they come; a client that goes away ends the work."""
    response = web.StreamResponse(headers={"Content-Type": routes.LINES})
    async with contextlib.aclosing(cast(AsyncGenerator[Any, None], records)):
        async for record in records:
            if not response.prepared:  # an error before the first record is still an answer of its own
                await response.prepare(request)
            await send(request, response, msgspec.json.encode(record, enc_hook=encode_unit) + b"\n")
    await response.write_eof()
    return response


def _if_match(request: web.Request) -> str | None:
    """Return the version that the caller has seen, None where any will do."""
    stated = request.headers.get("If-Match", "*").strip()
    return None if stated == "*" else stated.strip('"')


def _json(value: Any, code: int = 200, etag: str = "") -> web.Response:
    headers = {"Content-Type": routes.JSON, "Cache-Control": "no-store"} | ({"ETag": f'"{etag}"'} if etag else {})
    return web.Response(body=msgspec.json.encode(value), status=code, headers=headers)
