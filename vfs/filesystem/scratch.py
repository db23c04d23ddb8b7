"""One buffer for every read that the worker answers.

A fresh megabyte for each read costs as much in page faults as the copy itself. Sharing is safe because a reply is written
before the worker awaits again.
"""

from __future__ import annotations

import os

from vfs.oserrors import Translated

_scratch = memoryview(bytearray((1 << 20) + (128 << 10)))
"""The largest read of the kernel (1 MiB) and one 64 KiB block on either side."""


def scratch(length: int) -> memoryview:
    """Return a writable buffer of at least `length` bytes, valid until the caller's next await."""
    global _scratch
    if len(_scratch) < length:
        _scratch = memoryview(bytearray(length))
    return _scratch


def read_at(fd: int, offset: int, length: int, subject: str) -> memoryview:
    """Return bytes of a file of this host, fewer only at its end, in the shared buffer.

    Never from a map of the file: truncated under us that would be a SIGBUS.
    """
    buffer = scratch(length)[:length]
    with Translated(subject):
        count = os.preadv(fd, [buffer], offset)
    return buffer[:count]
