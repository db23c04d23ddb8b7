"""The values that every room shares: what an object is, and which version of it. Read first.

Pure: no I/O, no clock.

Paths are `str`, relative, separated by "/", without a leading or trailing slash; "" is the root. A *lake path* is relative
to the mount, a *site path* to the root of a site.
"""

from __future__ import annotations

import enum
import os
from typing import NewType

import msgspec
import xxhash

SiteName = NewType("SiteName", str)
LakePath = NewType("LakePath", str)
SitePath = NewType("SitePath", str)
ObjectKey = NewType("ObjectKey", str)
"""32 hex digits that name one version of one object on every host and across restarts."""
Ino = NewType("Ino", int)

NAME_BYTES_MAX = 255
"""NAME_MAX of Linux: longer names can't be looked up through the kernel."""


class Kind(enum.StrEnum):
    """What an entry is. Sites without symlinks never report one."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


class Version(msgspec.Struct, frozen=True, array_like=True):
    """The identity of an object's content, as its origin states it.

    Two equal versions of one path are the same bytes; a file that is open never changes its version.

    Attributes:
        size: bytes.
        mtime_ns: modification time in ns since the epoch as far as the origin tells, else 0. HTTP tells whole seconds.
        etag: the store's own identity of the content (ETag, HDFS file id, device and inode of a local file), else "".
        generation: counts up where a store numbers its versions, else 0.
    """

    size: int
    mtime_ns: int = 0
    etag: str = ""
    generation: int = 0


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name in a directory with its attributes, as a site lists or stats it.

    Attributes:
        name: one path component; "" only for the root of a site.
        kind: what it is.
        version: for directories the size is 0 and only `mtime_ns` says something.
        mode: permission bits where the store has them, else None (the mount then shows its default).
        target: what a symlink points to, else "".
    """

    name: str
    kind: Kind
    version: Version
    mode: int | None = None
    target: str = ""


def version_of(info: os.stat_result) -> Version:
    """Return the version that this stat of a file of this host states: what a `local` site says of it."""
    return Version(info.st_size, info.st_mtime_ns, f"{info.st_dev:x}-{info.st_ino:x}")


def object_key(site: SiteName, path: SitePath, version: Version) -> ObjectKey:
    """Return the name under which this version is cached: equal inputs, equal key, on every host.

    Source: XXH3-128 of the fields joined by NUL, which no path can hold; 2**-64 chance of one collision in 2**32 objects.
    """
    fields = (site, path, str(version.size), str(version.mtime_ns), version.etag, str(version.generation))
    return ObjectKey(xxhash.xxh3_128_hexdigest("\0".join(fields).encode("utf-8", "surrogateescape")))


def join(parent: str, name: str) -> str:
    """Return the path of `name` inside `parent`; either may be ""."""
    return f"{parent}/{name}" if parent and name else parent or name


def split(path: str) -> tuple[str, str]:
    """Return (parent, name); the parent of a top-level name is ""."""
    parent, _, name = path.rpartition("/")
    return parent, name


def lies_in(path: str, prefix: str) -> bool:
    """Return whether a path is the prefix or lies below it; "" is the root of all."""
    return not prefix or path == prefix or path.startswith(f"{prefix}/")


def can_posix_carry(name: str) -> bool:
    """Return whether Linux can show `name` as a directory entry.

    Object stores hold keys that it can't: empty components, "." and "..", NUL, components over 255 bytes.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # lone surrogates: bytes that are no UTF-8 and can't travel in JSON or msgpack
        return False
