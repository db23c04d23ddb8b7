"""The admin API: HTTP on a Unix socket that only the mount's user may open.

GET  /v1/status               facts of the mount
GET  /v1/explain?path=P       where P comes from and why
POST /v1/fetch  {"paths": []} make trees local; progress as JSON lines
POST /v1/evict  {"paths": []} drop local copies
POST /v1/verify {"paths": []} check local copies; progress as JSON lines
GET  /v1/policies             documents in force; the version is the ETag
POST /v1/policies/reload      read the documents now; with If-Match only where that version is in force
POST /v1/trace                record what is opened and read, as JSON lines (`vfs/traces/recording.py`)
POST /v1/trace/end            end the recording with what was read until now
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, cast

import msgspec
from aiohttp import web

from vfs.admin.policies import Policies
from vfs.admin.status import Status
from vfs.agent.local import LocalCopies
from vfs.agent.traces import Traces
from vfs.errors import Busy, Denied, ForemountError, InvalidPolicy, NotFound, Stale, Unsupported, to_failure
from vfs.model import LakePath
from vfs.units import encode_unit

_BODY_BYTES_MAX = 1 << 20
_STATUS_OF = {NotFound: 404, Denied: 403, Unsupported: 400, InvalidPolicy: 422, Busy: 409}
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Paths(msgspec.Struct, forbid_unknown_fields=True):
    paths: list[str]


@contextlib.asynccontextmanager
async def serve_admin(
    socket_path: str, status: Status, copies: LocalCopies, policies: Policies, traces: Traces
) -> AsyncIterator[None]:
    """Serve until the block ends."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)
    runner = web.AppRunner(make_app(status, copies, policies, traces), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.UnixSite(runner, socket_path).start()
        os.chmod(socket_path, 0o600)
        yield
    finally:
        await runner.cleanup()


def make_app(status: Status, copies: LocalCopies, policies: Policies, traces: Traces) -> web.Application:
    """Return the application; its routes are the module's table."""

    async def get_status(request: web.Request) -> web.StreamResponse:
        return _json(status.facts())

    async def get_explain(request: web.Request) -> web.StreamResponse:
        return _json(await status.explain(LakePath(request.query.get("path", "").strip("/"))))

    async def post_fetch(request: web.Request) -> web.StreamResponse:
        return await _stream(request, copies.fetch(await _paths(request)))

    async def post_evict(request: web.Request) -> web.StreamResponse:
        return _json(await copies.evict(await _paths(request)))

    async def post_verify(request: web.Request) -> web.StreamResponse:
        return await _stream(request, copies.verify(await _paths(request)))

    async def get_policies(request: web.Request) -> web.StreamResponse:
        return _json(policies.facts(), etag=policies.version)

    async def post_reload(request: web.Request) -> web.StreamResponse:
        try:
            reload = await policies.reload(_peer_uid(request), _if_match(request))
        except Stale as exc:
            return _json({"error": msgspec.structs.asdict(to_failure(exc))}, 412)
        return _json(reload, etag=reload.after)

    async def post_trace(request: web.Request) -> web.StreamResponse:
        return await _stream(request, traces.record())

    async def post_trace_end(request: web.Request) -> web.StreamResponse:
        return _json({"ended": await traces.end()})

    app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_errors_as_json])
    app.add_routes(
        [
            web.get("/v1/status", get_status),
            web.get("/v1/explain", get_explain),
            web.post("/v1/fetch", post_fetch),
            web.post("/v1/evict", post_evict),
            web.post("/v1/verify", post_verify),
            web.get("/v1/policies", get_policies),
            web.post("/v1/policies/reload", post_reload),
            web.post("/v1/trace", post_trace),
            web.post("/v1/trace/end", post_trace_end),
        ]
    )
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ForemountError as exc:
        failure = to_failure(exc)
        code = next((code for kind, code in _STATUS_OF.items() if isinstance(exc, kind)), 502)
        return _json({"error": msgspec.structs.asdict(failure)}, code)


async def _paths(request: web.Request) -> list[LakePath]:
    try:
        asked = msgspec.json.decode(await request.read(), type=_Paths)
    except msgspec.DecodeError as exc:
        raise Unsupported("request", f"has no usable body: {exc}", 'send {"paths": ["…"]}') from exc
    return [LakePath(path.strip("/")) for path in asked.paths]


async def _stream(request: web.Request, records: AsyncIterator[Any]) -> web.StreamResponse:
    """Send records as JSON lines while they come; a client that goes away ends the work."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    async with contextlib.aclosing(cast(AsyncGenerator[Any, None], records)):
        async for record in records:
            if not response.prepared:  # an error before the first record is still an answer of its own
                await response.prepare(request)
            await response.write(msgspec.json.encode(record, enc_hook=encode_unit) + b"\n")
    await response.write_eof()
    return response


def _peer_uid(request: web.Request) -> int:
    """Return the user id at the other end of the Unix socket, as the kernel knows it."""
    assert request.transport is not None
    peer = request.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid


def _if_match(request: web.Request) -> str | None:
    """Return the version that the caller has seen, None where any will do."""
    stated = request.headers.get("If-Match", "*").strip()
    return None if stated == "*" else stated.strip('"')


def _json(value: Any, code: int = 200, etag: str = "") -> web.Response:
    headers = {"ETag": f'"{etag}"'} if etag else None
    return web.Response(body=msgspec.json.encode(value), status=code, content_type="application/json", headers=headers)
