"""The fs worker's main: `python -m vfs.kernel`, started by the keeper with the connection's descriptor.

Tasks of the one trio loop: the kernel's requests (pyfuse3), the line to the agent, heartbeats, signals.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # while modules are loaded: a worker that is started again is waited for

import contextlib
import faulthandler
import functools
import logging
import os
import resource
import signal
import sys

from vfs.keeper.orphan import die_with_parent
from vfs.kernel.passthrough import KernelPassthrough, load_shim

_shim = load_shim()  # before anything imports pyfuse3

import trio  # noqa: E402

from vfs import config, wire  # noqa: E402
from vfs.clock import Clock, SystemClock  # noqa: E402
from vfs.errors import InvalidPolicy  # noqa: E402
from vfs.extents.layout import store_root  # noqa: E402
from vfs.filesystem.agent import AgentClient  # noqa: E402
from vfs.filesystem.expected import Expected  # noqa: E402
from vfs.filesystem.filesystem import FileSystem  # noqa: E402
from vfs.filesystem.local import LocalTree  # noqa: E402
from vfs.filesystem.openfiles import OpenFiles  # noqa: E402
from vfs.filesystem.pinned import PinnedTree  # noqa: E402
from vfs.filesystem.place import PlaceTree  # noqa: E402
from vfs.filesystem.reads import ReadReports  # noqa: E402
from vfs.filesystem.remote import OpenObjects, RemoteTree  # noqa: E402
from vfs.filesystem.staged import StagedTree  # noqa: E402
from vfs.filesystem.staging import StagingArea  # noqa: E402
from vfs.filesystem.tree import Tree  # noqa: E402
from vfs.keeper.init_codec import Negotiated  # noqa: E402
from vfs.keeper.report import StatusPipe  # noqa: E402
from vfs.keeper.secrecy import forbid_core_dumps  # noqa: E402
from vfs.kernel import guard  # noqa: E402
from vfs.kernel.account import Account  # noqa: E402
from vfs.kernel.arguments import Arguments, parse  # noqa: E402
from vfs.kernel.attach import attach, end_on_sigterm, serve  # noqa: E402
from vfs.kernel.expire import can_expire, concerns_names, expire  # noqa: E402
from vfs.kernel.operations import Operations  # noqa: E402
from vfs.kernel.push import PageCache  # noqa: E402
from vfs.kernel.trace import Recorder  # noqa: E402
from vfs.logs import log_to  # noqa: E402
from vfs.model import LakePath  # noqa: E402
from vfs.namespace.catalog import Catalog  # noqa: E402
from vfs.namespace.inodes import InodeTable  # noqa: E402
from vfs.namespace.journal import JournalWriter  # noqa: E402
from vfs.namespace.mounts import JOBS_PREFIX, STATUS_PREFIX, MountTable, build_mount_table  # noqa: E402
from vfs.namespace.pins import Pins  # noqa: E402
from vfs.policy.inforce import InForce, open_store  # noqa: E402
from vfs.rundir import RunDir  # noqa: E402

log = logging.getLogger("vfs.kernel")
_DESCRIPTORS_SPARE = 64
_BEAT_S = 1.0
_POLICY_EVERY_S = 0.5
"""Between looks at the documents: one stat for each of them."""
_EXPIRED_AT_A_TIME = 1000
_SWITCH_S = 0.0005
"""How long a thread that reads documents may keep the loop from the interpreter. Python's 5 ms add up in a request."""


def main() -> int:
    """Serve until the connection ends or SIGTERM comes; return the exit status."""
    args = parse("vfs.kernel", sys.argv[1:])
    die_with_parent(args.parent_pid)
    forbid_core_dumps()
    rundir, status = RunDir(args.run_dir), StatusPipe(args.status_fd)
    log_to(rundir.log("worker"), os.environ.get("FOREMOUNT_LOG", "INFO"))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of leases, which are asked for and given back at once
    sys.setswitchinterval(_SWITCH_S)
    try:
        trio.run(_Worker(args, rundir, status).run)
    except Exception as exc:
        log.exception("worker ends")
        status.failed(f"{type(exc).__name__}: {exc}")
        return 1
    return 0


class _Worker:
    """Builds the rooms and runs the tasks. Teardown is the reverse of construction."""

    def __init__(self, args: Arguments, rundir: RunDir, status: StatusPipe) -> None:
        self._args = args
        self._rundir = rundir
        self._status = status
        self._config = config.load(args.config)
        self._policies = open_store(self._config, args.config, last_good=rundir.policies)
        self._negotiated = Negotiated.from_text(args.negotiated)
        self._passthrough = KernelPassthrough(args.fuse_fd, negotiated=self._negotiated.passthrough, shim=_shim)
        self._open_max = max(_raise_descriptor_limit() - _DESCRIPTORS_SPARE, 64)
        self._agent = AgentClient(rundir.agent_socket, self._hello, deadline_s=self._policies.current.rules.defaults.deadline)

    def _hello(self) -> wire.Hello:
        return wire.Hello(os.getpid(), self._passthrough.enabled, self._passthrough.why_not)

    async def run(self) -> None:
        os.makedirs(self._rundir.public, exist_ok=True)
        clock = SystemClock()
        mounts = build_mount_table(self._config, self._rundir.public)
        objects, reports = OpenObjects(self._open_max // 4), ReadReports(self._agent)
        expected = Expected()
        account = Account(self._passthrough.caller, lambda: self._policies.current.rules.asks_of_callers)
        policy = InForce(self._policies, caller=account.facts)
        self._agent.caller = account.facts
        with contextlib.ExitStack() as stack:
            inodes = InodeTable(self._rundir.inodes, fresh=not self._args.resend)
            stack.callback(inodes.close)
            catalog = Catalog(os.path.join(store_root(self._config.cache.directory), "catalog.lmdb"))
            stack.callback(catalog.close)
            owner = (os.getuid(), os.getgid())
            area = None
            if any(point.writable and point.local_root is None for point in mounts.points):
                area = self._open_staging(mounts, catalog, clock)
                stack.callback(area.close)
            trees: dict[LakePath, Tree] = {}
            pinned: dict[LakePath, PinnedTree] = {}
            for point in mounts.points:
                pins = Pins(catalog, functools.partial(policy.snapshot, site=point.site))
                if point.local_root is not None:
                    tree = trees[point.prefix] = LocalTree(point, policy)
                    if point.prefix != STATUS_PREFIX:  # no document speaks of the status files
                        pinned[point.prefix] = PinnedTree(point, tree, pins, owner)
                    continue
                if point.prefix == JOBS_PREFIX:
                    link = "" if os.geteuid() == 0 else self._rundir.jobs
                    trees[point.prefix] = PlaceTree(point.prefix, owner, clock.wall_ns(), link)
                    continue
                remote = RemoteTree(
                    point,
                    agent=self._agent,
                    catalog=catalog,
                    cache_root=store_root(self._config.cache.directory),
                    objects=objects,
                    reports=reports,
                    expected=expected,
                    clock=clock,
                    policy=policy,
                    owner=owner,
                )
                trees[point.prefix] = remote
                pinned[point.prefix] = PinnedTree(point, remote, pins, owner)
                if point.writable and area is not None:
                    trees[point.prefix] = StagedTree(point, remote, area, policy=policy, owner=owner)
            files = OpenFiles(inodes, self._passthrough, clock, open_max=self._open_max // 4)

            def connected() -> None:
                catalog.follow()
                files.announce()

            self._agent.on_connect = connected
            push = PageCache(self._args.fuse_fd).push
            filesystem = FileSystem(mounts, trees, inodes, files, owner, clock.wall_ns(), self._open_max // 4, push, pinned)
            stack.callback(filesystem.close)
            recorder = Recorder(filesystem, self._agent, self._passthrough.caller, clock)

            def told(answer: wire.Answer) -> None:
                if isinstance(answer, wire.Expect):
                    expected.note(answer.key, answer.ranges)
                else:
                    recorder.told(answer)

            self._agent.on_told = told
            if self._args.resend:
                await filesystem.intents.settle(mounts, trees)
            await self._serve(filesystem, reports, recorder, area, account)

    def _open_staging(self, mounts: MountTable, catalog: Catalog, clock: Clock) -> StagingArea:
        directory, fresh = config.staging_directory(self._config), not self._args.resend
        journal = JournalWriter(directory, fresh=fresh)
        size = self._config.staging.size
        area = StagingArea(directory, journal, mounts, catalog=catalog, agent=self._agent, clock=clock, size=size)
        area.sweep(fresh=fresh)
        return area

    async def _serve(
        self, filesystem: FileSystem, reports: ReadReports, recorder: Recorder, area: StagingArea | None, account: Account
    ) -> None:
        account.on_new = lambda usage: self._agent.tell_nowait(wire.Seen(usage))
        operations = Operations(filesystem, self._passthrough, recorder, account)
        if _shim is not None and hasattr(_shim, "request"):  # an extension that was built before it had this
            guard.number_requests(_shim.request)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._agent.run)
            nursery.start_soon(reports.run)
            nursery.start_soon(recorder.run)
            if area is not None:
                nursery.start_soon(area.run)
            await attach(operations, self._args.fuse_fd, self._negotiated, resend=self._args.resend)
            nursery.start_soon(self._beat, filesystem, account)
            nursery.start_soon(self._follow_policies, filesystem.inodes)
            nursery.start_soon(end_on_sigterm)
            gc.freeze()  # what is there now stays: a full collection would hold up requests for 50 ms to find that out
            gc.enable()
            self._status.ready()
            log.info("serving, passthrough: %s", self._passthrough.why_not or "in force")
            await serve()
            nursery.cancel_scope.cancel()

    async def _beat(self, filesystem: FileSystem, account: Account) -> None:
        while True:
            await trio.sleep(_BEAT_S)
            self._status.beat()
            filesystem.files.close_idle()
            self._agent.tell_nowait(wire.Counters({name: float(count) for name, count in guard.requests.items()}))
            if self._agent.connected:  # else it is kept until there is one
                self._agent.tell_nowait(wire.Used(*account.take()))

    async def _follow_policies(self, inodes: InodeTable) -> None:
        """Put changed documents in force. Reading them, and telling the kernel, happens in threads."""
        log.info("policy %s in force", self._policies.current.version)
        while True:
            await trio.sleep(_POLICY_EVERY_S)
            try:
                # Abandoned at the end: documents may lie on a network file system that hangs.
                reload = await trio.to_thread.run_sync(self._policies.reload_if_changed, abandon_on_cancel=True)
            except InvalidPolicy as exc:
                log.warning("policy %s stays in force: %s", self._policies.current.version, exc)
                continue
            if reload is not None and reload.changes:
                log.info("policy %s in force, was %s: %s changes", reload.after, reload.before, len(reload.changes))
                if concerns_names(reload.changes) and can_expire(os.uname().release):
                    await self._expire_names(inodes)

    async def _expire_names(self, inodes: InodeTable) -> None:
        """Have the kernel ask again for every name, since it may now have to believe less."""
        held, mark = 0, b""
        while True:
            names, mark = await trio.to_thread.run_sync(inodes.names, mark, _EXPIRED_AT_A_TIME)
            # Abandoned at the end: it may wait for a directory whose holder waits for us.
            held += await trio.to_thread.run_sync(expire, self._args.fuse_fd, names, abandon_on_cancel=True)
            if not mark:
                break
        log.info("%s names of the kernel expired", held)


def _raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    return max(soft, hard)


if __name__ == "__main__":
    sys.exit(main())
