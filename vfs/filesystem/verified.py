"""A local file in the state in which it was found to be right, for what the kernel reads without asking us.

What writes to a file through the file system changes its dates, and a file that takes its place is another inode.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vfs.filesystem.beneath import open_beneath


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file of this host that has the bytes of one version.

    Attributes:
        root, path: where it lies, as `open_beneath` takes them.
        state: as `state_of` said of it when it was verified.
    """

    root: str
    path: str
    state: str

    def holds(self) -> bool:
        """Return whether it is there still, and nobody has touched it. Costs 5 us."""
        try:
            fd = open_beneath(self.root, self.path, os.O_PATH)
        except OSError:
            return False
        try:
            return state_of(os.fstat(fd)) == self.state
        finally:
            os.close(fd)


def state_of(found: os.stat_result) -> str:
    """Return what differs after any change to a file; its last change can't be set back (ctime)."""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
