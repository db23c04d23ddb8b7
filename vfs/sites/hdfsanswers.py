"""What WebHDFS answers mean: file status to entries, remote exceptions to our errors.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

from vfs.errors import (
    AlreadyExists,
    Denied,
    DirectoryNotEmpty,
    ForemountError,
    NoSpace,
    NotADirectory,
    NotFound,
    Throttled,
    Unavailable,
    WrongAnswer,
)
from vfs.model import Entry, Kind, Version

_JSON_NAMES = {
    "name": "pathSuffix", "kind": "type", "size": "length", "modified_ms": "modificationTime", "inode": "fileId",
    "target": "symlink",
}  # fmt: skip


class FileStatus(msgspec.Struct, rename=_JSON_NAMES):
    """As WebHDFS has it.

    Attributes:
        name: of the entry in its directory, "" for the path that was asked.
        modified_ms: ms since the epoch.
        inode: HDFS's id of the file, 0 where the server tells none; never used twice.
        target: of a symlink.
        replication: copies of each block that the file is to have.
    """

    name: str
    kind: str
    size: int
    modified_ms: int
    permission: str
    inode: int = 0
    target: str = ""
    replication: int = 0


class StatusAnswer(msgspec.Struct, rename={"status": "FileStatus"}):
    """Answer to GETFILESTATUS."""

    status: FileStatus


class FileStatuses(msgspec.Struct, rename={"rows": "FileStatus"}):
    """Some of a directory's entries."""

    rows: list[FileStatus]


class PartialListing(msgspec.Struct, rename={"statuses": "FileStatuses"}):
    """One page."""

    statuses: FileStatuses


class DirectoryListing(msgspec.Struct, rename={"partial": "partialListing", "remaining": "remainingEntries"}):
    """One page and how many entries follow it."""

    partial: PartialListing
    remaining: int = 0


class BatchAnswer(msgspec.Struct, rename={"listing": "DirectoryListing"}):
    """Answer to LISTSTATUS_BATCH."""

    listing: DirectoryListing


class LocatedBlock(msgspec.Struct):
    """One block, and the DataNodes that hold it."""

    locations: list[msgspec.Raw]


class LocatedBlocks(msgspec.Struct, rename={"blocks": "locatedBlocks"}):
    """All blocks of a range."""

    blocks: list[LocatedBlock]


class LocationsAnswer(msgspec.Struct, rename={"located": "LocatedBlocks"}):
    """Answer to GET_BLOCK_LOCATIONS."""

    located: LocatedBlocks


class DoneAnswer(msgspec.Struct):
    """Answer to what is done or not."""

    boolean: bool


class RemoteException(msgspec.Struct, rename={"class_name": "javaClassName"}):
    """Why a call failed. Its message is for people and may quote tokens: it is not read.

    Attributes:
        exception: class name without the package.
    """

    exception: str
    class_name: str = ""


class ExceptionAnswer(msgspec.Struct, rename={"failure": "RemoteException"}):
    """Body of every answer that is no success."""

    failure: RemoteException


_MEANINGS: dict[str, type[ForemountError]] = {
    "FileNotFoundException": NotFound,
    "PathIsNotDirectoryException": NotADirectory,
    "ParentNotDirectoryException": NotFound,
    "AccessControlException": Denied,
    "SecurityException": Denied,
    "InvalidToken": Denied,
    "AuthenticationException": Denied,
    "AuthorizationException": Denied,
    "StandbyException": Unavailable,
    "RetriableException": Unavailable,
    "SafeModeException": Unavailable,
    "IOException": Unavailable,
    "RuntimeException": Unavailable,
    "RetryStartFileException": Unavailable,
    "ServerTooBusyException": Throttled,
    "UnsupportedOperationException": WrongAnswer,
    "IllegalArgumentException": WrongAnswer,
    "InvalidPathException": NotFound,
    "FileAlreadyExistsException": AlreadyExists,
    "PathIsNotEmptyDirectoryException": DirectoryNotEmpty,
    "QuotaExceededException": NoSpace,
    "DSQuotaExceededException": NoSpace,
    "NSQuotaExceededException": NoSpace,
}
_exception_decoder = msgspec.json.Decoder(ExceptionAnswer)


def entry_of(status: FileStatus, name: str) -> Entry:
    """Return the entry; the version's etag is HDFS's file id, so that a file renamed over is another one."""
    mode = int(status.permission, 8) & 0o7777
    mtime_ns = status.modified_ms * 10**6
    match status.kind:
        case "DIRECTORY":
            return Entry(name, Kind.DIRECTORY, Version(0, mtime_ns), mode)
        case "SYMLINK":
            return Entry(name, Kind.SYMLINK, version_of(status), mode, status.target)
        case _:
            return Entry(name, Kind.FILE, version_of(status), mode)


def version_of(status: FileStatus) -> Version:
    """Return the version that a file's status states."""
    return Version(status.size, status.modified_ms * 10**6, f"{status.inode}" if status.inode else "")


def error_of(status: int, body: bytes, subject: str) -> ForemountError:
    """Return what an answer that is no success means, by the class that it names and else by its status."""
    name = _named(body)
    if name in _MEANINGS:
        return _MEANINGS[name](subject, f"answered {status}, {name}")
    match status:
        case 401 | 403:
            return Denied(subject, f"answered {status}")
        case 404:
            # without a RemoteException this is no WebHDFS: it says nothing about the path
            return WrongAnswer(subject, "answered 404, and not as WebHDFS does", "check the site's url")
        case 429:
            return Throttled(subject)
        case _ if status >= 500:
            return Unavailable(subject, f"answered {status}")
        case _:
            return WrongAnswer(subject, f"answered {status}")


def _named(body: bytes) -> str:
    """Return the exception's class name without the package, "" where the body holds none."""
    try:
        failure = _exception_decoder.decode(body).failure
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return failure.exception or failure.class_name.rpartition(".")[2]
