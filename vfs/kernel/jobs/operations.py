"""The kernel's requests for `.jobs` as calls to `SampleFiles`. Translates, decides nothing.

OPEN is answered with ENOSYS: the kernel then opens files by itself for good, without OPEN, FLUSH and RELEASE. A read comes
with its inode's number as handle (`_passthrough.c`). Writes never come here, for it is mounted read-only.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

import pyfuse3
from pyfuse3 import EntryAttributes, FUSEError, ReaddirToken, RequestContext

from vfs.filesystem.request import is_resent
from vfs.filesystem.samples import SampleFiles
from vfs.filesystem.tree import Buffer
from vfs.kernel.account import Account
from vfs.kernel.guard import guarded, requests
from vfs.kernel.jobs.push import PRIMER
from vfs.kernel.operations import entry_of
from vfs.model import Ino

log = logging.getLogger(__name__)


def _is_primer(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return PRIMER.encode() in file.read(4096).split(b"\0")
    except OSError:
        return False


class JobOperations(pyfuse3.Operations):
    """What pyfuse3 calls. Handles of files are inode numbers.

    Args:
        opens: answer OPEN, since reads can't be told apart without it (the extension is missing).
        primer: tells the process that walks for us: it is no reader.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, files: SampleFiles, account: Account, *, opens: bool, primer: Callable[[], int]) -> None:
        super().__init__()
        self._files = files
        self._opens = opens
        self._primer = primer
        self.account = account

    def _is_reader(self, ctx: RequestContext) -> bool:
        if ctx.pid == self._primer():
            return False
        return not (is_resent() and _is_primer(ctx.pid))  # of the worker before us, which was killed

    @guarded
    async def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._files.lookup(Ino(parent), name, is_reader=self._is_reader(ctx)))

    @guarded
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._files.attributes(Ino(inode)))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        try:
            requests["forgotten"] += len(inode_list)
            self._files.forget([(Ino(ino), count) for ino, count in inode_list])
        except Exception:
            log.exception("forget: bug; nobody waits for an answer")

    @guarded
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        return await self._files.open_directory(Ino(inode), is_reader=self._is_reader(ctx))

    @guarded
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        children = await self._files.read_directory(fh, start_id)
        # Atomic: no await until every entry that the kernel is told of is in the inode table.
        with self._files.inodes.batch():
            for child, attributes in self._files.remember_children(fh, children):
                if not pyfuse3.readdir_reply(token, child.name, entry_of(attributes), child.position):
                    self._files.forget([(attributes.ino, 1)])
                    break

    @guarded
    async def releasedir(self, fh: int) -> None:
        self._files.release_directory(fh)

    @guarded
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> pyfuse3.FileInfo:
        if not self._opens:
            raise FUSEError(errno.ENOSYS)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @guarded
    async def release(self, fh: int) -> None:
        return

    @guarded
    async def read(self, fh: int, off: int, size: int) -> Buffer:  # type: ignore[override]  # any buffer is taken
        return await self._files.read(Ino(fh), off, size)

    @guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        reply = pyfuse3.StatvfsData()
        reply.f_namemax, reply.f_bsize, reply.f_frsize = 255, 4096, 4096
        for name in ("f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(reply, name, 0)
        return reply

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        value = await self._files.get_xattr(Ino(inode), name)
        if value is None:
            raise FUSEError(errno.ENODATA)
        return value

    @guarded
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        return self._files.list_xattrs(Ino(inode))

    @guarded
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        return True  # the kernel checks (default_permissions)
