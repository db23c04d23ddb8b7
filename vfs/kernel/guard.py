"""One guard around every handler: our errors become errnos, bugs become EIO and one log record."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pyfuse3
import trio

from vfs import errors
from vfs.filesystem.request import begin_request

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_ERRNOS: dict[type[errors.ForemountError], int] = {
    errors.NotFound: errno.ENOENT,
    errors.AlreadyExists: errno.EEXIST,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.DirectoryNotEmpty: errno.ENOTEMPTY,
    errors.Denied: errno.EACCES,
    errors.ReadOnly: errno.EROFS,
    errors.Unsupported: errno.EOPNOTSUPP,
    errors.CrossesMounts: errno.EXDEV,  # mv and ln then copy
    errors.Stale: errno.ESTALE,
    errors.Corrupt: errno.EIO,
    errors.Unavailable: errno.EIO,
    errors.DeadlineExceeded: errno.EIO,
    errors.NoSpace: errno.ENOSPC,
    errors.Busy: errno.EBUSY,
}
_EXPECTED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ESTALE, errno.EROFS)
"""What programs provoke every second: no record above debug."""
_request: Callable[[], int] = lambda: 0  # noqa: E731
_serial = itertools.count(1)
requests: Counter[str] = Counter()
"""Requests of the kernel by handler, and `failed` ones: what `status` shows, and how benchmarks count round trips."""


def number_requests(request: Callable[[], int]) -> None:
    """Have handlers know the number of their request: `request` tells that of the last one that came in."""
    global _request
    _request = request


def errno_of(error: errors.ForemountError) -> int:
    """Return the errno for one of our errors: the system's own where it came from a system call."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        return cause.errno
    for kind in type(error).__mro__:
        if kind in _ERRNOS:
            return _ERRNOS[kind]
    return errno.EIO


def guarded(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wrap a handler so that it raises nothing but FUSEError, whatever happens inside."""
    name = handler.__name__

    @functools.wraps(handler)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        requests[name] += 1
        begin_request(_request())
        try:
            return await handler(*args, **kwargs)
        except errors.ForemountError as exc:
            number = errno_of(exc)
            requests["failed"] += 1
            level = logging.DEBUG if number in _EXPECTED else logging.WARNING
            log.log(level, "%s: %s -> %s", name, exc, errno.errorcode.get(number, number))
            raise pyfuse3.FUSEError(number) from exc
        except (pyfuse3.FUSEError, trio.Cancelled):
            raise
        except Exception as exc:
            log.exception("%s: bug, request %s of this kind is answered EIO", name, next(_serial))
            raise pyfuse3.FUSEError(errno.EIO) from exc

    return wrapped
