"""The store of cached objects on one file system: one writer, a size that is never exceeded, nothing to repair.

Blocking and thread-safe: the agent calls it from a thread pool (`fetch.py`); `missing`, `hold`, `release` and `root` take
microseconds and may be called on the loop. The fs worker reads the same files by `reader.py` without asking.

Locks, in this order: `_names` while files get or lose their names; an object's own lock while its blocks change; `_lock`
around the books, in which nothing blocks.

Layout of a directory: `lock` (flock, holds the pid), `v<FORMAT>/objects/…`, `v<FORMAT>/trash/…` (renamed, to be unlinked)
and `v<FORMAT>/usage`: a number that usage has never exceeded, so that the cap holds before a million leftovers are counted.
A thread of its own counts them, discards other formats' directories and empties the trash.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vfs.errors import Corrupt, NoSpace, NotFound, Unavailable
from vfs.extents.books import Books
from vfs.extents.counters import StoreCounters
from vfs.extents.directory import discard_other_formats, empty, leftovers, read_number, take_lock, write_number
from vfs.extents.files import ObjectFiles, remove, sync_all, take_away, translate, used_on_disk
from vfs.extents.layout import BLOCK, FORMAT, Identity, block_count, block_length, blocks_of
from vfs.model import ObjectKey, object_key

logger = logging.getLogger(__name__)

SEGMENT_BLOCKS = 64
"""What goes at a time of an open object: 4 MiB, so that a hole costs one system call for 64 fetched blocks."""
SCRUB_BLOCKS = 16
"""Read at a time when an object is verified: 1 MiB, which a core checks from its own cache."""
HANDLES_MAX = 64
"""Objects that stay open in the agent, two descriptors each: half of the smallest limit that we support, 256."""
_SLACK_BYTES = 8192
"""What a write may take beside its blocks: a page of digests and an extent tree block."""
_USAGE_STEP = 64
"""The recorded bound of usage grows in 1/64 of the cap: 64 tiny writes while a store fills."""


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

    Invariants: at most `HANDLES_MAX` objects are open, but for those in use at this moment; a key is in the books exactly
    if its files have their names, except while `_names` is held and for leftovers that are not counted yet.
    """

    def __init__(self, directory: str, cap_bytes: int, lock_fd: int, *, handles_max: int) -> None:
        self.directory = directory
        self.root = os.path.join(directory, f"v{FORMAT}")
        self.counters = StoreCounters()
        self._lock_fd = lock_fd
        self._names = threading.Lock()
        self._lock = threading.Lock()
        self._files: OrderedDict[ObjectKey, ObjectFiles] = OrderedDict()
        self._handles_max = handles_max
        self._usage_noted = read_number(os.path.join(self.root, "usage"))
        self._books = Books(cap_bytes, assumed=min(self._usage_noted, cap_bytes))
        self._trash_numbers = itertools.count(1)
        self._closing = threading.Event()
        self._counted = threading.Event()
        self._counter = threading.Thread(target=self._count_leftovers, name="store-count", daemon=True)

    @classmethod
    def open(cls, directory: str, cap_bytes: int, *, handles_max: int = HANDLES_MAX) -> Store:
        """Open the store in `directory`, making it where it is not there. Ready at once, whatever an earlier run has left.

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
            store = cls(directory, cap_bytes, lock_fd, handles_max=handles_max)
            os.makedirs(os.path.join(store.root, "objects"), mode=0o700, exist_ok=True)
            os.makedirs(os.path.join(store.root, "trash"), mode=0o700, exist_ok=True)
        except OSError as exc:
            os.close(lock_fd)
            raise translate(exc, directory) from exc
        store._counter.start()
        return store

    def close(self) -> None:
        """Close all files and let another process have the store. What is in it stays."""
        self._closing.set()
        self._counter.join()
        with self._lock:
            for files in self._files.values():
                files.close()
            self._files.clear()
            if self._counted.is_set():
                self._note_usage(self._books.used)
        os.close(self._lock_fd)

    def wait_counted(self, timeout_s: float) -> bool:
        """Return whether all leftovers are counted, after waiting for it."""
        return self._counted.wait(timeout_s)

    # Objects

    def prepare(self, identity: Identity) -> ObjectKey:
        """Make the object's files, unless they are there, and return its key.

        Raises:
            NoSpace, Unavailable: the disk refuses.
            ValueError: its names are too long to be cached.
        """
        key = object_key(identity.site, identity.path, identity.version)
        with self._names:
            if self._touch(key):
                return key
            self._enter(self._adopt(key, identity) or self._create(key, identity))
        self._close_surplus()
        if identity.version.size == 0:
            self.seal(key)
        return key

    def renew(self, identity: Identity) -> ObjectKey:
        """Make the object's files anew, empty of blocks, whatever is there: its digest file is of no use.

        Who reads the old files finds them gone; who holds the object goes on holding it.

        Raises:
            NoSpace, Unavailable: the disk refuses; the object is not here then, unless somebody holds it.
        """
        key = object_key(identity.site, identity.path, identity.version)
        with self._names:
            with self._lock:
                old = self._files.pop(key, None)
                number = next(self._trash_numbers)
            if old is not None and not old.users:
                old.close()
            taken = self._take_away(key, number)
            self._enter(self._create(key, identity))
            self.counters.recreated += 1
        _unlink(taken)
        self._close_surplus()
        return key

    def identity(self, key: ObjectKey) -> Identity | None:
        """Return which object it is, from its own header; None where it is not here or of no use."""
        try:
            with self._opened(key) as files:
                return files.identity
        except (NotFound, Corrupt):
            return None

    def hold(self, key: ObjectKey) -> bool:
        """Keep the object from being evicted until `release`; False: it is not here. Calls are counted."""
        with self._lock:
            return self._books.hold(key) is not None

    def release(self, key: ObjectKey) -> None:
        """Undo one `hold`. After the last one the object is the most recently used."""
        with self._lock:
            last = self._books.release(key)
            files = self._files.get(key)
        if last and files is not None:
            with contextlib.suppress(OSError):  # closed meanwhile: the order after a restart is a little off
                files.touch()

    def evict(self, key: ObjectKey) -> bool:
        """Drop the object; False: it is not here, or somebody holds it."""
        return self._discard(key) is not None

    def objects(self) -> Iterator[Stored]:
        """Yield what is here, the next victim first; objects that come or go meanwhile may be left out."""
        with self._lock:
            keys = list(self._books)
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
        with self._opened(key) as files:
            there = np.flatnonzero(files.all_digests())
            present = len(there) * BLOCK
            if len(there):
                present -= BLOCK - block_length(int(there[-1]), files.size)
            with self._lock:
                held = self._books.held.get(key)
                used = self._books.record(key)
                others = (held.holds if held else 0) - 1  # one hold is ours, by `_opened`
            return Stored(key, files.identity, present, used.used if used else 0, files.sealed, others > 0)

    def totals(self) -> Totals:
        """Return the figures of the store as a whole."""
        try:
            disk = os.statvfs(self.root)
        except OSError as exc:
            raise translate(exc, self.root) from exc
        with self._lock:
            return Totals(
                used=self._books.used,
                cap=self._books.cap,
                objects=len(self._books),
                held=len(self._books.held),
                disk_free=disk.f_bavail * disk.f_frsize,
                inodes_free=disk.f_favail if disk.f_files else None,
                counting=not self._counted.is_set(),
            )

    # Blocks

    def missing(self, key: ObjectKey, offset: int, length: int) -> list[range]:
        """Return the runs of absent blocks among those that the range touches, in order.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its digests can't be read.
        """
        with self._opened(key) as files:
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
        with self._opened(key) as files, self._room(len(view) + _SLACK_BYTES):
            try:
                self._write(files, first, view)
            except NoSpace:
                if not self._make_room(len(view)):
                    raise
                self._write(files, first, view)

    def write_block(self, key: ObjectKey, index: int, body: memoryview | bytes) -> None:
        """Write one block: see `write_blocks`."""
        self.write_blocks(key, index, body)

    def needs_seal(self, key: ObjectKey) -> bool:
        """Return whether every block is there, but nobody has verified them all: `seal` does.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its files can't be read.
        """
        with self._opened(key) as files:
            return files.absent == 0 and not files.sealed

    def drop_if_broken(self, key: ObjectKey, index: int) -> bool:
        """Make a block absent if it does not match its digest; returns whether it was so.

        For a reader's complaint: of several that saw the same broken block the last may come when it is right again.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        with contextlib.suppress(NotFound), self._opened(key) as files:
            if index < block_count(files.size):
                return bool(self._drop_if_still_broken(files, [index], memoryview(bytearray(BLOCK))))
        return False

    def drop_block(self, key: ObjectKey, index: int) -> None:
        """Make a block absent ; what is not here is absent already.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        with contextlib.suppress(NotFound), self._opened(key) as files:
            if index < block_count(files.size):
                self._drop(files, [index])

    def read_blocks(self, key: ObjectKey, first: int, count: int, scratch: memoryview) -> int:
        """Read blocks into `scratch` as long as they are there and right; returns how many, from `first` on.

        Raises:
            NotFound: the object is not here.
            Corrupt, Unavailable: its digests can't be read.
        """
        with self._opened(key) as files:
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
        with self._opened(key) as files:
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
        with self._opened(key) as files:
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
            with contextlib.suppress(NotFound, Corrupt, NoSpace, Unavailable), self._opened(key) as files:
                if not files.sealed and not files.absent:
                    changes[key] = files.changes
        sync_all(self.root)
        for key, mark in changes.items():
            with contextlib.suppress(NotFound, Corrupt, NoSpace, Unavailable), self._opened(key) as files:
                self._seal_if_right(files, mark)

    def _seal_if_right(self, files: ObjectFiles, changes: int) -> bool:
        """Verify and seal an object that was synced when it had undergone `changes` changes."""
        if self.verify(files.key):
            return False
        with files.lock:
            if files.changes != changes or not files.all_digests().all():
                return False
            with self._lock:
                record = self._books.record(files.key)
                assert record is not None
                record.sealed = True
                self.counters.sealed += 1
            files.seal()
        return True

    # Inside: files

    @contextlib.contextmanager
    def _opened(self, key: ObjectKey) -> Iterator[ObjectFiles]:
        """Hold the object and have its files open."""
        with self._lock:
            if self._books.hold(key) is None:
                raise NotFound(f"{self.root}: {key}")
            files = self._files.get(key)
            if files is not None:
                files.users += 1
                self._files.move_to_end(key)
        try:
            if files is None:
                files = self._open_files(key)
            try:
                yield files
            finally:
                with self._lock:
                    files.users -= 1
                    replaced = not files.users and self._files.get(key) is not files
                if replaced:
                    files.close()
                self._close_surplus()
        finally:
            with self._lock:
                self._books.release(key)

    def _open_files(self, key: ObjectKey) -> ObjectFiles:
        """Return the files with one user counted; the object is held."""
        opened = ObjectFiles.open(self.root, key)
        segments = opened.segments(SEGMENT_BLOCKS)
        with self._lock:
            files = self._files.setdefault(key, opened)
            files.users += 1
            record = self._books.record(key)
            assert record is not None
            if files is opened and record.segments is None:
                self._books.found(key, segments, sealed=opened.sealed)
        if files is not opened:  # another thread was faster
            opened.close()
        return files

    def _close_surplus(self) -> None:
        with self._lock:
            surplus = len(self._files) - self._handles_max
            if surplus <= 0:
                return
            unused = (key for key, files in self._files.items() if not files.users)
            closing = [self._files.pop(key) for key in list(itertools.islice(unused, surplus))]
        for files in closing:
            files.close()

    def _touch(self, key: ObjectKey) -> bool:
        """Make the object the most recently used one; False: its files were not looked at in this run."""
        with self._lock:
            record = self._books.hold(key)
            if record is None:
                return False
            self._books.release(key)
            return record.segments is not None

    def _enter(self, files: ObjectFiles) -> None:
        """Enter an object whose files have just been made or adopted; `_names` is held."""
        used = files.used()
        segments = files.segments(SEGMENT_BLOCKS)
        with self._lock:
            if files.key not in self._books:  # the counting thread may have found the new files
                self._books.add(files.key, 0)
            self._books.resize(files.key, used)
            self._books.found(files.key, segments, sealed=files.sealed)
            self._files[files.key] = files
            self._note_growth()

    def _adopt(self, key: ObjectKey, identity: Identity) -> ObjectFiles | None:
        """Return the files that an earlier run left, if they are this object's and of use."""
        try:
            files = ObjectFiles.open(self.root, key)
        except NotFound:
            return None
        except Corrupt as exc:
            logger.info("making %s anew: %s", key, exc)
            self.counters.recreated += 1
            return None
        if files.identity == identity:
            return files
        files.close()
        return None

    def _create(self, key: ObjectKey, identity: Identity) -> ObjectFiles:
        try:
            return ObjectFiles.create(self.root, key, identity)
        except NoSpace:
            if not self._make_room(BLOCK, names_held=True):
                raise
            return ObjectFiles.create(self.root, key, identity)

    def _discard(self, key: ObjectKey, *, names_held: bool = False) -> int | None:
        """Remove an object that nobody holds; returns the bytes it took, None where there is no such object."""
        with contextlib.nullcontext() if names_held else self._names:
            with self._lock:
                if key not in self._books.idle:
                    return None
                record = self._books.remove(key)
                files = self._files.pop(key, None)
                number = next(self._trash_numbers)
            if files is not None:
                files.close()
            taken = self._take_away(key, number)
        _unlink(taken)
        with self._lock:
            self._books.freed(record.used)
        return record.used

    def _take_away(self, key: ObjectKey, number: int) -> list[str]:
        """Free the object's names; returns where its files are now, to be unlinked when no lock is held any more."""
        try:
            return take_away(self.root, key, os.path.join(self.root, "trash"), number)
        except OSError as exc:
            logger.warning("%s can't be removed from the cache: %s", key, exc)
            return []

    # Inside: blocks

    def _write(self, files: ObjectFiles, first: int, view: memoryview) -> None:
        blocks = -(-len(view) // BLOCK)
        with files.lock:
            with self._lock:
                self._books.wrote(files.key, range(first // SEGMENT_BLOCKS, (first + blocks - 1) // SEGMENT_BLOCKS + 1))
            try:
                files.write(first, view)
            finally:
                used = files.used()
                with self._lock:
                    self._books.resize(files.key, used)
                    self.counters.blocks_written += blocks
                    self._note_growth()

    def _drop(self, files: ObjectFiles, indexes: list[int]) -> None:
        """Make blocks absent. Their bytes stay until they are written again: a hole would show in passthrough."""
        with files.lock:
            for index in indexes:
                files.drop(index, 1, punch=False)
            with self._lock:
                self.counters.blocks_broken += len(indexes)

    def _drop_if_still_broken(self, files: ObjectFiles, suspects: list[int], scratch: memoryview) -> list[int]:
        """Drop those that are broken also when nobody writes; a block that was being written looks broken."""
        with files.lock:
            broken = [index for index in suspects if files.broken_among(index, 1, scratch)]
        if broken:
            self._drop(files, broken)
        return broken

    # Inside: room

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Have `size` bytes below the cap reserved, evicting what is in the way.

        Raises:
            NoSpace: nothing is left that may go.
        """
        while True:
            with self._lock:
                if self._books.reserve(size):
                    self._note_growth()
                    break
            if not self._give_way():
                raise NoSpace(self.root, f"no room for {size} bytes below the cap of {self._books.cap}")
        try:
            yield
        finally:
            with self._lock:
                self._books.unreserve(size)

    def _make_room(self, size: int, *, names_held: bool = False) -> bool:
        """Free `size` bytes since the disk is full, though the cap is not reached; False: nothing could go."""
        freed = 0
        while freed < size:
            gone = self._give_way(names_held=names_held)
            if not gone:
                break
            freed += gone
        return freed > 0

    def _give_way(self, *, names_held: bool = False) -> int:
        """Let the next victim go; returns the bytes that it took, at least 1 for a victim, 0 if there was none."""
        with self._lock:
            victim = self._books.victim()
        if victim is None:
            return self._punch_oldest()
        used = self._discard(victim, names_held=names_held)
        with self._lock:
            if used is not None:
                self.counters.evictions += 1
                self.counters.evicted_bytes += used
        return max(used or 0, 1)  # a victim that somebody took hold of meanwhile: look again

    def _punch_oldest(self) -> int:
        """Punch the oldest segment of an open object; returns the bytes freed, 0 if there is none that may go."""
        with self._lock:
            candidates = self._books.oldest_segments()
        for key, segment in candidates:
            with contextlib.suppress(NotFound, Corrupt, Unavailable), self._opened(key) as files:
                freed = self._punch(files, segment)
                if freed:
                    return freed
        return 0

    def _punch(self, files: ObjectFiles, segment: int) -> int:
        """Free one segment; 0 where the object was sealed meanwhile."""
        with files.lock:
            with self._lock:
                record = self._books.record(files.key)
                if record is None or record.sealed:
                    return 0
                before = record.used
                self._books.punched(files.key, segment)  # also if it fails: it would fail again
            first = segment * SEGMENT_BLOCKS
            files.drop(first, min(SEGMENT_BLOCKS, block_count(files.size) - first), punch=True)
            used = files.used()
            with self._lock:
                self._books.resize(files.key, used)
                self.counters.punches += 1
            return max(before - used, 1)  # a segment that was absent already: look again

    def _note_growth(self) -> None:
        """Record a bound for usage before it is passed; the lock is held."""
        books = self._books
        if books.used + books.assumed + books.reserved > self._usage_noted:
            self._note_usage(min(books.cap, self._usage_noted + books.cap // _USAGE_STEP + BLOCK))

    def _note_usage(self, usage: int) -> None:
        self._usage_noted = usage
        try:
            write_number(os.path.join(self.root, "usage"), usage)
        except OSError as exc:
            logger.warning("usage of the cache can't be noted: %s", exc)

    # Inside: leftovers, on the counting thread

    def _count_leftovers(self) -> None:
        try:
            discard_other_formats(self.directory, os.path.basename(self.root))
            dated = self._find_leftovers()
            self._order_leftovers(dated)
            empty(os.path.join(self.root, "trash"), self._closing)
        except OSError as exc:
            logger.warning("leftovers in %s can't be counted: %s", self.root, exc)
        if not self._closing.is_set():
            with self._lock:
                self._books.assumed = 0
                self._note_usage(self._books.used + self._books.reserved)
            self._counted.set()

    def _find_leftovers(self) -> list[tuple[int, ObjectKey]]:
        """Enter every object that is there as a victim; returns (last use in ns, key) of each."""
        dated: list[tuple[int, ObjectKey]] = []
        for key, used, used_ns in leftovers(self.root, self._closing):
            if used is None or used_ns is None:
                self._remove_half(key)
                continue
            with self._lock:
                if key not in self._books:
                    self._books.add(key, used, oldest=True)
                self._books.assumed = max(0, self._books.assumed - used)
            dated.append((used_ns, key))
        return dated

    def _remove_half(self, key: ObjectKey) -> None:
        """Remove what a crash left of an object: one of two files. Not one that is being made just now."""
        with self._names:
            with self._lock:
                known = key in self._books
            if not known and used_on_disk(self.root, key) is None:
                remove(self.root, key)

    def _order_leftovers(self, dated: list[tuple[int, ObjectKey]]) -> None:
        """Put the leftovers in the order of their last use, those used longest ago first."""
        dated.sort(reverse=True)
        for start in range(0, len(dated), 1000):  # short holds of the lock
            with self._lock:
                for _, key in dated[start : start + 1000]:
                    record = self._books.idle.get(key)
                    if record is not None and record.segments is None:  # not touched since
                        self._books.idle.move_to_end(key, last=False)


def _unlink(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # what stays in the trash goes at the next start
            os.unlink(path)


def _absent_runs(digests: npt.NDArray[np.uint64], first: int) -> list[range]:
    """Return the runs of zeros, as blocks of which `first` is the first."""
    if digests.all():
        return []
    edges = np.flatnonzero(np.diff(digests == 0, prepend=False, append=False)) + first
    return [range(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
