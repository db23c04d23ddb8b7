"""The two files of a cached object as the agent writes them. The only code that writes in the layout.

Blocking; called from threads. Digests are written with pwrite and never through a mapping: on a full disk a mapping of a
sparse file ends the process by SIGBUS where pwrite says ENOSPC.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading

import numpy as np
import numpy.typing as npt

from vfs.errors import Corrupt, ForemountError, NoSpace, NotFound, Unavailable
from vfs.extents.layout import (
    BLOCK,
    DIGEST_BYTES,
    GONE,
    HEADER_BYTES,
    SEAL_OFFSET,
    Header,
    Identity,
    Seal,
    block_count,
    data_path,
    decode_header,
    digest,
    encode_header,
    encode_seal,
    seal_of,
    sums_bytes,
    sums_path,
)
from vfs.model import ObjectKey

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_ROOM_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syncfs.argtypes = (ctypes.c_int,)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def translate(exc: OSError, subject: str) -> ForemountError:
    """Return what the system's refusal means for a store."""
    sentence = os.strerror(exc.errno or 0).lower()
    if exc.errno in _ROOM_ERRNOS:
        return NoSpace(subject, f"can't be written: {sentence}")
    if exc.errno == errno.ENOENT:
        return NotFound(subject)
    return Unavailable(subject, f"can't be used: {sentence}")


class ObjectFiles:
    """Data and digests of one object, open for reading and writing.

    Attributes:
        lock: held while blocks, digests or the seal change; never while the store's lock is awaited.
        absent: blocks that are not there; changes under `lock`.
        changes: counts what was written or dropped, so that a scrub notices that it looked at something else.
        users: operations going on, under the store's lock; the files are closed only at 0.
    """

    __slots__ = ("_data", "_sealed", "_sums", "absent", "changes", "identity", "key", "lock", "path", "size", "users")

    def __init__(self, key: ObjectKey, identity: Identity, path: str, data: int, sums: int, *, sealed: bool) -> None:
        self.key = key
        self.identity = identity
        self.size = identity.version.size
        self.path = path
        self.lock = threading.Lock()
        self.absent = block_count(self.size)
        self.changes = 0
        self.users = 0
        self._data = data
        self._sums = sums
        self._sealed = sealed

    @classmethod
    def create(cls, root: str, key: ObjectKey, identity: Identity) -> ObjectFiles:
        """Make the two files, empty of blocks. Files of the same name are unlinked first, never reused.

        Raises:
            NoSpace, Unavailable: the disk refuses.
            ValueError: the identity's names are too long for a header.
        """
        header = encode_header(Header(identity))
        path, sums = data_path(root, key), sums_path(root, key)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            remove(root, key)
            files = cls(key, identity, path, _create(path), -1, sealed=False)
            try:
                os.ftruncate(files._data, files.size)
                files._sums = _create(sums)
                os.ftruncate(files._sums, sums_bytes(files.size))
                _write(files._sums, memoryview(header), 0)
            except BaseException:
                files.close()
                remove(root, key)
                raise
        except OSError as exc:
            raise translate(exc, path) from exc
        return files

    @classmethod
    def adopt(cls, root: str, key: ObjectKey, identity: Identity, source: str, digests: bytes) -> ObjectFiles:
        """Make a file that holds the whole object its data, by renaming it, with the digests that are known of it.

        The digests come first: data without digests is nothing, and digests that are wrong show in the first read.

        Raises:
            NotFound: the source is not there, or has another length than the object.
            NoSpace, Unavailable: the disk refuses, or the source lies on another one. It stays where it was.
            ValueError: as `create`.
        """
        assert len(digests) == DIGEST_BYTES * block_count(identity.version.size)
        header = encode_header(Header(identity))
        path, sums = data_path(root, key), sums_path(root, key)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            remove(root, key)
            if os.stat(source, follow_symlinks=False).st_size != identity.version.size:
                raise NotFound(source)
            written = _create(sums)
            try:
                _write(written, memoryview(header + digests), 0)
            finally:
                os.close(written)
            try:
                os.rename(source, path)
            except OSError:
                remove(root, key)
                raise
        except OSError as exc:
            raise translate(exc, path) from exc
        return cls.open(root, key)

    @classmethod
    def open(cls, root: str, key: ObjectKey) -> ObjectFiles:
        """Open files that are there.

        Raises:
            NotFound: one of them is not.
            Corrupt: header and lengths don't fit together.
            NoSpace, Unavailable: the system refuses.
        """
        path, sums = data_path(root, key), sums_path(root, key)
        opened: list[int] = []
        try:
            opened += [os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)]
            opened += [os.open(sums, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)]
            header = decode_header(os.pread(opened[1], HEADER_BYTES, 0), sums)
            size = header.identity.version.size
            stat = os.fstat(opened[0])
            if stat.st_size != size or os.fstat(opened[1]).st_size != sums_bytes(size):
                raise Corrupt(path, "has another length than its header says")
            if header.seal is not None and header.seal != seal_of(stat):
                _write(opened[1], memoryview(encode_seal(None)), SEAL_OFFSET)
        except BaseException as exc:
            for fd in opened:
                os.close(fd)
            if isinstance(exc, OSError):
                raise translate(exc, path) from exc
            raise
        return cls(key, header.identity, path, opened[0], opened[1], sealed=header.seal == seal_of(stat))

    @property
    def sealed(self) -> bool:
        """Whether the object was complete and verified and nobody has touched it since."""
        return self._sealed

    def digests(self, first: int, count: int) -> npt.NDArray[np.uint64]:
        """Return the digests of `count` blocks from `first`, read-only; 0 where a block is absent.

        Raises:
            Corrupt: the digest file was truncated.
            Unavailable: it can't be read.
        """
        try:
            raw = os.pread(self._sums, count * DIGEST_BYTES, HEADER_BYTES + first * DIGEST_BYTES)
        except OSError as exc:
            raise translate(exc, self.path) from exc
        if len(raw) != count * DIGEST_BYTES:
            raise Corrupt(self.path, "has a truncated digest file")
        return np.frombuffer(raw, np.uint64)

    def segments(self, blocks: int) -> list[int]:
        """Return the segments of `blocks` blocks that hold something, and count the absent blocks anew."""
        digests = self.all_digests()
        self.absent = len(digests) - int(np.count_nonzero(digests))
        if self.absent == len(digests):
            return []
        if len(digests) <= blocks:
            return [0]
        there = np.flatnonzero(digests)
        found: list[int] = np.unique(there // blocks).tolist()
        return found

    def all_digests(self) -> npt.NDArray[np.uint64]:
        """Return the digests of all blocks."""
        return self.digests(0, block_count(self.size))

    def write(self, first: int, body: memoryview) -> None:
        """Write whole blocks from `first` on: their bytes, then their digests. The lock is held by the caller.

        Raises:
            NoSpace, Unavailable: the disk refuses. What was there before of these blocks may be broken, not wrong.
        """
        assert first * BLOCK + len(body) <= self.size and (not len(body) % BLOCK or first * BLOCK + len(body) == self.size)
        sums = b"".join(digest(body[at : at + BLOCK]).to_bytes(8, "little") for at in range(0, len(body), BLOCK))
        self.changes += 1
        new = len(sums) // DIGEST_BYTES - np.count_nonzero(self.digests(first, len(sums) // DIGEST_BYTES))
        try:
            self._unseal()
            _write(self._data, body, first * BLOCK)
            _write(self._sums, memoryview(sums), HEADER_BYTES + first * DIGEST_BYTES)
        except OSError as exc:
            raise translate(exc, self.path) from exc
        self.absent -= int(new)

    def drop(self, first: int, count: int, *, punch: bool) -> None:
        """Make blocks absent, and free their room with `punch`. The lock is held by the caller.

        Raises:
            NoSpace, Unavailable: the disk or the file system can't do it; the blocks may be absent nevertheless.
        """
        self.changes += 1
        there = int(np.count_nonzero(self.digests(first, count)))
        try:
            self._unseal()
            _write(self._sums, memoryview(bytes(count * DIGEST_BYTES)), HEADER_BYTES + first * DIGEST_BYTES)
            self.absent += there
            if punch and _libc.fallocate(self._data, _PUNCH_HOLE_KEEP_SIZE, first * BLOCK, count * BLOCK):
                raise OSError(ctypes.get_errno(), "fallocate")
        except OSError as exc:
            raise translate(exc, self.path) from exc

    def broken_among(self, first: int, count: int, scratch: memoryview) -> list[int]:
        """Return the blocks in `[first, first + count)` that are there and don't match their digest.

        Args:
            scratch: `count` blocks large.
        """
        digests = self.digests(first, count)
        span = min((first + count) * BLOCK, self.size) - first * BLOCK
        whole = self._fill(scratch[:span], first * BLOCK)
        return [
            first + at
            for at in range(count)
            if digests[at] and not (whole[at] and digest(scratch[at * BLOCK : min((at + 1) * BLOCK, span)]) == digests[at])
        ]

    def sync(self) -> None:
        """Bring the object's bytes to the disk."""
        try:
            os.fdatasync(self._data)
        except OSError as exc:
            raise translate(exc, self.path) from exc

    def have_their_names(self) -> bool:
        """Return whether both files are what lies under their names; another in the place of one is what readers open."""
        for fd, path in ((self._data, self.path), (self._sums, self.path.removesuffix(".data") + ".sums")):
            try:
                if not os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                    return False
            except FileNotFoundError:
                return False
            except OSError as exc:
                raise translate(exc, path) from exc
        return True

    def seal_now(self) -> Seal:
        """Return the seal for the data file as it is now."""
        return seal_of(os.fstat(self._data))

    def seal(self, seal: Seal) -> None:
        """Write a seal. The lock is held by the caller, who has verified all blocks since it took the seal."""
        try:
            _write(self._sums, memoryview(encode_seal(seal)), SEAL_OFFSET)
        except OSError as exc:
            raise translate(exc, self.path) from exc
        self._sealed = True

    def used(self) -> int:
        """Return the bytes that both files take on the disk."""
        return (os.fstat(self._data).st_blocks + os.fstat(self._sums).st_blocks) * 512

    def touch(self) -> None:
        """Date the digest file now: the order of use survives a restart. The data file's dates belong to the seal."""
        os.utime(self._sums)

    def close(self) -> None:
        """Close both files."""
        for fd in (self._data, self._sums):
            if fd >= 0:
                os.close(fd)

    def _unseal(self) -> None:
        if self._sealed:
            _write(self._sums, memoryview(encode_seal(None)), SEAL_OFFSET)
            self._sealed = False

    def _fill(self, view: memoryview, start: int) -> list[bool]:
        """Read a range; returns for each of its blocks whether all of it could be read."""
        whole = []
        for at in range(0, len(view), BLOCK):
            part = view[at : at + BLOCK]
            try:
                whole.append(os.preadv(self._data, [part], start + at) == len(part))
            except OSError:
                whole.append(False)
        return whole


def used_on_disk(root: str, key: ObjectKey) -> tuple[int, int] | None:
    """Return (bytes that the object's files take, when it was last used in ns), or None where one of them is missing."""
    try:
        sums = os.stat(sums_path(root, key), follow_symlinks=False)
        data = os.stat(data_path(root, key), follow_symlinks=False)
    except OSError:
        return None
    return (sums.st_blocks + data.st_blocks) * 512, sums.st_mtime_ns


def sync_all(root: str) -> None:
    """Bring everything on the store's file system to the disk: cheaper than many files one by one.

    Raises:
        Unavailable: the disk fails.
    """
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)
    except OSError as exc:
        raise translate(exc, root) from exc


def remove(root: str, key: ObjectKey) -> None:
    """Unlink what there is of the object's files, the digests first: data without digests is nothing.

    Raises:
        OSError: as the system says, but for files that are not there.
    """
    for path in (sums_path(root, key), data_path(root, key)):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def take_away(root: str, key: ObjectKey, trash: str, number: int) -> list[str]:
    """Mark the object as gone and rename its files into `trash`; returns their paths there.

    The names are free at once, and unlinking a large file, which can take long, needs no lock.
    """
    taken: list[str] = []
    for source in (sums_path(root, key), data_path(root, key)):
        target = f"{trash}/{number}.{source.rpartition('.')[2]}"
        try:
            if not taken:
                _mark_gone(source)
            os.rename(source, target)
        except FileNotFoundError:
            continue
        taken.append(target)
    return taken


def _mark_gone(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, GONE, 0)
    finally:
        os.close(fd)


def _create(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _write(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
