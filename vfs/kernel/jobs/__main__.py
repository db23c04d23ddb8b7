"""The main of the worker of `.jobs`: `python -m vfs.kernel.jobs`, started by the keeper with its connection's descriptor.

Tasks of the one trio loop: the kernel's requests (pyfuse3), the line to the agent, what is placed and dropped, heartbeats,
signals.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # as in `vfs/kernel/__main__.py`

import contextlib
import faulthandler
import logging
import os
import signal
import sys

from vfs.keeper.orphan import die_with_parent
from vfs.kernel.passthrough import load_shim

_shim = load_shim()  # before anything imports pyfuse3

import trio  # noqa: E402

from vfs import config  # noqa: E402
from vfs.clock import SystemClock  # noqa: E402
from vfs.filesystem.agent import SamplesClient  # noqa: E402
from vfs.filesystem.samples import SampleFiles  # noqa: E402
from vfs.keeper.init_codec import Negotiated  # noqa: E402
from vfs.keeper.report import StatusPipe  # noqa: E402
from vfs.keeper.secrecy import forbid_core_dumps  # noqa: E402
from vfs.kernel import guard  # noqa: E402
from vfs.kernel.account import Account  # noqa: E402
from vfs.kernel.arguments import Arguments, parse  # noqa: E402
from vfs.kernel.attach import attach, end_on_sigterm, serve  # noqa: E402
from vfs.kernel.jobs.operations import JobOperations  # noqa: E402
from vfs.kernel.jobs.push import Primer, Pusher  # noqa: E402
from vfs.logs import log_to  # noqa: E402
from vfs.namespace.inodes import InodeTable  # noqa: E402
from vfs.policy.inforce import defaults_of  # noqa: E402
from vfs.rundir import RunDir  # noqa: E402
from vfs.samples import wire  # noqa: E402

log = logging.getLogger("vfs.kernel.jobs")
_BEAT_S = 1.0
_DESCRIPTORS_MAX = 512
"""Below the usual soft limit of 1024. A sample that is read once needs its descriptor for some requests in a row."""
_SWITCH_S = 0.0005
"""As in `vfs/kernel/__main__.py`: the thread that pushes may not keep the loop from the interpreter."""


def main() -> int:
    """Serve until the connection ends or SIGTERM comes; return the exit status."""
    args = parse("vfs.kernel.jobs", sys.argv[1:])
    die_with_parent(args.parent_pid)
    forbid_core_dumps()
    rundir, status = RunDir(args.run_dir), StatusPipe(args.status_fd)
    log_to(rundir.log("jobs"), os.environ.get("FOREMOUNT_LOG", "INFO"))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.setswitchinterval(_SWITCH_S)
    try:
        loaded = config.load(args.config)
        samples = loaded.samples or config.Samples()
        trio.run(_run, args, rundir, status, samples, defaults_of(loaded.limits).deadline)
    except Exception as exc:
        log.exception("worker of .jobs ends")
        status.failed(f"{type(exc).__name__}: {exc}")
        return 1
    return 0


async def _run(args: Arguments, rundir: RunDir, status: StatusPipe, samples: config.Samples, deadline_s: float) -> None:
    """Build the rooms and run the tasks. Teardown is the reverse of construction."""
    fd, resend, negotiated = args.fuse_fd, args.resend, Negotiated.from_text(args.negotiated)
    opens = not hasattr(_shim, "reads_without_open")
    with contextlib.ExitStack() as stack:
        inodes = InodeTable(rundir.job_inodes, fresh=not resend)
        stack.callback(inodes.close)
        agent = SamplesClient(rundir.jobs_socket, lambda: wire.Greet(os.getpid()), deadline_s=deadline_s)
        owner = os.getuid(), os.getgid()
        files = SampleFiles(inodes, agent, owner, SystemClock().wall_ns(), descriptors_max=_DESCRIPTORS_MAX)
        stack.callback(files.close)
        primer = Primer(args.mountpoint)
        stack.callback(primer.end)
        pusher = Pusher(fd, files, primer, size_max=int(samples.push))
        agent.on_told, agent.on_connect = pusher.tell, pusher.renew
        if _shim is not None and hasattr(_shim, "request"):
            guard.number_requests(_shim.request)
        operations = JobOperations(files, Account(), opens=opens, primer=lambda: primer.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run)
            await attach(operations, fd, negotiated, resend=resend)
            nursery.start_soon(pusher.run)
            nursery.start_soon(_beat, status, agent, operations.account, pusher)
            nursery.start_soon(end_on_sigterm)
            gc.freeze()
            gc.enable()
            status.ready()
            log.info("serving%s", ", with OPEN: the extension was not built" if opens else "")
            await serve()
            nursery.cancel_scope.cancel()


async def _beat(status: StatusPipe, agent: SamplesClient, account: Account, pusher: Pusher) -> None:
    while True:
        await trio.sleep(_BEAT_S)
        status.beat()
        counted = {**guard.requests, **pusher.counts}
        agent.tell_nowait(wire.Counters({name: float(count) for name, count in counted.items()}))
        pusher.drop_untold()
        account.take()  # nobody is told of it: this keeps the books short


if __name__ == "__main__":
    sys.exit(main())
