"""Attach pyfuse3 to a connection that is already mounted and negotiated.

libfuse insists on answering INIT itself. So it gets one end of a socket pair as its device, is fed a synthetic INIT there,
and then finds the real descriptor under the same number. That is what lets a new worker take over a live mount.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct

import pyfuse3
import trio

from vfs.keeper.init_codec import Negotiated, worker_init_request
from vfs.kernel.eager import read_eagerly

log = logging.getLogger(__name__)

_NOTIFY_RESEND = struct.pack("=IiQ", 16, 7, 0)  # fuse_out_header: length, FUSE_NOTIFY_RESEND, no request
_REQUESTS_MAX = 1000
"""Requests answered at a time. The kernel keeps 256 in the background and any number in the foreground: with too few here,
readers of an origin that hangs would keep local files waiting too. An idle one costs no memory but its stack."""


async def attach(operations: pyfuse3.Operations, fuse_fd: int, negotiated: Negotiated, *, resend: bool) -> None:
    """Make libfuse serve `fuse_fd`; `serve` answers requests after this.

    Args:
        resend: ask the kernel for the requests that an earlier worker took and did not answer.
    """
    ours, libfuse_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pyfuse3.init(operations, f"/dev/fd/{libfuse_end.fileno()}", set(pyfuse3.default_options) - {"default_permissions"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            ours.send(worker_init_request(negotiated, pid=os.getpid()))
            await trio.lowlevel.wait_readable(ours)
            ours.recv(4096)  # libfuse's reply: the kernel has had the keeper's
            nursery.cancel_scope.cancel()
        os.dup2(fuse_fd, libfuse_end.fileno(), inheritable=False)
        read_eagerly(libfuse_end.detach())  # libfuse's from now on
    if resend and negotiated.resend:
        os.write(fuse_fd, _NOTIFY_RESEND)


async def serve() -> None:
    """Answer requests until the connection ends."""
    await pyfuse3.main(min_tasks=1, max_tasks=_REQUESTS_MAX)


async def end_on_sigterm() -> None:
    """Have `serve` return when the keeper asks for it."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for _ in received:
            pyfuse3.terminate()
