"""The number of the kernel's request that the running handler answers.

A request that the kernel sends again, because a worker died with it, has the number that it had, with the highest bit set.
Whatever is done for a request is written down together with its number: what was done is then not done twice.

Source: linux/fuse.h, FUSE_UNIQUE_RESEND, protocol 7.40.
"""

from __future__ import annotations

from contextvars import ContextVar

_RESENT = 1 << 63
_unique: ContextVar[int] = ContextVar("unique", default=0)


def begin_request(unique: int) -> None:
    """Say which request the task that runs answers from now on; 0: its number is not known."""
    _unique.set(unique)


def request_number() -> int:
    """Return the number of the request, the same whether it was sent once or again; 0: not known."""
    return _unique.get() & ~_RESENT


def is_resent() -> bool:
    """Return whether an earlier worker had the request already."""
    return bool(_unique.get() & _RESENT)
