"""Tells the kernel to ask again for names that it believes: after a change of the policy, which may allow less than before.
And to drop names with what is below them: of samples that have been read.

A name only expires (FUSE_EXPIRE_ONLY, Linux 6.2): open files, working directories and mapped pages stay what they are. Older
kernels know but one thing to do, to drop the name, after which getcwd fails in a directory that somebody works in; there
nothing is sent, and what was believed to be immutable is believed for the rest of its hour.

Sending blocks while another task of the kernel holds the directory, which may wait for the worker: never on the loop.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable

from vfs.policy.diff import Change

_OUT_HEADER = struct.Struct("<IiQ")  # fuse_out_header: length, notification instead of an error, 0
_INVAL_ENTRY_OUT = struct.Struct("<QII")  # fuse_notify_inval_entry_out: parent, length of the name, flags
_NOTIFY_INVAL_ENTRY = 3
_EXPIRE_ONLY = 1
_LINUX_MIN = (6, 2)


def can_expire(release: str) -> bool:
    """Return whether a kernel of this release lets names expire without dropping them. Pure."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0]
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= _LINUX_MIN


def concerns_names(changes: Iterable[Change]) -> bool:
    """Return whether changes of the policy can shorten what the kernel believes. Pure."""
    return any(not change.key.startswith("set.") or change.key in ("set.staleness", "set.listing_ttl") for change in changes)


def message(parent: int, name: bytes, flags: int = _EXPIRE_ONLY) -> bytes:
    """Return the notification that lets one name expire, or without the flag drops it. Pure."""
    body = _INVAL_ENTRY_OUT.pack(parent, len(name), flags) + name + b"\0"
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), _NOTIFY_INVAL_ENTRY, 0) + body


def expire(fuse_fd: int, names: Iterable[tuple[int, bytes]]) -> int:
    """Let names expire and return how many the kernel held. Blocks; a connection that ends meanwhile ends it."""
    return _tell(fuse_fd, names, _EXPIRE_ONLY)


def drop(fuse_fd: int, names: Iterable[tuple[int, bytes]]) -> int:
    """Have names forgotten with all below them, and return how many the kernel held. Blocks as `expire`.

    What is open stays open, without a name; its pages go with the last handle.
    """
    return _tell(fuse_fd, names, 0)


def _tell(fuse_fd: int, names: Iterable[tuple[int, bytes]], flags: int) -> int:
    held = 0
    for parent, name in names:
        try:
            os.write(fuse_fd, message(parent, name, flags))
            held += 1
        except OSError as exc:
            if exc.errno != errno.ENOENT:  # ENOENT: forgotten meanwhile
                break
    return held
