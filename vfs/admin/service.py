"""The admin room as the agent runs it: API and page on the Unix socket and over TLS, and the events that they tell.

Tasks: one that looks once a second for what has changed, and whether certificate or tokens have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from vfs import wire
from vfs.admin.access import Tokens
from vfs.admin.api import Api, public_config, serve_unix
from vfs.admin.events import Events
from vfs.admin.page import add_page
from vfs.admin.policies import Policies, Record
from vfs.admin.spans import Spans
from vfs.admin.stats import Facts
from vfs.admin.status import Status
from vfs.agent.accounts import Accounts
from vfs.agent.ledger import Moment
from vfs.agent.reading.local import LocalCopies
from vfs.agent.reading.snapshots import Snapshots
from vfs.agent.traces import Traces
from vfs.clock import Clock
from vfs.config import Admin as AdminConfig
from vfs.config import Config, host_and_port
from vfs.errors import ForemountError, InvalidConfig
from vfs.httpservice import Rates, runner_of
from vfs.rundir import RunDir
from vfs.tls import Server, files_of

log = logging.getLogger(__name__)
_LOOK_S = 1.0


class Admin:
    """API, page and events of one agent."""

    def __init__(
        self,
        config: Config,
        status: Status,
        facts: Facts,
        accounts: Accounts,
        copies: LocalCopies,
        policies: Policies,
        clock: Clock,
        traces: Traces,
        snapshots: Snapshots,
        spans: Spans | None = None,
    ) -> None:
        self._config = config
        self._status = status
        self._events = Events(clock)
        self._spans = spans
        self._tokens: Tokens | None = None
        self._certificate: Server | None = None
        told = self._events, lambda: public_config(config), Rates("admin API", config.limits.requests)
        self._arguments = (facts, status, copies, policies, traces, snapshots, *told)
        accounts.on_moment = self._on_moment
        policies.on_record = self._on_record

    @contextlib.asynccontextmanager
    async def serving(self, rundir: RunDir) -> AsyncIterator[None]:
        """Serve until the block ends. Trouble with TCP is said in the status; the mount does without it."""
        async with contextlib.AsyncExitStack() as stack:
            local = Api(*self._arguments).application(local=True, pages=add_page)
            await stack.enter_async_context(serve_unix(rundir.admin_socket, local))
            if self._config.admin.address:
                try:
                    await self._serve_tls(stack, self._config.admin)
                except (ForemountError, OSError) as exc:
                    log.error("the admin API is not served over TCP: %s", exc)  # noqa: TRY400  # the sentence says it all
                    self._status.admin = {"address": self._config.admin.address, "trouble": str(exc)}
            looking = asyncio.ensure_future(self._look())
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _serve_tls(self, stack: contextlib.AsyncExitStack, admin: AdminConfig) -> None:
        self._tokens = Tokens(admin.tokens)
        self._certificate = Server(files_of(admin), "admin.certificate")
        self._certificate.refresh()
        api = Api(*self._arguments, tokens=self._tokens)
        runner = runner_of(api.application(local=False, pages=add_page))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        host, port = host_and_port(admin.address)
        site = web.TCPSite(runner, host, port, ssl_context=self._certificate.context)
        await site.start()
        bound = runner.addresses[0]
        self._status.admin = {"address": f"{bound[0]}:{bound[1]}"}
        log.info("admin API on https://%s", self._status.admin["address"])

    async def _look(self) -> None:
        """Tell what has changed since the last look, and take in new tokens and certificates."""
        before: dict[str, Any] = {}
        while True:
            try:
                now = self._observed()
                for name, data in now.items():
                    if before and before.get(name) != data:
                        self._events.tell(name.split(" ")[0], data)
                before = now
                if self._tokens is not None and self._certificate is not None:
                    self._tokens.refresh()
                    self._certificate.refresh()
            except InvalidConfig as exc:
                if self._status.admin.get("trouble") != str(exc):
                    log.warning("the one before stays in force: %s", exc)
                    self._status.admin = {**self._status.admin, "trouble": str(exc)}
            except Exception:
                log.exception("bug while looking for events")
            else:
                if self._tokens is not None and "trouble" in self._status.admin:
                    self._status.admin = {"address": self._status.admin["address"]}
            await asyncio.sleep(_LOOK_S)

    def _observed(self) -> dict[str, Any]:
        worker = self._status.worker_facts()
        seen: dict[str, Any] = {"worker": {"connected": worker["connected"], "passthrough": worker["passthrough"]}}
        for site, facts in self._status.site_facts().items():
            seen[f"site {site}"] = {"site": site, "answers": facts.get("answers", True)}
        return seen

    def _on_moment(self, moment: Moment, used: wire.Used) -> None:
        if self._events.listeners:
            self._events.tell("stats", moment)
        for call in used.slow:
            self._events.tell("slow", call)
            if self._spans is not None:
                self._spans.add(call)

    def _on_record(self, record: Record) -> None:
        self._events.tell("policy", msgspec.to_builtins(record))
