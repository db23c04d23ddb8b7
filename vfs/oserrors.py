"""The operating system's failures in our words, for code that works on local files.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from vfs import errors

_MEANINGS: dict[int, type[errors.ForemountError]] = {
    errno.ENOENT: errors.NotFound,
    errno.EEXIST: errors.AlreadyExists,
    errno.ENOTDIR: errors.NotADirectory,
    errno.EISDIR: errors.IsADirectory,
    errno.ENOTEMPTY: errors.DirectoryNotEmpty,
    errno.EACCES: errors.Denied,
    errno.EPERM: errors.Denied,
    errno.EROFS: errors.ReadOnly,
    errno.ENOSPC: errors.NoSpace,
    errno.EDQUOT: errors.NoSpace,
    errno.EFBIG: errors.NoSpace,
    errno.ESTALE: errors.Stale,
    errno.EOPNOTSUPP: errors.Unsupported,
    errno.ENOSYS: errors.Unsupported,
    errno.EXDEV: errors.Unsupported,
    errno.EBUSY: errors.Busy,
}


def meaning_of(error: OSError, subject: str) -> errors.ForemountError:
    """Return our error for one of the system's; what has no name of its own here is `Unavailable`."""
    kind = _MEANINGS.get(error.errno or 0, errors.Unavailable)
    return kind(subject, os.strerror(error.errno).lower() if error.errno else str(error))


class Translated:
    """`with Translated(subject):` raises our errors instead of OSError, from it. Cheaper than a generator: 0.3 us."""

    __slots__ = ("_subject",)

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise meaning_of(error, self._subject) from error
