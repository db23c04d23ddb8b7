"""One guard around every handler: our errors become errnos, bugs become EIO and one log record."""

from __future__ import annotations

import errno
import functools
import inspect
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3
import trio

from vfs import errors
from vfs.filesystem.request import begin_request
from vfs.kernel.account import Account

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class Accounted(Protocol):
    """Whose handlers are guarded: it has the worker's books."""

    @property
    def account(self) -> Account: ...


A = TypeVar("A", bound=Accounted)

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


_SIZES: dict[str, Callable[[Any], int]] = {"read": len, "write": int}
"""How many bytes an answer means to the caller."""


def _nothing(_answer: Any) -> int:
    return 0


def errno_of(error: errors.ForemountError) -> int:
    """Return the errno for one of our errors: the system's own where it came from a system call."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        return cause.errno
    for kind in type(error).__mro__:
        if kind in _ERRNOS:
            return _ERRNOS[kind]
    return errno.EIO


def guarded(
    handler: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[A, P], Coroutine[Any, Any, T]]:
    """Wrap a handler so that it is counted, and raises nothing but FUSEError, whatever happens inside."""
    name = handler.__name__
    size_of = _SIZES.get(name, _nothing)
    has_context = "ctx" in inspect.signature(handler).parameters

    @functools.wraps(handler)
    async def wrapped(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        requests[name] += 1
        begin_request(_request())
        request, size, failure = self.account.begin(name, args), 0, ""
        try:
            if has_context and self.account.wanted():
                context = args[-1]
                assert isinstance(context, pyfuse3.RequestContext)
                await self.account.identify(request, context.pid, context.uid, context.gid)
            answer = await handler(self, *args, **kwargs)
            size = size_of(answer)
            return answer
        except errors.ForemountError as exc:
            number = errno_of(exc)
            failure = os.fsencode(str(exc)).decode(errors="replace")
            requests["failed"] += 1
            is_expected = number in _EXPECTED and not isinstance(exc, errors.PinnedGone)
            level = logging.DEBUG if is_expected else logging.WARNING
            log.log(level, "%s: %s -> %s", name, exc, errno.errorcode.get(number, number))
            raise pyfuse3.FUSEError(number) from exc
        except (pyfuse3.FUSEError, trio.Cancelled):
            raise
        except Exception as exc:
            log.exception("%s: bug, request %s of this kind is answered EIO", name, next(_serial))
            failure = f"bug: {type(exc).__name__}, see worker.log"
            raise pyfuse3.FUSEError(errno.EIO) from exc
        finally:
            self.account.end(request, size, failure)

    return wrapped
