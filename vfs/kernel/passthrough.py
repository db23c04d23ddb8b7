"""Kernel passthrough: backing ids and the armed OPEN reply.

Must be imported before pyfuse3: see `_passthrough.c`.

Source: linux/fuse.h, protocol 7.40; measured 2026-11-29 on kernel 6.18.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import struct
import sys
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

_BACKING_OPEN = 0x4010E501  # FUSE_DEV_IOC_BACKING_OPEN: struct {s32 fd; u32 flags; u64 padding}
_BACKING_CLOSE = 0x4004E502  # FUSE_DEV_IOC_BACKING_CLOSE: u32
_BACKING_MAP = struct.Struct("=iIQ")
FOPEN_NOFLUSH = 1 << 5


class _Shim(Protocol):
    def arm(self, fh: int, flags: int, backing_id: int) -> None: ...

    def caller(self) -> tuple[int, int]: ...

    def request(self) -> int: ...


def load_shim() -> _Shim | None:
    """Load the extension so that its symbol comes before libfuse's; None where it was not built.

    Raises:
        AssertionError: pyfuse3 is loaded already, its calls are bound to libfuse.
    """
    assert "pyfuse3" not in sys.modules, "load the shim before pyfuse3"
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        shim: _Shim = importlib.import_module("vfs.kernel._passthrough")
    except ImportError:
        return None
    finally:
        sys.setdlopenflags(flags)
    return shim


class KernelPassthrough:
    """Registers backing files with the kernel.

    Attributes:
        why_not: the reason where it may not, else "".
    """

    def __init__(self, fuse_fd: int, *, negotiated: bool, shim: _Shim | None) -> None:
        self._fuse_fd = fuse_fd
        self._shim = shim
        self.why_not = ""
        if shim is None:
            self.why_not = "the passthrough extension was not built: install libfuse3-dev and a compiler, then reinstall"
        elif not negotiated:
            self.why_not = "not negotiated: needs CAP_SYS_ADMIN and kernel 6.9 or later"

    @property
    def enabled(self) -> bool:
        return not self.why_not

    def register(self, fd: int) -> int:
        """Return the kernel's id for the file behind `fd`, or 0 where the kernel refuses it.

        The kernel holds the file itself: `fd` may be closed after.
        """
        try:
            request = bytearray(_BACKING_MAP.pack(fd, 0, 0))
            return int(fcntl.ioctl(self._fuse_fd, _BACKING_OPEN, request, True))
        except OSError as exc:  # for example ELOOP: the file lies on a stacked file system itself
            log.info("kernel refuses passthrough for this file: %s", exc)
            return 0

    def release(self, backing: int) -> None:
        """Give the id back; handles that use it go on."""
        try:
            fcntl.ioctl(self._fuse_fd, _BACKING_CLOSE, struct.pack("=I", backing))
        except OSError as exc:
            log.warning("backing id %s could not be closed: %s", backing, exc)

    @property
    def caller(self) -> Callable[[], tuple[int, int]] | None:
        """Return what tells thread and uid of the request that is being started; None without the extension, or with an
        older one."""
        return getattr(self._shim, "caller", None)

    def arm(self, fh: int, backing: int, *, flush: bool) -> None:
        """Add what pyfuse3 can't say to the OPEN reply of `fh`. Atomic: no await until the handler has returned."""
        if self._shim is not None:
            self._shim.arm(fh, 0 if flush else FOPEN_NOFLUSH, backing)
