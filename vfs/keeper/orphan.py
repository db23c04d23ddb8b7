"""A child's first act: tie its life to the keeper's, so that no worker outlives its mount."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the keeper ends, however it ends; end now if it has ended already.

    Args:
        parent_pid: the keeper's, as it passed it on the command line.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it died between our start and the call
        os._exit(1)
