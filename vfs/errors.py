"""What can go wrong, named for its meaning. Errnos exist in `vfs/kernel/` only.

Pure: no I/O, no clock.

Every error carries the object it is about and, where there is one, a hint: what the reader can do about it. Libraries'
exceptions are translated into these once, where the library is called. Errors cross processes as `Failure`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ForemountError(Exception):
    """Base of all expected failures.

    Args:
        subject: the object it is about: a path, a site, a file and line.
        reason: one sentence without the subject.
        hint: what to do about it, or "".
    """

    def __init__(self, subject: str, reason: str = "", hint: str = "") -> None:
        super().__init__(subject, reason, hint)
        self.subject = subject
        self.reason = reason or (type(self).__doc__ or "failed").split("\n", 1)[0].rstrip(".").lower()
        self.hint = hint

    def __str__(self) -> str:
        sentence = f"{self.subject}: {self.reason}" if self.subject else self.reason
        return f"{sentence} ({self.hint})" if self.hint else sentence


class NotFound(ForemountError):
    """No such object."""


class AlreadyExists(ForemountError):
    """The name is taken."""


class NotADirectory(ForemountError):
    """Not a directory."""


class IsADirectory(ForemountError):
    """Is a directory."""


class DirectoryNotEmpty(ForemountError):
    """The directory is not empty."""


class Denied(ForemountError):
    """The site refuses access. Final: another replica is not asked."""


class ReadOnly(ForemountError):
    """The path can't be written."""


class Unsupported(ForemountError):
    """The site or the mount can't do this."""


class CrossesMounts(Unsupported):
    """The two names lie on different mounts."""


class Stale(ForemountError):
    """The object has moved on to another version."""


class PinnedGone(Stale):
    """The version that a snapshot holds is nowhere any more."""


class Corrupt(ForemountError):
    """The bytes don't match their digest."""


class Unavailable(ForemountError):
    """The site can't be reached or failed. Transient: worth another try, here or at another replica."""


class Throttled(Unavailable):
    """The site asks for fewer requests."""


class WrongAnswer(Unavailable):
    """The site answered with something that its protocol does not allow, for example too few bytes."""


class DeadlineExceeded(ForemountError):
    """No answer within the deadline."""


class NoSpace(ForemountError):
    """No room left."""


class InvalidConfig(ForemountError):
    """The configuration can't be used. The subject is file and key path or line."""


class InvalidPolicy(ForemountError):
    """The policy documents can't be used. The subject is file and key path or line."""


class InvalidFeed(ForemountError):
    """The schedule of a job can't be used. The subject is the file, the reason names the row."""


class Busy(ForemountError):
    """Another process holds it."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error as it crosses a socket."""

    kind: str
    subject: str
    reason: str
    hint: str


def _subclasses(base: type[ForemountError]) -> dict[str, type[ForemountError]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found |= _subclasses(child)
    return found


_BY_NAME = _subclasses(ForemountError)


def to_failure(error: ForemountError) -> Failure:
    """Return the error as a value that `from_failure` turns back; a room's own kind travels as the one that it refines."""
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _BY_NAME)
    return Failure(kind, error.subject, error.reason, error.hint)


def from_failure(failure: Failure) -> ForemountError:
    """Return the error again; a kind that this version does not know becomes the base class."""
    return _BY_NAME.get(failure.kind, ForemountError)(failure.subject, failure.reason, failure.hint)


def failure_from(fields: Mapping[str, Any]) -> ForemountError:
    """Return the error that the fields kind, subject, reason and hint describe."""
    return from_failure(Failure(*(str(fields.get(key, "")) for key in ("kind", "subject", "reason", "hint"))))
