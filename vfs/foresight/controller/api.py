"""The controller over HTTP: on a Unix socket of mode 0600, and over TCP where each request is signed.

    POST /v1/events     events, a list: accepted once they are durable    {"accepted", "known"}
    GET  /v1/offers     published copies, then what changes               JSON lines of `Offers`
    POST /v1/reads      what a mount reads from
    GET  /v1/state      hints and copies, the first thousand of each, switches, who leads; hints_after=ID and
                        replicas_after=ID: those that follow
    GET  /v1/board      what people look at: evaluations on a time line, copies by rack, who reads from them
    GET  /v1/deletions  copies that were removed, newest first: what, when, why, found gone, who signs for it
    GET  /v1/ledger     accounts of jobs and mechanisms, and the lines they are made of
    POST /v1/switches   a mechanism on or off
    GET  /metrics       for Prometheus

Every controller answers, whether or not it leads: what it is told stands in the store, where the leader finds it. Limits are
the admin API's (`vfs/httpservice.py`); of the bodies that are larger than its own, a few are taken in at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from vfs.errors import Denied, InvalidConfig, NotFound
from vfs.foresight import bearing, keys
from vfs.foresight.controller.deletions import signer_of
from vfs.foresight.controller.service import Controller
from vfs.foresight.keys import Switch
from vfs.foresight.ledger import Account, accounts
from vfs.foresight.model import Deletion, Event, Hint, LedgerEntry, Mechanism, ReplicaId, ReplicaRecord
from vfs.foresight.offers import Direct, Offers
from vfs.foresight.signing import HEADER, parse_secrets, signer, stated_sender
from vfs.foresight.stores.protocol import PAGE_ITEMS, Item, Put, every, pages
from vfs.foresight.stores.records import records_below
from vfs.httpservice import BODY_BYTES_MAX, AtOnce, Rates, body_of, errors_as_json, runner_of, send
from vfs.tls import Server

log = logging.getLogger(__name__)
_EVENTS_BYTES_MAX = 64 << 20
"""The manifest of 300,000 files."""
_EVENTS = "/v1/events"
_LARGE_AT_ONCE = 4
_OFFERS_AT_ONCE = 10_000
"""One for each mount."""
_STATUS_OF = {InvalidConfig: 400, Denied: 403, NotFound: 404}
QUIET_S = 5.0
"""After which a stream without news says so, that a line that was cut is noticed."""
ENTRIES_MAX = 1000


class Reads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which copies a mount reads from."""

    mount: str
    replicas: list[ReplicaId] = []


class SwitchOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mechanism on or off."""

    mechanism: Mechanism
    on: bool


class State(msgspec.Struct, frozen=True):
    """What the controller knows.

    Attributes:
        hints, replicas: in order of their ids.
        more: "hints", "replicas": there are some after the last of these.
    """

    name: str
    leader: str
    hints: list[Hint]
    replicas: list[ReplicaRecord]
    off: list[str]
    steps: dict[str, int]
    bears: dict[str, str]
    more: list[str]


class Proof(msgspec.Struct, frozen=True):
    """That a copy was removed, and whose signature the record has: "" for none of anybody whom this controller knows."""

    deletion: Deletion
    signed_by: str


class Ledger(msgspec.Struct, frozen=True):
    """Accounts, and the last lines, newest first."""

    accounts: list[Account]
    entries: list[LedgerEntry]


class ControllerApi:
    """Routes of one controller.

    Args:
        tokens: file of secrets; "" on the Unix socket, where the kernel has checked.
    """

    def __init__(self, controller: Controller, line: Direct, rates: Rates, *, tokens: str = "") -> None:
        self._controller = controller
        self._line = line
        self._tokens = tokens
        self._rates = rates
        self._offered = AtOnce("controller", _OFFERS_AT_ONCE)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def application(self) -> web.Application:
        """Return the routes as an application."""
        app = web.Application(middlewares=[errors_as_json(_STATUS_OF, 503), self._admitted])
        app.router.add_post(_EVENTS, self._events)
        app.router.add_get("/v1/offers", self._offers)
        app.router.add_post("/v1/reads", self._reads)
        app.router.add_get("/v1/state", self._state)
        app.router.add_get("/v1/board", self._board)
        app.router.add_get("/v1/deletions", self._deletions)
        app.router.add_get("/v1/ledger", self._ledger)
        app.router.add_post("/v1/switches", self._switch)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request, take in its body, and ask for its signature where there are tokens."""
        secrets = await asyncio.to_thread(read_secrets, self._tokens) if self._tokens else {}
        signature = request.headers.get(HEADER, "")
        sender = stated_sender(signature) if self._tokens else "local"
        if self._tokens and sender not in secrets:
            self._rates.stranger(request)
            raise _unsigned()
        self._rates.known(sender, request)
        request = request.clone(client_max_size=_EVENTS_BYTES_MAX if request.path == _EVENTS else BODY_BYTES_MAX)
        is_large = request.body_exists and (request.content_length or _EVENTS_BYTES_MAX) > BODY_BYTES_MAX
        async with self._large if is_large else contextlib.nullcontext():
            body = await body_of(request)
        if self._tokens:
            if signer(secrets, signature, request.method, request.path_qs, body) is None:
                self._rates.stranger(request)
                raise _unsigned()
            request["who"] = sender
        return await handler(request)

    async def _events(self, request: web.Request) -> web.Response:
        events = await _body(request, list[Event])
        accepted = await self._line.tell(events)
        return _json({"accepted": accepted, "known": len(events) - accepted})

    async def _reads(self, request: web.Request) -> web.Response:
        said = await _body(request, Reads)
        await self._line.reads(said.mount, said.replicas)
        return _json({})

    async def _offers(self, request: web.Request) -> web.StreamResponse:
        with self._offered.one():
            return await self._follow_offers(request)

    async def _follow_offers(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async with contextlib.aclosing(self._line.offers()) as offers:  # type: ignore[type-var]
            next_one = asyncio.ensure_future(anext(offers))
            try:
                while True:
                    done, _ = await asyncio.wait([next_one], timeout=QUIET_S)
                    await send(request, response, msgspec.json.encode(next_one.result() if done else Offers()) + b"\n")
                    if done:
                        next_one = asyncio.ensure_future(anext(offers))
            finally:
                next_one.cancel()
                await asyncio.gather(next_one, return_exceptions=True)

    async def _state(self, request: web.Request) -> web.Response:
        store = self._controller.store
        leader = await store.get(keys.LEADER)
        switches = await records_below(store, keys.SWITCHES, Switch)
        measured = await records_below(store, keys.BEARS, bearing.Bearing)
        hints = await self._page(keys.HINTS, request.query.get("hints_after", ""))
        replicas = await self._page(keys.REPLICAS, request.query.get("replicas_after", ""))
        state = State(
            name=self._controller.name,
            leader=leader.value.decode() if leader is not None else "",
            hints=[keys.decode(item.value, Hint) for item in hints],
            replicas=[keys.decode(item.value, ReplicaRecord) for item in replicas],
            more=[name for name, items in (("hints", hints), ("replicas", replicas)) if len(items) == PAGE_ITEMS],
            off=[name for name, switch in switches.items() if not switch.on],
            steps=self._controller.steps,
            bears={site: bearing.written(each) for site, each in measured.items()},
        )
        return _json(state)

    async def _board(self, request: web.Request) -> web.Response:
        return _json(await self._line.board())

    async def _page(self, prefix: str, after: str) -> list[Item]:
        """Return the items of one room after an id, as many as one answer has."""
        return (await self._controller.store.range(prefix, after=prefix + after if after else "", limit=PAGE_ITEMS)).items

    async def _deletions(self, request: web.Request) -> web.Response:
        found = [keys.decode(item.value, Deletion) for item in (await every(self._controller.store, keys.DELETED))[0]]
        newest = sorted(found, key=lambda each: -each.deleted_ns)[:ENTRIES_MAX]
        return _json([Proof(each, signer_of(each, self._controller.secrets)) for each in newest])

    async def _entries(self) -> list[LedgerEntry]:
        found: list[LedgerEntry] = []
        async for page in pages(self._controller.store, keys.LEDGER):
            found += [keys.decode(item.value, LedgerEntry) for item in page.items]
        return found

    async def _ledger(self, request: web.Request) -> web.Response:
        entries = await self._entries()
        newest = heapq.nlargest(ENTRIES_MAX, entries, key=lambda entry: entry.made_ns)
        return _json(Ledger(await asyncio.to_thread(accounts, entries), newest))

    async def _switch(self, request: web.Request) -> web.Response:
        order = await _body(request, SwitchOrder)
        switch = Switch(on=order.on, by=request.get("who", "local"))
        await self._controller.store.write([Put(keys.switch_key(order.mechanism), keys.encode(switch))])
        log.info("%s switched %s by %s", order.mechanism, "on" if order.on else "off", switch.by)
        return _json({})

    async def _metrics(self, request: web.Request) -> web.Response:
        found = await asyncio.to_thread(accounts, await self._entries())
        return web.Response(text=metrics(found, self._controller), content_type="text/plain")


_COUNTED = ("predictions", "hits", "late", "misses", "withdrawn", "refused", "shadow", "fallbacks")
_SUMMED = ("bytes_prepared", "bytes_unused", "bytes_served", "wan_bytes", "byte_hours", "cpu_s", "saved_s")


def metrics(found: list[Account], controller: Controller) -> str:
    """Return the accounts as Prometheus reads them."""
    lines = [f"foremount_foresight_leads {int(controller.leads)}"]
    for account in found:
        labels = f'{{job="{_escaped(account.job)}",mechanism="{account.mechanism}"}}'
        shown = (*_COUNTED, *_SUMMED, "open", "hit_rate", "lead_s")
        lines += [f"foremount_foresight_{name}{labels} {getattr(account, name):g}" for name in shown]
    lines += [f'foremount_foresight_steps{{step="{step}"}} {count}' for step, count in sorted(controller.steps.items())]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def read_secrets(path: str) -> dict[str, bytes]:
    """Return the secrets of a file.

    Raises:
        InvalidConfig: it can't be used, or others can read it.
    """
    try:
        if os.stat(path).st_mode & 0o077:
            raise InvalidConfig(path, "can be read by others", f"chmod 600 {path}")
        with open(path, encoding="utf-8") as file:
            return parse_secrets(file.read(), path)
    except OSError as exc:
        raise InvalidConfig(path, f"can't be read: {exc.strerror}") from exc


@contextlib.asynccontextmanager
async def serving(
    controller: Controller,
    line: Direct,
    rates: Rates,
    *,
    socket_path: str = "",
    address: tuple[str, int] | None = None,
    tokens: str = "",
    tls: Server | None = None,
) -> AsyncIterator[str]:
    """Serve until the block ends; yields "host:port" as it was bound, "" without TCP.

    Args:
        tls: of the address; None: plain HTTP.
    Raises:
        InvalidConfig: tokens or certificate can't be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        bound = ""
        if socket_path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(socket_path)
            runner = await _runner(stack, ControllerApi(controller, line, rates))
            await web.UnixSite(runner, socket_path).start()
            os.chmod(socket_path, 0o600)
        if address is not None:
            read_secrets(tokens)
            if tls is not None:
                tls.refresh()
            runner = await _runner(stack, ControllerApi(controller, line, rates, tokens=tokens))
            await web.TCPSite(runner, *address, ssl_context=tls.context if tls else None).start()
            host, port = runner.addresses[0][:2]
            bound = f"{host}:{port}"
            log.info("the controller answers at %s", bound)
        yield bound


async def _runner(stack: contextlib.AsyncExitStack, api: ControllerApi) -> web.AppRunner:
    runner = runner_of(api.application())
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


def _unsigned() -> Denied:
    return Denied("controller", "the request is not signed with a known secret", "see foresight.tokens")


async def _body(request: web.Request, kind: Any) -> Any:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as exc:
        raise InvalidConfig("request", str(exc)) from exc


def _json(answer: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
