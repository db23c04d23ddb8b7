"""The kernel's requests as calls to the file system. Translates, decides nothing."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Sequence
from typing import NoReturn

import pyfuse3
from pyfuse3 import EntryAttributes, FUSEError, ReaddirToken, RequestContext, SetattrFields

from vfs.errors import ForemountError
from vfs.filesystem.filesystem import Attributes, FileSystem
from vfs.filesystem.tree import Buffer, Changes
from vfs.kernel.account import Account
from vfs.kernel.guard import guarded
from vfs.kernel.passthrough import KernelPassthrough
from vfs.kernel.trace import Recorder
from vfs.model import Ino
from vfs.usage import served_from

log = logging.getLogger(__name__)
_BLOCK = 512
_PREFERRED_IO_BYTES = 128 << 10
"""st_blksize: the buffer of Python's open(). Larger ones only make many small reads copy more."""


def _never() -> NoReturn:
    """Say that nothing has extended attributes, after which the kernel doesn't ask again."""
    raise FUSEError(errno.ENOSYS)


class Operations(pyfuse3.Operations):
    """What pyfuse3 calls. Handles are inode numbers."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, filesystem: FileSystem, passthrough: KernelPassthrough, recorder: Recorder, account: Account) -> None:
        super().__init__()
        self._fs = filesystem
        self._recorder = recorder
        self._passthrough = passthrough
        self.account = account
        account.path_of = self._path

    def _path(self, arguments: Sequence[object]) -> str:
        """Return which lake path a request is about, for people: an inode, or a name in one.

        Never raises: what is only shown may not cost the request its answer.
        """
        ino, name = (*arguments, None, None)[:2]
        try:
            if not isinstance(ino, int):
                return ""
            path = self._fs.inodes.path(Ino(ino), *([name] if isinstance(name, bytes) else []))
            return "/" + os.fsencode(path).decode(errors="replace")
        except ForemountError:
            return ""
        except Exception:
            log.exception("bug while a path was looked up for the books")
            return ""

    @guarded
    async def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.lookup(Ino(parent), name))

    @guarded
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.attributes(Ino(inode)))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        try:
            self._fs.forget([(Ino(ino), count) for ino, count in inode_list])
        except Exception:
            log.exception("forget: bug; nobody waits for an answer")

    @guarded
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return await self._fs.readlink(Ino(inode))

    @guarded
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        await self._fs.open_directory(Ino(inode))
        return inode

    @guarded
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        children = await self._fs.read_directory(Ino(fh), start_id)
        # Atomic: no await until every entry that the kernel is told of is in the inode table.
        with self._fs.inodes.batch():
            for child, attributes in self._fs.remember_children(Ino(fh), children):
                if not pyfuse3.readdir_reply(token, child.name, entry_of(attributes), child.position):
                    self._fs.forget([(attributes.ino, 1)])
                    break

    @guarded
    async def releasedir(self, fh: int) -> None:
        self._fs.release_directory(Ino(fh))

    @guarded
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> pyfuse3.FileInfo:
        opens = self._recorder if self._recorder.recording else self._fs
        opened = await opens.open(Ino(inode), flags)
        served_from(opened.source)
        self._passthrough.arm(inode, opened.backing, flush=opened.flush)
        return pyfuse3.FileInfo(fh=inode, keep_cache=opened.keep_cache)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> Buffer:  # type: ignore[override]  # any buffer is taken
        if self._recorder.recording:
            return await self._recorder.read(Ino(fh), off, size)
        return await self._fs.read(Ino(fh), off, size)

    @guarded
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self._fs.write(Ino(fh), off, buf)

    @guarded
    async def flush(self, fh: int) -> None:
        await self._fs.flush(Ino(fh))

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._fs.sync(Ino(fh))

    @guarded
    async def release(self, fh: int) -> None:
        self._fs.release(Ino(fh))
        if self._recorder.recording:
            self._recorder.release(Ino(fh))

    @guarded
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._fs.sync_directory(Ino(fh))

    @guarded
    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[pyfuse3.FileInfo, EntryAttributes]:
        # The kernel then uses mknod and open for good, and only OPEN can be answered with passthrough.
        raise FUSEError(errno.ENOSYS)

    @guarded
    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.make_node(Ino(parent), name, mode, (ctx.uid, ctx.gid)))

    @guarded
    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.make_directory(Ino(parent), name, mode, (ctx.uid, ctx.gid)))

    @guarded
    async def symlink(self, parent: int, name: bytes, target: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.make_symlink(Ino(parent), name, target, (ctx.uid, ctx.gid)))

    @guarded
    async def link(self, inode: int, new_parent: int, new_name: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._fs.make_link(Ino(inode), Ino(new_parent), new_name))

    @guarded
    async def unlink(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        await self._fs.remove(Ino(parent), name, directory=False)

    @guarded
    async def rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        await self._fs.remove(Ino(parent), name, directory=True)

    @guarded
    async def rename(
        self, parent_old: int, name_old: bytes, parent_new: int, name_new: bytes, flags: int, ctx: RequestContext
    ) -> None:
        await self._fs.rename(Ino(parent_old), name_old, Ino(parent_new), name_new, flags)

    @guarded
    async def setattr(
        self, inode: int, attr: EntryAttributes, fields: SetattrFields, fh: int | None, ctx: RequestContext
    ) -> EntryAttributes:
        changes = Changes(
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return entry_of(await self._fs.change(Ino(inode), changes))

    @guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        found, reply = self._fs.statfs(Ino(pyfuse3.ROOT_INODE)), pyfuse3.StatvfsData()
        reply.f_namemax = 255
        if found is None:  # an origin does not say: an exabyte, all of it "free", so that nobody refuses to start
            reply.f_bsize = reply.f_frsize = 1 << 20
            reply.f_blocks = reply.f_bfree = reply.f_bavail = 1 << 40
            reply.f_files = reply.f_ffree = reply.f_favail = 1 << 40
            return reply
        for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(reply, name, getattr(found, name))
        return reply

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        value = await self._fs.get_xattr(Ino(inode), name) if self._fs.has_xattrs else _never()
        if value is None:
            raise FUSEError(errno.ENODATA)
        return value

    @guarded
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        return await self._fs.list_xattrs(Ino(inode)) if self._fs.has_xattrs else _never()

    @guarded
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        await self._fs.set_xattr(Ino(inode), name, value)

    @guarded
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        if await self._fs.get_xattr(Ino(inode), name) is None:
            raise FUSEError(errno.ENODATA)
        await self._fs.set_xattr(Ino(inode), name, None)

    @guarded
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        return True  # the kernel checks (default_permissions)


def entry_of(attributes: Attributes) -> EntryAttributes:
    """Return what the kernel is told about an inode."""
    node, entry = attributes.node, EntryAttributes()
    entry.st_ino = attributes.ino
    entry.generation = 0
    entry.entry_timeout = entry.attr_timeout = attributes.ttl_s
    entry.st_mode = node.mode
    entry.st_nlink = node.nlink
    entry.st_uid, entry.st_gid = node.uid, node.gid
    entry.st_size = len(os.fsencode(node.target)) if stat.S_ISLNK(node.mode) else node.version.size
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = node.version.mtime_ns
    entry.st_blksize = _PREFERRED_IO_BYTES
    entry.st_blocks = -(-node.version.size // _BLOCK) if node.blocks is None else node.blocks
    return entry
