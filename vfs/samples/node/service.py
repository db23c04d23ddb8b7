"""The HTTP side of a node service, as `vfs/samples/nodewire.py` says; tokens, TLS and limits as the admin API has them.

Tasks: one for each request, owned by aiohttp; one that looks once a second for new tokens and certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from vfs import config
from vfs.admin.access import Role, Tokens
from vfs.clock import SystemClock
from vfs.errors import Denied, ForemountError, InvalidConfig, InvalidFeed, NotFound, Stale, Unsupported
from vfs.httpservice import AtOnce, Rates, bearer, body_of, errors_as_json, runner_of, send, stranger
from vfs.namespace.mounts import build_mount_table
from vfs.samples import nodewire, stream, tree
from vfs.samples.admission import Bounds
from vfs.samples.engines.local import LocalEngine
from vfs.samples.engines.protocol import Engine
from vfs.samples.node import metrics
from vfs.samples.node.conductor import Conductor
from vfs.samples.node.lake import SiteLake
from vfs.samples.node.queue import Place
from vfs.samples.operators.registry import Registry, load_registry
from vfs.samples.preparing import Preparer
from vfs.samples.sandbox.messages import Confinement, Settings
from vfs.sites.build import open_sites
from vfs.tls import Server, files_of

log = logging.getLogger(__name__)
_BODY_BYTES_MAX = 2 << 20
_PIECE_BYTES = 1 << 20
_STREAMS_MAX = 256
_LOOK_S = 1.0
_STATUS_OF = {NotFound: 404, Denied: 403, Unsupported: 400, InvalidFeed: 422, Stale: 409}


class NodeApi:
    """Handlers of the node's routes."""

    def __init__(
        self, conductor: Conductor, registry: Registry, confinement: Confinement, tokens: Tokens, rates: Rates
    ) -> None:
        self._conductor = conductor
        self._registry = registry
        self._confinement = confinement
        self._tokens = tokens
        self._rates = rates
        self._streams = AtOnce("node", _STREAMS_MAX)

    def application(self) -> web.Application:
        """Return an application of all routes."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[errors_as_json(_STATUS_OF, 502)])
        app.router.add_put(nodewire.JOB, self._guarded(self.tell, Role.OPERATE))
        app.router.add_delete(nodewire.JOB, self._guarded(self.forget, Role.OPERATE))
        app.router.add_get(nodewire.GROUP, self._guarded(self.group, Role.OPERATE, bulk=True))
        app.router.add_get(nodewire.STATUS, self._guarded(self.status, Role.READ))
        app.router.add_get(nodewire.METRICS, self._guarded(self.metrics, Role.READ))
        return app

    async def tell(self, request: web.Request) -> web.Response:
        name = request.match_info["job"]
        if not tree.is_job_name(name):
            raise NotFound(ascii(name[:200]), "is no name of a job")
        try:
            told = msgspec.json.decode(await body_of(request), type=nodewire.Told)
        except msgspec.DecodeError as exc:
            raise Unsupported("request", f"has no usable body: {exc}") from exc
        await self._conductor.tell(name, told)
        return _json({})

    async def forget(self, request: web.Request) -> web.Response:
        await self._conductor.forget(request.match_info["job"])
        return _json({})

    async def group(self, request: web.Request) -> web.StreamResponse:
        with self._streams.one():
            return await self._send(_place(request), request)

    async def _send(self, place: Place, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": stream.CONTENT_TYPE, "Cache-Control": "no-store"})
        try:
            async with contextlib.aclosing(self._conductor.group(place)) as samples:
                async for envelope, body in samples:
                    if not response.prepared:
                        await response.prepare(request)
                    if len(body) < _PIECE_BYTES:
                        await send(request, response, stream.head(envelope) + body)
                        continue
                    await send(request, response, stream.head(envelope))
                    view = memoryview(body)
                    for start in range(0, len(view), _PIECE_BYTES):
                        await send(request, response, view[start : start + _PIECE_BYTES])
            if not response.prepared:
                await response.prepare(request)
            await send(request, response, stream.END)
        except ForemountError as exc:
            if not response.prepared:
                raise
            log.warning("group of %s is cut: %s", place, exc)
            if request.transport is not None:
                request.transport.abort()
        return response

    async def status(self, request: web.Request) -> web.Response:
        return _json(metrics.facts(self._conductor, self._registry, self._confinement))

    async def metrics(self, request: web.Request) -> web.Response:
        text = metrics.exposition(metrics.facts(self._conductor, self._registry, self._confinement))
        return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})

    def _guarded(self, handler: Handler, role: Role, *, bulk: bool = False) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            caller = self._tokens.find(bearer(request))
            if caller is None:
                self._rates.stranger(request)
                return stranger()
            if not bulk:
                self._rates.known(caller.name, request)
            if caller.role < role:
                raise Denied("node", f"{caller.name} may only {caller.role.name.lower()}")
            return await handler(request)

        return guarded


async def serve(
    loaded: config.Config,
    ready: Callable[[str], None],
    ended: asyncio.Event,
    engine_of: Callable[[config.Node, Registry], Engine] | None = None,
) -> None:
    """Serve what `[node]` of a configuration says until `ended` is set.

    Args:
        ready: called with the address once requests are answered.
        engine_of: what runs the operators; None: the engine that `[node]` names.
    Raises:
        InvalidConfig, Unsupported: it can't be served here.
    """
    node = loaded.node
    async with contextlib.AsyncExitStack() as stack:
        sites = open_sites(loaded.sites, stack)
        registry = await asyncio.to_thread(load_registry, node.operators, node.keys)
        for name, why in registry.refused.items():
            log.error("operator %s is refused: %s", name, why)
        engine = (engine_of or build_engine)(node, registry)
        stack.push_async_callback(engine.close)
        confinement = await engine.start()
        log.info("operators are kept from the host by %s", ", ".join(confinement.by))
        for part in confinement.missing:
            log.warning("this host has no %s", part)
        preparer, clock = Preparer(registry, engine), SystemClock()
        conductor = Conductor(SiteLake(build_mount_table(loaded), sites, clock), preparer, _bounds(node), clock)
        await stack.enter_async_context(conductor.working())
        tokens = Tokens(node.tokens)
        api = NodeApi(conductor, registry, confinement, tokens, Rates("node", loaded.limits.requests))
        runner = runner_of(api.application())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        certificate = Server(files_of(node), "node.certificate") if node.certificate else None
        if certificate:
            certificate.refresh()
        host, port = config.host_and_port(node.address)
        await web.TCPSite(runner, host, port, ssl_context=certificate.context if certificate else None).start()
        bound = runner.addresses[0]
        scheme = "https" if certificate else "http"
        ready(f"{scheme}://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}")
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await ended.wait()
            try:
                tokens.refresh()
                if certificate:
                    certificate.refresh()
            except InvalidConfig as exc:
                log.warning("the one before stays in force: %s", exc)


def build_engine(node: config.Node, registry: Registry) -> Engine:
    """Return the engine that `[node]` names; nothing is started."""
    settings = Settings(
        memory=int(node.sample_memory), uid=node.uid, idle=node.idle, samples_per_process=node.samples_per_process
    )
    count = node.processes or len(os.sched_getaffinity(0))
    operators = list(registry.operators.values())
    if node.engine == "ray":
        from vfs.samples.engines.ray import RayEngine

        return RayEngine(settings, operators, count, address=node.ray_address, resource=node.ray_resource)
    return LocalEngine(settings, operators, count)


def _bounds(node: config.Node) -> Bounds:
    return Bounds(
        cpu=node.cpu,
        memory_free=node.memory_free,
        egress=int(node.egress),
        queue=int(node.queue),
        job_cpus=node.job_cpus,
        job_queue=int(node.job_queue),
    )


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _place(request: web.Request) -> Place:
    words = request.match_info
    if not (words["step"].isdigit() and words["rank"].isdigit() and words["step"].isascii() and words["rank"].isascii()):
        raise NotFound(request.path[:200], "is no group")
    return Place(words["job"], int(words["step"]), int(words["rank"]))
