"""Open files: one source for each inode, and the kernel's backing id where it reads and writes the file alone.

Order of changes, so that a worker may be killed anywhere: an id is written down before the kernel is told of it in a reply,
and struck out before it is given back. What is lost in between is an id that nobody uses until the mount ends.

The backing id of a local file stays for some seconds after the last handle: files that are opened again and again (samples,
shards of 8 ranks) cost no system call then. A file of the cache goes at once: its space is counted, and may be needed.
A backing file that was verified and is not as it was then (bytes changed on the disk, a file in its place) is given to no
further handle. While one is left the kernel takes no other file for the inode, so the name gets another inode.

Small remote objects are read through the page cache and hold nothing while they are closed: they wait for another open until
there are too many of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from vfs.clock import Clock
from vfs.errors import Stale
from vfs.filesystem.tree import Source, Verified
from vfs.model import Ino
from vfs.namespace.inodes import Inode, InodeTable

log = logging.getLogger(__name__)
IDLE_S = 5.0
"""How long a backing id waits for another open. A deleted file's space is held for as long."""
IDLE_MAX = 16_384
"""Ids that wait. Each is an open file of the kernel, some 300 bytes."""
RESTING_MAX = 65_536
"""Files that wait and hold nothing but their inode's row and source: a kilobyte each."""


class Passthrough(Protocol):
    """Hands files to the kernel. The real one is in `vfs/kernel/passthrough.py`."""

    @property
    def enabled(self) -> bool:
        """Whether the kernel takes any."""
        ...

    def register(self, fd: int) -> int:
        """Return the kernel's id for the file behind `fd`, or 0 where the kernel won't have it."""
        ...

    def release(self, backing: int) -> None:
        """Give an id back."""
        ...


@dataclass(slots=True)
class OpenFile:
    """An open inode.

    Attributes:
        source: None while the kernel alone serves the inode and nothing is held for it elsewhere.
        backing: the kernel's id of the backing file while the inode is open in passthrough, else 0.
        writable: its tree can be written.
        verified: see `Source`.
    """

    source: Source | None
    writable: bool
    verified: Verified | None
    backing: int = 0

    def is_as_verified(self, state: str) -> bool:
        """Return whether the file that the kernel has, which was verified in this state, is right still."""
        if self.verified is None:
            return not state
        return self.verified.state == state and self.verified.holds()


Opener = Callable[[], Awaitable[Source]]


class OpenFiles:
    """The open files by inode number.

    Args:
        open_max: descriptors that writable files in passthrough may hold.

    Invariants: an inode in `_idle` or `_resting` is in `_files` and has no handle of this worker's. One in `_idle` has a
    backing id, one in `_resting` has none, and its mode is page cache.
    """

    def __init__(self, inodes: InodeTable, passthrough: Passthrough, clock: Clock, *, open_max: int) -> None:
        self._inodes = inodes
        self._passthrough = passthrough
        self._clock = clock
        self._open_max = open_max
        self._files: dict[Ino, OpenFile] = {}
        self._idle: OrderedDict[Ino, float] = OrderedDict()
        self._resting: OrderedDict[Ino, None] = OrderedDict()
        self._opening: dict[Ino, trio.Event] = {}

    def get(self, ino: Ino) -> OpenFile | None:
        """Return the open file, None where it is not open."""
        return self._files.get(ino)

    async def open(self, ino: Ino, opener: Opener, *, writable: bool) -> OpenFile:
        """Count a handle and return its file, opened once however many ask.

        Raises:
            Stale: the kernel has a file that is not right any more; the name has another inode from now on.
        """
        file = self._files.get(ino) or await self._open_once(ino, opener, writable=writable)
        if file.source is not None:
            file.source.joined()
        # Atomic: no await until the caller has answered the kernel.
        inode = self._inodes.get(ino)
        if inode.row.backing and not file.is_as_verified(inode.row.backed_by):
            if not inode.opens:
                self.close(ino)
            if inode.row.backing:
                path = self._inodes.path(ino)
                log.warning("%s: the file that it is read from was changed since it was verified, or is gone", path)
                self._inodes.retire(inode)
                raise Stale(path, "has another inode from now on")
            return await self.open(ino, opener, writable=writable)
        self._idle.pop(ino, None)
        self._resting.pop(ino, None)
        if not inode.opens and not inode.row.cached and not file.backing:
            self._back(inode, file)
        inode.opens += 1
        if not file.backing and not inode.row.cached:
            inode.row.cached = True
            self._inodes.save(inode)
        return file

    async def source(self, ino: Ino, opener: Opener, *, writable: bool) -> Source:
        """Return the source of an inode that the kernel has open; opened again where only an earlier worker had it."""
        file = self._files.get(ino) or await self._open_once(ino, opener, writable=writable)
        if file.source is None:
            source = await opener()
            if file.source is not None or self._files.get(ino) is not file:  # others were faster, or closed it
                source.close()
                return await self.source(ino, opener, writable=writable)
            file.source = source
        return file.source

    async def _open_once(self, ino: Ino, opener: Opener, *, writable: bool) -> OpenFile:
        while (under_way := self._opening.get(ino)) is not None:
            await under_way.wait()
            if (file := self._files.get(ino)) is not None:
                return file
        self._opening[ino] = trio.Event()
        try:
            source = await opener()
            file = self._files[ino] = OpenFile(source, writable, source.verified)
        finally:
            self._opening.pop(ino).set()
        return file

    def _back(self, inode: Inode, file: OpenFile) -> None:
        """Give the kernel the backing file, unless it has it: an inode has one id for as long as a handle may live."""
        if inode.row.backing:
            file.backing = inode.row.backing
        elif self._passthrough.enabled and file.source is not None and file.source.backing_fd is not None:
            file.backing = self._passthrough.register(file.source.backing_fd)
            if file.backing:
                inode.row.backing = file.backing
                inode.row.backed_by = file.verified.state if file.verified is not None else ""
                self._inodes.save(inode)
        may_shed = not file.writable or len(self._files) > self._open_max  # the kernel holds the file itself
        if file.backing and file.source is not None and may_shed and not file.source.shed():
            file.source = None

    def release(self, ino: Ino) -> None:
        """The kernel closed a handle."""
        inode = self._inodes.get(ino)
        inode.opens = max(inode.opens - 1, 0)  # handles of an earlier worker were not counted
        file = self._files.get(ino)
        if inode.opens or file is None:
            return
        if file.backing and file.source is None:
            self._idle[ino] = self._clock.monotonic_s()
            if len(self._idle) > IDLE_MAX:
                self.close(next(iter(self._idle)))
        elif not file.backing and file.source is not None and file.source.rest():
            self._resting[ino] = None
            if len(self._resting) > RESTING_MAX:
                self.close(next(iter(self._resting)))
        else:
            self.close(ino)

    def close_idle(self) -> None:
        """Let go of files that nobody has opened again. Called once a second."""
        limit = self._clock.monotonic_s() - IDLE_S
        with self._inodes.batch():
            while self._idle and next(iter(self._idle.values())) < limit:
                self.close(next(iter(self._idle)))

    def close(self, ino: Ino) -> None:
        """Let go of a file without handles: of one that is deleted or forgotten at once, of the others when idle."""
        self._idle.pop(ino, None)
        self._resting.pop(ino, None)
        file = self._files.pop(ino, None)
        if file is not None and file.source is not None:
            file.source.close()
        inode = self._inodes.get(ino)
        if inode.inherited or not (inode.row.cached or inode.row.backing):
            return  # handles of an earlier worker may be there still: id and mode stay until the mount ends
        backing, inode.row.backing, inode.row.backed_by, inode.row.cached = inode.row.backing, 0, "", False
        self._inodes.save(inode)
        if backing:
            self._passthrough.release(backing)

    def close_if_idle(self, ino: Ino) -> None:
        """Let go of a file now if it only waits for another open."""
        if ino in self._idle or ino in self._resting:
            self.close(ino)

    def announce(self) -> None:
        """Tell a new agent which of its objects are in use."""
        for file in self._files.values():
            if file.source is not None:
                file.source.announce()

    def close_all(self) -> None:
        """Close our descriptors. The kernel's ids stay: the mount ends, or another worker takes over."""
        for file in self._files.values():
            if file.source is not None:
                file.source.close()
        self._files.clear()
        self._idle.clear()
        self._resting.clear()
