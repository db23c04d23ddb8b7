"""Foresight as an agent, or a controller of its own, runs it: a controller over the sites of this host, and a mount's line.

Flow: `controlling` builds store, executor and controller and serves its API. A mount has a `Mounted`: it offers published
copies as the controller says, tells from which it reads, and passes on what the uploads notice.

Tasks: those of `Mounted.run`, and the controller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from vfs import config
from vfs.agent.foresight.bearings import Bearings
from vfs.agent.foresight.benefit import TELL_S, Benefit
from vfs.agent.foresight.copying import Copier
from vfs.agent.foresight.governed import Governed, stated_duties
from vfs.agent.foresight.noticing import Noticed
from vfs.agent.foresight.planned import hot_of
from vfs.agent.reading.published import Published
from vfs.agent.rules import PathRules
from vfs.agent.writing.uploads import Uploads
from vfs.backoff import doubled_s
from vfs.checkpoints.manifest import Manifest
from vfs.clock import Clock
from vfs.config import host_and_port
from vfs.errors import ForemountError, NotFound
from vfs.extents.fetch import Fetcher
from vfs.foresight import keys
from vfs.foresight.board import Board
from vfs.foresight.controller import api
from vfs.foresight.controller.boards import Boards
from vfs.foresight.controller.remote import Remote
from vfs.foresight.controller.service import Controller, running
from vfs.foresight.execution import Executor
from vfs.foresight.hot import COPIES_ANYWAY
from vfs.foresight.model import Checkpoint, Event, FileCopy, Hint, Labels, Mechanism, ReplicaId, ReplicaRecord
from vfs.foresight.offers import OPEN_S, Direct, Line
from vfs.foresight.placing import Place, SiteFacts, places, site_facts
from vfs.foresight.plan import Origin
from vfs.foresight.stores.embedded import Embedded
from vfs.foresight.stores.etcd import Etcd
from vfs.foresight.stores.protocol import Store
from vfs.foresight.stores.records import record_at
from vfs.httpservice import Rates
from vfs.model import SiteName
from vfs.namespace.mounts import MountTable
from vfs.policy.inforce import Documents, InForce
from vfs.sites.build import build_writer
from vfs.sites.protocol import Site
from vfs.sites.writing import SiteWriter
from vfs.tls import Server, files_of

log = logging.getLogger(__name__)
STATS_AT_ONCE = 32
SAY_S = 1.0
UNTOLD_MAX = 1000
_RETRY_S, _RETRY_S_MAX = 0.2, 10.0


async def open_store(where: str, clock: Clock, *, wait: bool) -> Store:
    """Return the store of the shared catalog.

    Args:
        wait: for another controller of this host to end, where the store is a directory.

    Raises:
        InvalidConfig: `where` is neither a directory nor an etcd.
        Busy: another controller of this host has the directory.
    """
    if "://" in where:
        return Etcd.at(where)
    return await Embedded.open(where, clock, wait=wait)


@contextlib.asynccontextmanager
async def controlling(
    loaded: config.Config,
    mounts: MountTable,
    sites: Mapping[SiteName, Site],
    fetcher: Fetcher,
    clock: Clock,
    documents: Documents,
    *,
    name: str,
    socket_path: str,
    wait: bool = False,
) -> AsyncIterator[Direct]:
    """Run a controller until the block ends; yields the line to it."""
    assert loaded.foresight is not None
    async with contextlib.AsyncExitStack() as stack:
        store = await open_store(config.foresight_store(loaded), clock, wait=wait)
        stack.push_async_callback(store.close)
        writers = await _writers(loaded, sites, stack)
        facts = site_facts(loaded)
        bearings = Bearings(store, sites, facts, clock)
        governed = Governed(PathRules(InForce(documents), mounts), documents, facts)
        executor: Executor = Copier(
            mounts,
            sites,
            writers,
            read=fetcher.read,
            places={site: each.place for site, each in facts.items()},
            clock=clock,
            meter=meter_of(fetcher),
            share=governed.share,
        )

        async def places_of(hint: Hint) -> Sequence[Place]:
            point = mounts.find(hint.path)
            if point is None or (hint.site == point.site and hint.mechanism is Mechanism.CHECKPOINTS):
                return []
            known = await record_at(store, keys.checkpoint_key(hint.path), Checkpoint)
            now = await bearings.facts() if hint.mechanism is Mechanism.HOT_FILES else facts
            if hint.world_size:
                if known is None or not known.save_id:
                    return []
                home = now.get(point.site, SiteFacts())
                there = COPIES_ANYWAY if home.multiplies else 1
                hot = await hot_of(hint, store, point.site, fetcher.read, bears=home.readers, copies=there)
                if not hot:
                    return []
                hint = msgspec.structs.replace(hint, hot=hot)
            labels: Labels = known.labels if known is not None and known.labels is not None else hint.labels
            whole = known.bytes if known is not None else 0
            lengths = [each.length for each in hint.hot]
            size = sum(lengths) if lengths and all(lengths) else whole
            rules = governed.rules(hint.mechanism, hint.path)
            return places(hint, labels, rules, origin=point.site, sites=now, bytes_needed=size, used=controller.used)

        async def origin_of(replica: ReplicaRecord, copies: Sequence[FileCopy]) -> Origin:
            point = mounts.find(replica.path)
            return Origin.UNKNOWN if point is None else await what_is_left(sites[point.site], copies)

        secrets = api.read_secrets(loaded.foresight.tokens) if loaded.foresight.tokens else {}
        controller = Controller(
            store, executor, clock, name=name, places=places_of, origin=origin_of, oversight=governed, secrets=secrets
        )
        boards = Boards(store, clock, {site: each.rack for site, each in facts.items()})
        line = Direct(store, clock, boards.board)
        following = asyncio.ensure_future(boards.follow())
        stack.push_async_callback(_end, following)
        await stack.enter_async_context(running(controller))
        settings = loaded.foresight
        address = host_and_port(settings.address) if settings.address else None
        await stack.enter_async_context(
            api.serving(
                controller,
                line,
                Rates("controller", loaded.limits.requests),
                socket_path=socket_path,
                address=address,
                tokens=settings.tokens,
                tls=_tls_of(settings),
            )
        )
        yield line


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def meter_of(fetcher: Fetcher) -> Callable[[], tuple[float, int]]:
    """Return a meter of this process: CPU seconds, and bytes that sites have sent."""
    return lambda: (time.process_time(), fetcher.counters.fetched_bytes)


def _tls_of(settings: config.Foresight) -> Server | None:
    return Server(files_of(settings), "foresight.certificate") if settings.certificate else None


async def _writers(
    loaded: config.Config, sites: Mapping[SiteName, Site], stack: contextlib.AsyncExitStack
) -> dict[SiteName, SiteWriter]:
    """Return writers of the sites that take copies."""
    found = {}
    for name, site in loaded.sites.items():
        writer = build_writer(sites[SiteName(name)], site) if site.copies else None
        if writer is not None:
            found[SiteName(name)] = writer
            stack.push_async_callback(writer.close)
    return found


async def what_is_left(site: Site, copies: Sequence[FileCopy]) -> Origin:
    """Return what an origin still has of what was copied from it."""
    turns = asyncio.Semaphore(STATS_AT_ONCE)

    async def state(copy: FileCopy) -> Origin:
        async with turns:
            try:
                entry = await site.stat(copy.origin_at)
            except NotFound:
                return Origin.GONE
            return Origin.WHOLE if entry.version == copy.origin else Origin.DAMAGED

    try:
        found = set(await asyncio.gather(*map(state, copies)))
    except ForemountError as exc:
        log.info("%s can't be asked what it has: %s", site.name, exc)
        return Origin.UNKNOWN
    return found.pop() if len(found) == 1 else Origin.DAMAGED if found else Origin.WHOLE


@contextlib.asynccontextmanager
async def line_of(
    loaded: config.Config,
    mounts: MountTable,
    sites: Mapping[SiteName, Site],
    fetcher: Fetcher,
    clock: Clock,
    documents: Documents,
    *,
    socket_path: str,
) -> AsyncIterator[Line]:
    """Yield the line to the controllers that the configuration names, or to one of this agent's own."""
    assert loaded.foresight is not None
    async with contextlib.AsyncExitStack() as stack:
        if loaded.foresight.controllers:
            secrets = api.read_secrets(loaded.foresight.tokens)
            remote = Remote(loaded.foresight.controllers, secrets, files_of(loaded.foresight))
            stack.push_async_callback(remote.close)
            yield remote
            return
        name = mount_name(socket_path)
        yield await stack.enter_async_context(
            controlling(loaded, mounts, sites, fetcher, clock, documents, name=name, socket_path=socket_path)
        )


def mount_name(run_path: str) -> str:
    """Return a name for this mount that no other host's has."""
    return f"{socket.gethostname()}:{os.path.basename(os.path.dirname(run_path))}"


@contextlib.asynccontextmanager
async def mounted(
    loaded: config.Config,
    mounts: MountTable,
    sites: Mapping[SiteName, Site],
    fetcher: Fetcher,
    published: Published,
    uploads: Uploads | None,
    manifests: Iterable[Manifest],
    clock: Clock,
    documents: Documents,
    *,
    socket_path: str,
    spawn: Callable[[Awaitable[None]], None],
) -> AsyncIterator[Mounted | None]:
    """Run a mount's part in foresight until the block ends; None where it has none, or can't: the mount does without."""
    async with contextlib.AsyncExitStack() as stack:
        if loaded.foresight is None:
            yield None
            return
        try:
            line = await stack.enter_async_context(
                line_of(loaded, mounts, sites, fetcher, clock, documents, socket_path=socket_path)
            )
        except ForemountError as exc:
            log.error("foresight is off: %s", exc)  # noqa: TRY400  # the sentence says it all
            yield None
            return
        name = mount_name(socket_path)
        rules = PathRules(InForce(documents), mounts)
        noticed = Noticed(line, name, mounts, sites, clock, functools.partial(stated_duties, rules))
        if uploads is not None:
            uploads.notify(begun=noticed.began, stored=noticed.stored, committed=noticed.committed)
        noticed.again(manifests)
        room = Mounted(line, published, noticed, Benefit(fetcher, clock, spawn), name, clock)
        task = asyncio.ensure_future(room.run())
        task.add_done_callback(_log_bug)
        try:
            yield room
        finally:
            await _end(task)


def _log_bug(done: asyncio.Task[None]) -> None:
    """Say that the mount's part has ended: nobody waits for it until the mount ends."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("bug: foresight of this mount has ended", exc_info=error)


class Mounted:
    """What a mount does with its line.

    Attributes:
        noticed: told by the uploads.
        heard_after_s: how long after it was published the last copy was heard of, by the clocks of both hosts; to be shown.
    """

    def __init__(self, line: Line, published: Published, noticed: Noticed, benefit: Benefit, name: str, clock: Clock) -> None:
        self._line = line
        self._benefit = benefit
        self._published = published
        self.noticed = noticed
        self._name = name
        self._clock = clock
        self.connected = False
        self.heard_after_s = 0.0

    async def run(self) -> None:
        """Follow the offers, say what is read, and tell what is noticed, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._say())
            group.create_task(self.noticed.tell())
            group.create_task(self._account())

    async def board(self) -> Board:
        """Return what people look at, as the controller has it.

        Raises:
            Unavailable: none answers.
        """
        return await self._line.board()

    def facts(self) -> dict[str, Any]:
        """Return what `/v1/rooms` shows."""
        return {
            "controller_answers": self.connected,
            "copies_offered": len(self._published.replicas()),
            "copies_read": len(self._published.in_use()),
            "heard_after_s": round(self.heard_after_s, 4),
            "untold": self.noticed.untold,
        }

    async def _follow(self) -> None:
        attempts = 0
        while True:
            there: set[ReplicaId] | None = set()
            try:
                async for offers in self._line.offers():
                    attempts, self.connected = 0, True
                    for name in offers.withdrawn:
                        self._remove(name)
                    for offered in offers.offered:
                        self._published.put(offered.replica, offered.files)
                        self._benefit.put(offered.replica, offered.files)
                        if there is not None:
                            there.add(offered.replica.id)
                        else:
                            self.heard_after_s = (self._clock.wall_ns() - offered.replica.published_ns) / 1e9
                    if offers.all and there is not None:
                        for name in set(self._published.replicas()) - there:
                            self._remove(name)
                        there = None
            except ForemountError as exc:
                if self.connected:
                    log.warning("copies that are offered stay as they were: %s", exc)
            self.connected = False
            attempts += 1
            await asyncio.sleep(doubled_s(_RETRY_S, _RETRY_S_MAX, attempts))

    def _remove(self, name: ReplicaId) -> None:
        self._published.remove(name)
        self._benefit.remove(name)

    async def _account(self) -> None:
        """Tell what copies were worth here; what can't be told now is told the next time."""
        untold: list[Event] = []
        while True:
            await asyncio.sleep(TELL_S)
            untold = [*untold, *self._benefit.told(self._name)][-UNTOLD_MAX:]
            if untold:
                try:
                    await self._line.tell(untold)
                    untold = []
                except ForemountError as exc:
                    log.info("the controller can't be told what copies were worth: %s", exc)

    async def _say(self) -> None:
        said: frozenset[ReplicaId] = frozenset()
        said_s = self._clock.monotonic_s()
        while True:
            await asyncio.sleep(SAY_S)
            now, now_s = frozenset(self._published.in_use()), self._clock.monotonic_s()
            if now != said or (now and now_s - said_s > OPEN_S / 3):
                try:
                    await self._line.reads(self._name, sorted(now))
                    said, said_s = now, now_s
                except ForemountError as exc:
                    log.info("the controller can't be told what is read: %s", exc)
