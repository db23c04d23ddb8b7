"""The store of cached objects on one file system: one writer, a size that is never exceeded, nothing to repair.

Blocking and thread-safe: the agent calls it from a thread pool (`fetch.py`); `missing`, `hold`, `release` and `root` take
microseconds and may be called on the loop. The fs worker reads the same files by `reader.py` without asking.

Layout of a directory: `lock` (flock, holds the pid), `v<FORMAT>/objects/…`, `v<FORMAT>/trash/…` (renamed, to be unlinked)
and `v<FORMAT>/usage`: a number that usage has never exceeded, so that the cap holds before a million leftovers are counted.
Locks and threads: `shelf.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vfs.errors import Corrupt, NoSpace, NotFound, Unavailable
from vfs.extents.books import Keep
from vfs.extents.directory import take_lock
from vfs.extents.files import ObjectFiles, sync_all, translate
from vfs.extents.layout import BLOCK, Identity, block_count, block_length, blocks_of
from vfs.extents.reader import CachedObject
from vfs.extents.shelf import SEGMENT_BLOCKS, Shelf, unlink_all
from vfs.model import ObjectKey

SCRUB_BLOCKS = 16
"""Read at a time when an object is verified: 1 MiB, which a core checks from its own cache."""
HANDLES_MAX = 64
"""Objects that stay open in the agent, two descriptors each: half of the smallest limit that we support, 256."""
_SLACK_BYTES = 8192
"""What a write may take beside its blocks: a page of digests and an extent tree block."""


class Stored(msgspec.Struct, frozen=True):
    """One object of a store.

    Attributes:
        present: bytes that are there.
        used: bytes on the disk, digests included.
    """

    key: ObjectKey
    identity: Identity
    present: int
    used: int
    sealed: bool
    held: bool


class Totals(msgspec.Struct, frozen=True):
    """A store as a whole.

    Attributes:
        used: bytes on the disk; while `counting`, of what was looked at so far.
        inodes_free: None where the file system does not say (it reports no inodes at all, as Btrfs does).
        disk_free: bytes that the file system has left for us.
        counting: leftovers of an earlier run are still being counted.
    """

    used: int
    cap: int
    objects: int
    held: int
    disk_free: int
    inodes_free: int | None
    counting: bool


class Store:
    """Objects in one directory. Made by `open`.

    Attributes:
        root: where the objects lie, for `CachedObject.open`.
    """

    def __init__(self, directory: str, shelf: Shelf, lock_fd: int) -> None:
        self.directory = directory
        self.root = shelf.root
        self.counters = shelf.counters
        self._shelf = shelf
        self._lock_fd = lock_fd

    @classmethod
    def open(
        cls,
        directory: str,
        cap_bytes: int,
        *,
        handles_max: int = HANDLES_MAX,
        keeps_held: bool = False,
        keep_of: Callable[[Identity], Keep] = lambda identity: "normal",
    ) -> Store:
        """Open the store in `directory`, making it where it is not there. Ready at once, whatever an earlier run has left.

        Args:
            keeps_held, keep_of: see `Shelf`.

        Raises:
            Busy: another process has it open.
            NoSpace, Unavailable: the directory can't be made or used.
        """
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            lock_fd = take_lock(directory)
        except OSError as exc:
            raise translate(exc, directory) from exc
        try:
            shelf = Shelf(directory, cap_bytes, handles_max=handles_max, keeps_held=keeps_held, keep_of=keep_of)
        except OSError as exc:
            os.close(lock_fd)
            raise translate(exc, directory) from exc
        return cls(directory, shelf, lock_fd)

    def close(self) -> None:
        """Close all files and let another process have the store. What is in it stays."""
        self._shelf.close()
        os.close(self._lock_fd)

    def close_and_remove(self) -> None:
        """Close the store and remove its directory: for a spill, whose bytes are memory that nobody needs any more.

        Who reads its objects finds them gone. What can't be removed stays.
        """
        self._shelf.close()
        shutil.rmtree(self.directory, ignore_errors=True)  # still locked: nobody opens what is being removed
        os.close(self._lock_fd)

    def wait_counted(self, timeout_s: float) -> bool:
        """Return whether all leftovers are counted, after waiting for it."""
        return self._shelf.counted.wait(timeout_s)

    # Objects

    def prepare(self, identity: Identity) -> ObjectKey:
        """Make the object's files, unless they are there, and return its key.

        Raises:
            NoSpace, Unavailable: the disk refuses.
            ValueError: its names are too long to be cached.
        """
        key = identity.key
        with self._shelf.names:
            if self._shelf.touch(key):
                self._shelf.classify(key, identity)
                return key
            self._shelf.enter(self._shelf.adopt(key, identity) or self._shelf.create(key, identity))
        self._shelf.classify(key, identity)
        self._shelf.close_surplus()
        if identity.version.size == 0:
            self.seal(key)
        return key

    def adopt(self, identity: Identity, source: str, digests: bytes) -> ObjectKey | None:
        """Make a file that holds the whole object its data, without copying it; returns the object's key.

        None: something of the object is here already, or the file is not of its length; it stays where it was then.

        Args:
            source: nobody may write it any more. It is renamed.
            digests: of its blocks, 8 bytes little-endian each.

        Raises:
            NoSpace: there is no room for it below the cap.
            Unavailable: the disk fails, or the file lies on another one.
            ValueError: its names are too long to be cached.
        """
        key = identity.key
        if identity.version.size > self._shelf.books.cap:  # all others would go in vain
            raise NoSpace(source, f"is larger than the cap of {self._shelf.books.cap}")
        with self._shelf.room(identity.version.size + len(digests) + _SLACK_BYTES), self._shelf.names:
            with self._shelf.lock:
                if key in self._shelf.books:
                    return None
            try:
                self._shelf.enter(ObjectFiles.adopt(self.root, key, identity, source, digests))
            except NotFound:
                return None
        self._shelf.close_surplus()
        return key

    def renew(self, identity: Identity) -> ObjectKey:
        """Make the object's files anew, empty of blocks, whatever is there: its digest file is of no use.

        Who reads the old files finds them gone; who holds the object goes on holding it.

        Raises:
            NoSpace, Unavailable: the disk refuses; the object is not here then, unless somebody holds it.
        """
        key = identity.key
        with self._shelf.names:
            with self._shelf.lock:
                old = self._shelf.files.pop(key, None)
            if old is not None and not old.users:
                old.close()
            taken = self._shelf.take_away(key)
            self._shelf.enter(self._shelf.create(key, identity))
            self.counters.recreated += 1
        unlink_all(taken)
        self._shelf.close_surplus()
        return key

    def identity(self, key: ObjectKey) -> Identity | None:
        """Return which object it is, from its own header; None where it is not here or of no use."""
        try:
            with self._shelf.opened(key) as files:
                return files.identity
        except (NotFound, Corrupt):
            return None

    def hold(self, key: ObjectKey) -> bool:
        """Keep the object from being evicted until `release`; False: it is not here. Calls are counted."""
        with self._shelf.lock:
            return self._shelf.books.hold(key) is not None

    def release(self, key: ObjectKey) -> None:
        """Undo one `hold`. After the last one the object is the most recently used."""
        with self._shelf.lock:
            last = self._shelf.books.release(key)
            files = self._shelf.files.get(key)
        if last and files is not None:
            with contextlib.suppress(OSError):  # closed meanwhile: the order after a restart is a little off
                files.touch()

    def evict(self, key: ObjectKey) -> bool:
        """Drop the object; False: it is not here, or somebody holds it."""
        return self._shelf.discard(key) is not None

    def objects(self) -> Iterator[Stored]:
        """Yield what is here, the next victim first; objects that come or go meanwhile may be left out."""
        with self._shelf.lock:
            keys = list(self._shelf.books)
        for key in keys:
            try:
                yield self.stored(key)
            except (NotFound, Corrupt, Unavailable):
                continue

    def stored(self, key: ObjectKey) -> Stored:
        """Return the facts about one object.

        Raises:
            NotFound: it is not here.
            Corrupt, Unavailable: its files can't be read.
        """
        with self._shelf.opened(key) as files:
            there = np.flatnonzero(files.all_digests())
            present = len(there) * BLOCK
            if len(there):
                present -= BLOCK - block_length(int(there[-1]), files.size)
            with self._shelf.lock:
                held = self._shelf.books.held.get(key)
                used = self._shelf.books.record(key)
                others = (held.holds if held else 0) - 1  # one hold is ours, by `_opened`
            return Stored(key, files.identity, present, used.used if used else 0, files.sealed, others > 0)

    def totals(self) -> Totals:
        """Return the figures of the store as a whole."""
        try:
            disk = os.statvfs(self.root)
        except OSError as exc:
            raise translate(exc, self.root) from exc
        with self._shelf.lock:
            return Totals(
                used=self._shelf.books.used,
                cap=self._shelf.books.cap,
                objects=len(self._shelf.books),
                held=len(self._shelf.books.held),
                disk_free=disk.f_bavail * disk.f_frsize,
                inodes_free=disk.f_favail if disk.f_files else None,
                counting=not self._shelf.counted.is_set(),
            )

    # Blocks

    def missing(self, key: ObjectKey, offset: int, length: int) -> list[range]:
        """Return the runs of absent blocks among those that the range touches, in order.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its digests can't be read.
        """
        with self._shelf.opened(key) as files:
            end = min(offset + length, files.size)
            if end <= offset:
                return []
            blocks = blocks_of(offset, end - offset)
            return _absent_runs(files.digests(blocks.start, len(blocks)), blocks.start)

    def write_blocks(self, key: ObjectKey, first: int, body: memoryview | bytes) -> None:
        """Write whole blocks (the object's last may be short) from block `first` on; readers see them when this returns.

        Raises:
            NotFound: the object is not here.
            NoSpace: no room on the disk, or none below the cap that could be made. Blocks before may have been written.
            Unavailable: the disk fails.
        """
        view = memoryview(body)
        with self._shelf.opened(key) as files, self._shelf.room(len(view) + _SLACK_BYTES):
            try:
                self._write(files, first, view)
            except NoSpace:
                if not self._shelf.make_room(len(view)):
                    raise
                self._write(files, first, view)

    def write_block(self, key: ObjectKey, index: int, body: memoryview | bytes) -> None:
        """Write one block: see `write_blocks`."""
        self.write_blocks(key, index, body)

    def is_found(self, key: ObjectKey) -> bool:
        """Return whether who opens the object by its name finds the files that are open here, and can use them.

        Raises:
            Unavailable: the system refuses.
        """
        try:
            CachedObject.open(self.root, key).close()
            with self._shelf.opened(key) as files:
                return files.have_their_names()
        except (NotFound, Corrupt):
            return False

    def needs_seal(self, key: ObjectKey) -> bool:
        """Return whether every block is there, but nobody has verified them all: `seal` does.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its files can't be read.
        """
        with self._shelf.opened(key) as files:
            return files.absent == 0 and not files.sealed

    def drop_if_broken(self, key: ObjectKey, index: int) -> bool:
        """Make a block absent if it does not match its digest; returns whether it was so.

        For a reader's complaint: of several that saw the same broken block the last may come when it is right again.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        with contextlib.suppress(NotFound), self._shelf.opened(key) as files:
            if index < block_count(files.size):
                return bool(self._drop_if_still_broken(files, [index], memoryview(bytearray(BLOCK))))
        return False

    def drop_block(self, key: ObjectKey, index: int) -> None:
        """Make a block absent ; what is not here is absent already.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        with contextlib.suppress(NotFound), self._shelf.opened(key) as files:
            if index < block_count(files.size):
                self._drop(files, [index])

    def read_blocks(self, key: ObjectKey, first: int, count: int, scratch: memoryview) -> int:
        """Read blocks into `scratch` as long as they are there and right; returns how many, from `first` on.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its digests can't be read.
        """
        with self._shelf.opened(key) as files:
            bad = files.broken_among(first, count, scratch)
            good = (bad[0] if bad else first + count) - first
            absent = np.flatnonzero(files.digests(first, count) == 0)
            return min(good, int(absent[0])) if len(absent) else good

    def verify(self, key: ObjectKey) -> list[int]:
        """Check every block that is there; drop, count and return those that don't match.

        Raises:
            NotFound: the object is not here.
            Corrupt, NoSpace, Unavailable: its files can't be read or written.
        """
        with self._shelf.opened(key) as files:
            broken: list[int] = []
            blocks = block_count(files.size)
            scratch = memoryview(bytearray(min(SCRUB_BLOCKS * BLOCK, files.size)))
            for first in range(0, blocks, SCRUB_BLOCKS):
                count = min(SCRUB_BLOCKS, blocks - first)
                suspects = files.broken_among(first, count, scratch)
                if suspects:
                    broken += self._drop_if_still_broken(files, suspects, scratch)
            return broken

    def seal(self, key: ObjectKey) -> bool:
        """Verify the object and seal it for passthrough; False: a block is absent or was broken.

        The data is brought to the disk first (fdatasync): after a power failure ext4 and XFS may keep dates of the file that
        match the seal and lose its last blocks, and in passthrough nobody checks. The seal itself is not synced: losing it
        costs another verification. Blocks are read back through the page cache: what is guarded against is our own errors
        and blocks of earlier runs; reading a disk behind its cache again would double the work and empty the cache.

        Raises:
            NotFound: the object is not here.
            Corrupt, NoSpace, Unavailable: its files can't be read or written.
        """
        with self._shelf.opened(key) as files:
            if files.sealed:
                return True
            changes = files.changes
            if files.absent:
                return False
            files.sync()
            return self._seal_if_right(files, changes)

    def seal_many(self, keys: Sequence[ObjectKey]) -> None:
        """Seal those of many objects that are complete and right: as `seal`, with one sync of the file system for all.

        Raises:
            Unavailable: the disk fails. Objects that can't be sealed for a reason of their own are left as they are.
        """
        changes: dict[ObjectKey, int] = {}
        for key in keys:
            with contextlib.suppress(NotFound, Corrupt, NoSpace, Unavailable), self._shelf.opened(key) as files:
                if not files.sealed and not files.absent:
                    changes[key] = files.changes
        sync_all(self.root)
        for key, mark in changes.items():
            with contextlib.suppress(NotFound, Corrupt, NoSpace, Unavailable), self._shelf.opened(key) as files:
                self._seal_if_right(files, mark)

    def _seal_if_right(self, files: ObjectFiles, changes: int) -> bool:
        """Verify and seal an object that was synced when it had undergone `changes` changes.

        The seal is for the file as it was before that: what anybody changes meanwhile may be verified already.
        """
        before = files.seal_now()
        if self.verify(files.key):
            return False
        with files.lock:
            if files.changes != changes or files.seal_now() != before or not files.all_digests().all():
                return False
            with self._shelf.lock:
                record = self._shelf.books.record(files.key)
                assert record is not None
                record.sealed = True
                self.counters.sealed += 1
            files.seal(before)
        return True

    # Inside

    def _write(self, files: ObjectFiles, first: int, view: memoryview) -> None:
        blocks = -(-len(view) // BLOCK)
        with files.lock:
            with self._shelf.lock:
                self._shelf.books.wrote(files.key, range(first // SEGMENT_BLOCKS, (first + blocks - 1) // SEGMENT_BLOCKS + 1))
            try:
                files.write(first, view)
            finally:
                used = files.used()
                with self._shelf.lock:
                    self._shelf.books.resize(files.key, used)
                    self.counters.blocks_written += blocks
                    self._shelf.note_growth()

    def _drop(self, files: ObjectFiles, indexes: list[int]) -> None:
        """Make blocks absent. Their bytes stay until they are written again: a hole would show in passthrough."""
        with files.lock:
            for index in indexes:
                files.drop(index, 1, punch=False)
            with self._shelf.lock:
                self.counters.blocks_broken += len(indexes)

    def _drop_if_still_broken(self, files: ObjectFiles, suspects: list[int], scratch: memoryview) -> list[int]:
        """Drop those that are broken also when nobody writes; a block that was being written looks broken."""
        with files.lock:
            broken = [index for index in suspects if files.broken_among(index, 1, scratch)]
        if broken:
            self._drop(files, broken)
        return broken


def _absent_runs(digests: npt.NDArray[np.uint64], first: int) -> list[range]:
    """Return the runs of zeros, as blocks of which `first` is the first."""
    if digests.all():
        return []
    edges = np.flatnonzero(np.diff(digests == 0, prepend=False, append=False)) + first
    return [range(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
