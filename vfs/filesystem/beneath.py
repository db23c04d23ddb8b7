"""Objects below a directory of this host, reached without following a symlink on the way, whoever swaps one in meanwhile.

The kernel does it in one call, openat2(2). Kernels before 5.6 have none: there each component is opened by its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_OPENAT2 = 437
"""The same on every architecture that is younger than the table that they share."""
_RESOLVE = 0x04 | 0x08
"""RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH of linux/openat2.h."""
_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_beneath(root: str | bytes, path: str, flags: int) -> int:
    """Return a descriptor of `path` below `root`, the caller's to close.

    Args:
        root: followed wherever it leads: it stands in the configuration.
        path: relative, "" for the root itself.
        flags: as of os.open, without O_CREAT. Symlinks are opened with O_PATH alone.

    Raises:
        OSError: as os.open; ESTALE where a component is a symlink (before Linux 5.6 ENOTDIR, but for the last one): the
            caller's kernel then walks the path anew and finds the link itself.
    Cost: two calls of the kernel more than a path would take; 5 us.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if not path:
        return os.open(root, flags & ~os.O_NOFOLLOW)
    top = os.open(root, _DIRECTORY)
    try:
        found = _syscall(_OPENAT2, top, os.fsencode(path), _HOW.pack(flags, 0, _RESOLVE), _HOW.size)
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EPERM):  # EPERM: a container's filter that does not know the call
            raise OSError(number, os.strerror(number), path)
        return _walk(top, path, flags)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path) from exc
        raise
    finally:
        os.close(top)


def _walk(top: int, path: str, flags: int) -> int:
    *above, last = path.split("/")
    if ".." in path.split("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)  # as RESOLVE_BENEATH has it
    fd = os.dup(top)
    try:
        for component in above:
            deeper = os.open(component, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = deeper
        return os.open(last, flags, dir_fd=fd)
    finally:
        os.close(fd)
