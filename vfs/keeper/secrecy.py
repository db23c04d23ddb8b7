"""No core dumps of our processes: one would hold credentials of sites and bytes of files, wherever cores are put."""

from __future__ import annotations

import ctypes
import os
import resource

PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Have the kernel write no core of this process and show its memory to root alone.

    Not inherited over exec: each main calls it. The limit alone would not do, for cores that go to a pipe
    (systemd-coredump, apport) ignore it. Stacks are had with SIGUSR1 instead.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_DUMPABLE)")
