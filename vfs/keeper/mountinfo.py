"""/proc/self/mountinfo, read without touching any mount."""

from __future__ import annotations

import re
from dataclasses import dataclass

FS_TYPE = "fuse.foremount"
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line.

    Attributes:
        major, minor: of the device; for FUSE the minor is the number of the connection.
        mountpoint: as the kernel knows it, without symlinks.
        options: of the mount and of the file system, joined by ",".
    """

    mount_id: int
    parent_id: int
    major: int
    minor: int
    mountpoint: str
    fs_type: str
    source: str
    options: str


def parse(text: bytes) -> list[MountEntry]:
    """Return the entries in the kernel's order: of several on one mount point the last one is on top.

    Pure: no I/O, no clock. Names hold any byte; the kernel writes space, tab, newline and backslash as \\NNN.
    """
    return [_parse_line(line) for line in text.split(b"\n") if line]


def read() -> list[MountEntry]:
    """Return this process's mounts."""
    with open("/proc/self/mountinfo", "rb") as file:
        return parse(file.read())


def on_top(entries: list[MountEntry], mountpoint: str) -> MountEntry | None:
    """Return what is mounted at exactly this path, or None. Pure."""
    found = [entry for entry in entries if entry.mountpoint == mountpoint]
    return found[-1] if found else None


def _parse_line(line: bytes) -> MountEntry:
    fields = line.split(b" ")
    dash = fields.index(b"-", 6)
    major, _, minor = fields[2].partition(b":")
    fs_type, source, super_options = fields[dash + 1], fields[dash + 2], fields[dash + 3]
    return MountEntry(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        major=int(major),
        minor=int(minor),
        mountpoint=_text(fields[4]),
        fs_type=_text(fs_type),
        source=_text(source),
        options=_text(fields[5] + b"," + super_options),
    )


def _text(field: bytes) -> str:
    raw = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field)
    return raw.decode("utf-8", "surrogateescape")
