"""Copies on this host that were made and verified ahead: opened in place of what would be fetched, read in passthrough."""

from __future__ import annotations

import logging
import os

from vfs import wire
from vfs.filesystem.beneath import open_beneath
from vfs.filesystem.scratch import read_at
from vfs.filesystem.tree import Buffer, Push, Source
from vfs.filesystem.verified import VerifiedFile, state_of
from vfs.model import LakePath, version_of
from vfs.usage import Source as From

log = logging.getLogger(__name__)


def copy_here(path: LakePath, opened: wire.Opened, held: Source) -> Source:
    """Return the copy that the agent names, if it is what was verified; else `held`, as if there were none."""
    found = open_copy(path, opened.here) if opened.here is not None else None
    return held if found is None else CopyHere(found[0], path, held, found[1])


def open_copy(path: LakePath, here: wire.CopyHere) -> tuple[int, VerifiedFile] | None:
    """Return a descriptor of a copy and what it must stay, None where it is not what was verified."""
    try:
        fd = open_beneath(here.directory, here.path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as exc:
        log.info("%s: the copy on this host can't be opened: %s", path, exc.strerror)
        return None
    found = os.fstat(fd)
    if version_of(found) != here.version:
        os.close(fd)
        log.warning("%s: the copy on this host has been changed, it is not read", path)
        return None
    return fd, VerifiedFile(here.directory, here.path, state_of(found))


class CopyHere:
    """A file of this host that has the bytes of a remote object.

    The object stays held as long as this is open, so that the agent says that the copy is being read. Where the kernel has
    the file itself and our descriptor was shed, it serves what the kernel asks for all the same.
    """

    served_from = From.REPLICA

    def __init__(self, fd: int, path: LakePath, held: Source, verified: VerifiedFile) -> None:
        self._fd: int | None = fd
        self._path = path
        self._held = held
        self.verified = verified

    @property
    def backing_fd(self) -> int | None:
        return self._fd

    async def read(self, offset: int, length: int, push: Push | None = None) -> Buffer:
        if self._fd is None:
            return await self._held.read(offset, length, push)
        return read_at(self._fd, offset, length, self._path)

    async def write(self, offset: int, content: Buffer) -> int:
        return await self._held.write(offset, content)

    async def sync(self) -> None:
        await self._held.sync()

    def joined(self) -> None:
        self._held.joined()

    def announce(self) -> None:
        self._held.announce()

    def shed(self) -> bool:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        return self._held.shed()

    def rest(self) -> bool:
        self.close()
        return False

    def close(self) -> None:
        self.shed()
        self._held.close()
