"""The agent's main: `python -m vfs.agent`, started by the keeper.

Tasks of the one asyncio loop: the worker's line, the admin API, heartbeats, status files, and what the services own.

Readers wait for an agent that is started again, and half of that time was spent on imports: rooms that the configuration
may leave out are imported where they are built, and nothing is collected before all is there.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()

import argparse
import asyncio
import contextlib
import faulthandler
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

from vfs import config, usage
from vfs.admin.policies import AuditLog, Policies
from vfs.admin.service import Admin
from vfs.admin.spans import Spans
from vfs.admin.stats import Facts, Room
from vfs.admin.status import Status, StatusFiles
from vfs.agent.accounts import Accounts
from vfs.agent.reading.beside import FilesBeside
from vfs.agent.reading.holding import Holding
from vfs.agent.reading.lake import AgentLake
from vfs.agent.reading.layouts import CachedLayouts
from vfs.agent.reading.lessons import Lessons
from vfs.agent.reading.local import LocalCopies
from vfs.agent.reading.metadata import Metadata
from vfs.agent.reading.objects import Objects
from vfs.agent.reading.prefetch import Prefetcher
from vfs.agent.reading.published import Place, Published
from vfs.agent.reading.replicas import Replicas, tell_etags, tell_times
from vfs.agent.reading.snapshots import Snapshots
from vfs.agent.rules import PathRules
from vfs.agent.server import WorkerServer
from vfs.agent.traces import Traces
from vfs.agent.writing.adoption import Adoption
from vfs.agent.writing.checkpoints import Checkpoints
from vfs.agent.writing.sending import SendLimits
from vfs.agent.writing.uploadfacts import UploadFacts
from vfs.agent.writing.uploads import Uploads
from vfs.clock import Clock, SystemClock
from vfs.errors import ForemountError
from vfs.extents.budget import Budget
from vfs.extents.directory import spill_directory
from vfs.extents.fetch import Fetcher
from vfs.extents.limits import FetchLimits
from vfs.extents.store import Store
from vfs.httpservice import Rates
from vfs.keeper import state
from vfs.keeper.orphan import die_with_parent
from vfs.keeper.report import StatusPipe
from vfs.keeper.secrecy import forbid_core_dumps
from vfs.logs import log_to
from vfs.model import SiteName
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import MountTable, build_mount_table
from vfs.namespace.pins import Pins
from vfs.namespace.soundness import set_aside_if_broken
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce, open_store
from vfs.policy.store import PolicyStore
from vfs.rundir import RunDir
from vfs.sites.build import build_writer, open_sites
from vfs.sites.protocol import Site
from vfs.sites.writing import SiteWriter

log = logging.getLogger("vfs.agent")
_BEAT_S = 1.0
_SPILL_BYTES = 64 << 20
"""Memory that stands in for a cache disk that is full or fails: enough for the reads in flight, no more."""


def main() -> int:
    """Serve until SIGTERM, or SIGINT where another agent follows at once; return the exit status."""
    parser = argparse.ArgumentParser("vfs.agent")
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--config", required=True)
    args = parser.parse_args()
    die_with_parent(args.parent_pid)
    forbid_core_dumps()
    rundir, status = RunDir(args.run_dir), StatusPipe(args.status_fd)
    log_to(rundir.log("agent"), os.environ.get("FOREMOUNT_LOG", "INFO"))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        loaded = config.load(args.config)
        asyncio.run(_serve(loaded, open_store(loaded, args.config, last_good=rundir.policies), rundir, status))
    except ForemountError as exc:
        log.error("agent ends: %s", exc)  # noqa: TRY400  # an expected failure: its sentence says it all
        status.failed(str(exc))
        return 1
    except Exception as exc:
        log.exception("agent ends")
        status.failed(f"{type(exc).__name__}: {exc}")
        return 1
    return 0


async def _serve(loaded: config.Config, documents: PolicyStore, rundir: RunDir, status: StatusPipe) -> None:
    """Build the rooms, say ready, and wait for SIGTERM. Teardown is the reverse of construction."""
    clock = SystemClock()
    mounts = build_mount_table(loaded)
    ended: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _end, ended, number)
    async with contextlib.AsyncExitStack() as stack:
        sites = open_sites(loaded.sites, stack)
        rules = PathRules(InForce(documents, caller=usage.asking), mounts)
        store = Store.open(loaded.cache.directory, loaded.cache.size, keep_of=rules.keep_of)
        stack.callback(store.close)
        spill = Store.open(spill_directory(os.path.basename(rundir.path)), _SPILL_BYTES)
        stack.callback(spill.close_and_remove)
        kept_in = os.path.join(store.root, "catalog.lmdb")
        set_aside_if_broken(kept_in)
        catalog = CatalogWriter(kept_in)
        stack.callback(catalog.close)
        tasks = await stack.enter_async_context(_Tasks())
        policies = Policies(documents, AuditLog(rundir.audit), clock)
        metadata = Metadata(
            mounts,
            sites,
            catalog,
            clock=clock,
            ttl_s=rules.listing_ttl_s,
            version_ttl_s=rules.version_ttl_s,
            spawn=tasks.spawn,
            pins=Pins(catalog, rules.snapshot),
        )
        snapshots = Snapshots(mounts, sites, catalog, documents, clock)
        tasks.spawn(snapshots.sweep())
        local = frozenset(SiteName(name) for name, site in loaded.sites.items() if isinstance(site, config.LocalSite))
        memory = Budget(loaded.limits.memory)
        fetcher = await stack.enter_async_context(
            Fetcher(store, spill, sites, local=local, memory=memory, clock=clock, limits=FetchLimits(), rate_of=rules.rate_of)
        )
        replicas = Replicas(
            mounts,
            sites,
            tell_etags=tell_etags(loaded.sites),
            tell_times=tell_times(loaded.sites),
            clock=clock,
            believed_s=rules.listing_ttl_s,
            on_answer=fetcher.hint,
            spawn=tasks.spawn,
        )
        published = Published(mounts, fetcher, Place(socket.gethostname()), config.directories(loaded))
        holding = Holding(mounts, fetcher, replicas, rules, published)
        prefetcher = Prefetcher(
            fetcher,
            CachedLayouts(holding, fetcher, stat=metadata.stat),
            Lessons(catalog),
            rule=rules.prefetch_rule,
            read_ahead=loaded.limits.read_ahead,
            spawn=tasks.spawn,
            beside=FilesBeside(metadata, holding),
        )
        objects = Objects(holding, fetcher, prefetcher)
        accounts = Accounts(clock)
        uploads = await stack.enter_async_context(_uploading(loaded, mounts, sites, catalog, rules, clock))
        adoption = None
        if uploads is not None:
            adoption = Adoption(uploads, mounts, catalog, store, config.staging_directory(loaded), spawn=tasks.spawn)
        foresight = None
        if loaded.foresight is not None:
            from vfs.agent.foresight.rooms import mounted

            foresight = await stack.enter_async_context(
                mounted(
                    loaded,
                    mounts,
                    sites,
                    fetcher,
                    published,
                    uploads,
                    catalog.manifests(),
                    clock,
                    documents,
                    socket_path=rundir.foresight_socket,
                    spawn=tasks.spawn,
                )
            )
        server = WorkerServer(
            metadata,
            objects,
            store,
            on_reads=prefetcher.reads,
            on_used=accounts.take_nowait,
            uploads=uploads,
            adoption=adoption,
        )
        server.on_seen = accounts.seen
        traces = Traces(
            server,
            loaded,
            documents,
            lines=fetcher.lines,
            counters=fetcher.counters,
            layouts=prefetcher.layouts,
            spawn=tasks.spawn,
        )
        prefetcher.on_layout = traces.layout_known
        prefetcher.on_expect = server.expect
        await stack.enter_async_context(server.listening(rundir.agent_socket))
        stores = {"cache": store, "memory": spill}
        waiting = accounts.ledger.waiting_count
        facts = Status(mounts, stores, metadata, objects, server, fetcher, prefetcher, replicas, policies, rules, waiting)
        facts.uploads = None if uploads is None else UploadFacts(uploads, clock)
        facts.mountpoint, facts.snapshots = _mountpoint(rundir), snapshots
        copies = LocalCopies(mounts, metadata, objects, store)
        rooms: dict[str, Room] = {"snapshots": snapshots.facts}  # a room that wants its facts shown adds a line here
        if facts.uploads is not None:
            rooms["uploads"] = facts.uploads.facts
        if foresight is not None:
            rooms["foresight"] = foresight.facts
        found = Checkpoints(mounts, sites, catalog, uploads, clock)
        spans = _spans(loaded, facts.mountpoint)
        if spans is not None:
            stack.callback(spans.close)
            rooms["spans"] = spans.facts
        shown = Facts(facts, policies, accounts, fetcher, copies, store, mounts, rules, clock, rooms, found)
        if foresight is not None:
            shown.board = foresight.board
        if loaded.samples is not None:
            from vfs.agent.samples.rooms import SampleRooms

            lake = AgentLake(mounts, sites, metadata, holding, fetcher)
            shown.samples = await stack.enter_async_context(SampleRooms.running(loaded, lake, rundir, clock, rules))
            rooms["samples"] = shown.samples.table
        await stack.enter_async_context(
            Admin(loaded, facts, shown, accounts, copies, policies, clock, traces, snapshots, spans).serving(rundir)
        )
        if loaded.replica_server is not None:
            from vfs.foresight import replicaserver

            rates = Rates("replica server", loaded.limits.requests)
            replica_server, _ = await stack.enter_async_context(replicaserver.serving(loaded.replica_server, rates))
            rooms["replica server"] = replica_server.facts
        tasks.spawn(accounts.run())
        tasks.spawn(StatusFiles(rundir.public, facts).keep())
        tasks.spawn(policies.follow())
        tasks.spawn(_beat(status))
        gc.freeze()  # what is there now stays: a full collection need not find that out each time
        gc.enable()
        status.ready()
        log.info("serving %s mounts over %s sites", len(mounts.points), len(sites))
        last = await ended is signal.SIGTERM
        if last and uploads is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(loaded.staging.drain):
                    await uploads.drained()


def _spans(loaded: config.Config, mountpoint: str) -> Spans | None:
    if not loaded.admin.traces:
        return None
    try:
        return Spans(loaded.admin.traces, mountpoint)
    except ForemountError as exc:
        log.error("no spans are sent: %s; %s", exc, exc.hint)  # noqa: TRY400  # the mount does without them
        return None


@contextlib.asynccontextmanager
async def _uploading(
    loaded: config.Config,
    mounts: MountTable,
    sites: Mapping[SiteName, Site],
    catalog: CatalogWriter,
    rules: PathRules,
    clock: Clock,
) -> AsyncIterator[Uploads | None]:
    """Run the uploads where a remote origin is mounted writable; None where there is none."""
    writers: dict[SiteName, SiteWriter] = {}
    async with contextlib.AsyncExitStack() as stack:
        for point in mounts.points:
            if point.writable and point.local_root is None and point.site not in writers:
                writer = build_writer(sites[point.site], loaded.sites[point.site])
                assert writer is not None, "the configuration was checked"
                writers[point.site] = writer
                stack.push_async_callback(writer.close)
        if not writers:
            yield None
            return
        yield await stack.enter_async_context(
            Uploads(
                mounts,
                sites,
                writers,
                catalog,
                directory=config.staging_directory(loaded),
                decide=functools.partial(rules.decision, access=Access.WRITE, caller=usage.NOBODY),
                clock=clock,
                limits=SendLimits(),
            )
        )


def _end(ended: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if not ended.done():
        ended.set_result(number)


def _mountpoint(rundir: RunDir) -> str:
    """Return what the keeper has written down, "" where it has not."""
    try:
        kept = state.read(rundir.state)
    except (state.BrokenState, OSError):
        return ""
    return "" if kept is None else kept.mountpoint


async def _beat(status: StatusPipe) -> None:
    while True:
        status.beat()
        await asyncio.sleep(_BEAT_S)


class _Tasks:
    """The services' own tasks: outlive the calls that start them, end with the agent. A bug in one is logged, not fatal."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> _Tasks:
        return self

    def spawn(self, work: Awaitable[None]) -> None:
        """Run it until it ends or the agent does."""
        task = asyncio.ensure_future(self._logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _logged(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception:
            log.exception("task ended by a bug")

    async def __aexit__(self, *raised: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
