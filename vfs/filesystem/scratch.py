"""One buffer for every read that the worker answers.

A fresh megabyte for each read costs as much in page faults as the copy itself. Sharing is safe because a reply is written
before the worker awaits again.
"""

from __future__ import annotations

_scratch = memoryview(bytearray((1 << 20) + (128 << 10)))
"""The largest read of the kernel (1 MiB) and one 64 KiB block on either side."""


def scratch(length: int) -> memoryview:
    """Return a writable buffer of at least `length` bytes, valid until the caller's next await."""
    global _scratch
    if len(_scratch) < length:
        _scratch = memoryview(bytearray(length))
    return _scratch
