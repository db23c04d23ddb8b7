"""One recorded event, as the fs worker packs it and Parquet keeps it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import enum
import struct

RECORD = struct.Struct("<QQQQIIB")
"""at_ns (wall clock), wait_ns, file, offset, length, thread, how."""


class How(enum.IntEnum):
    """What an event is, and who served it. The names are those in the file."""

    HIT = 0
    """A read from what was here."""
    FETCHED = 1
    """A read that waited for the agent."""
    FAILED = 2
    """A read that was answered with an error; `length` is what was asked for."""
    OPENED = 3
    """An open: the reads come to us, but for what the page cache has."""
    PASSTHROUGH = 4
    """An open: the kernel reads the file alone and tells nobody."""
    CLOSED = 5
    """The last handle of an inode went; by no thread."""
