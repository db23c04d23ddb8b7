"""What a store's objects and their books share: names, open files, and the room that they take.

Blocking and thread-safe. Below `store.py`, which says what can be done with an object; here is which one goes when there is
no room, and who may touch the files meanwhile.

Locks, in this order: `names` while files get or lose their names; an object's own lock while its blocks change; `lock` around
the books, in which nothing blocks.

Thread: one counts what an earlier run left, discards other formats' directories and empties the trash.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from vfs.errors import Corrupt, NoSpace, NotFound, Unavailable
from vfs.extents.books import Books, Keep
from vfs.extents.counters import StoreCounters
from vfs.extents.directory import discard_other_formats, empty, leftovers, read_number, write_number
from vfs.extents.files import ObjectFiles, remove, take_away, used_on_disk
from vfs.extents.layout import BLOCK, FORMAT, Identity, block_count
from vfs.model import ObjectKey

logger = logging.getLogger(__name__)

SEGMENT_BLOCKS = 64
"""What goes at a time of an open object: 4 MiB, so that a hole costs one system call for 64 fetched blocks."""
_USAGE_STEP = 64
"""The recorded bound of usage grows in 1/64 of the cap: 64 tiny writes while a store fills."""

_COUNT_TURN_S = 0.01
"""A look at what was counted meanwhile: some hundred leftovers."""


class Shelf:
    """The objects of one store as files that take room.

    Attributes:
        files: open objects, least recently used first.
        books: who takes how much, and who goes first.

    Invariants: at most `handles_max` objects are open, but for those in use at this moment; a key is in the books exactly if
    its files have their names, except while `names` is held and for leftovers that are not counted yet.
    """

    def __init__(
        self,
        directory: str,
        cap_bytes: int,
        *,
        handles_max: int,
        keeps_held: bool = False,
        keep_of: Callable[[Identity], Keep] = lambda identity: "normal",
    ) -> None:
        """Make the directories and begin to count what is in them.

        Args:
            keeps_held: no part of what is held ever makes room: new blocks are refused instead.
            keep_of: what the policy makes of an object.

        Raises:
            OSError: as the system says.
        """
        self.root = os.path.join(directory, f"v{FORMAT}")
        os.makedirs(os.path.join(self.root, "objects"), mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(self.root, "trash"), mode=0o700, exist_ok=True)
        self.counters = StoreCounters()
        self.names = threading.Lock()
        self.lock = threading.Lock()
        self.files: OrderedDict[ObjectKey, ObjectFiles] = OrderedDict()
        self.counted = threading.Event()
        self._directory = directory
        self._handles_max = handles_max
        self._keeps_held = keeps_held
        self._keep_of = keep_of
        self._usage_noted = read_number(os.path.join(self.root, "usage"))
        self.books = Books(cap_bytes, assumed=min(self._usage_noted, cap_bytes))
        self._trash_numbers = itertools.count(1)
        self._closing = threading.Event()
        self._counter = threading.Thread(target=self._count_leftovers, name="store-count", daemon=True)
        self._counter.start()

    def close(self) -> None:
        """Close all files; what is in them stays."""
        self._closing.set()
        self._counter.join()
        with self.lock:
            for files in self.files.values():
                files.close()
            self.files.clear()
            if self.counted.is_set():
                self._note_usage(self.books.used)

    # Files

    @contextlib.contextmanager
    def opened(self, key: ObjectKey) -> Iterator[ObjectFiles]:
        """Hold the object and have its files open."""
        with self.lock:
            if self.books.hold(key) is None:
                raise NotFound(f"{self.root}: {key}")
            files = self.files.get(key)
            if files is not None:
                files.users += 1
                self.files.move_to_end(key)
        try:
            if files is None:
                files = self._open_files(key)
            try:
                yield files
            finally:
                with self.lock:
                    files.users -= 1
                    replaced = not files.users and self.files.get(key) is not files
                if replaced:
                    files.close()
                self.close_surplus()
        finally:
            with self.lock:
                self.books.release(key)

    def _open_files(self, key: ObjectKey) -> ObjectFiles:
        """Return the files with one user counted; the object is held."""
        opened = ObjectFiles.open(self.root, key)
        segments = opened.segments(SEGMENT_BLOCKS)
        with self.lock:
            files = self.files.setdefault(key, opened)
            files.users += 1
            record = self.books.record(key)
            assert record is not None
            if files is opened and record.segments is None:
                self.books.found(key, segments, sealed=opened.sealed)
        if files is not opened:  # another thread was faster
            opened.close()
        return files

    def close_surplus(self) -> None:
        with self.lock:
            surplus = len(self.files) - self._handles_max
            if surplus <= 0:
                return
            unused = (key for key, files in self.files.items() if not files.users)
            closing = [self.files.pop(key) for key in list(itertools.islice(unused, surplus))]
        for files in closing:
            files.close()

    def touch(self, key: ObjectKey) -> bool:
        """Make the object the most recently used one; False: its files were not looked at in this run."""
        with self.lock:
            record = self.books.hold(key)
            if record is None:
                return False
            self.books.release(key)
            return record.segments is not None

    def enter(self, files: ObjectFiles) -> None:
        """Enter an object whose files have just been made or adopted; `_names` is held."""
        used = files.used()
        segments = files.segments(SEGMENT_BLOCKS)
        with self.lock:
            if files.key not in self.books:  # the counting thread may have found the new files
                self.books.add(files.key, 0)
            self.books.resize(files.key, used)
            self.books.found(files.key, segments, sealed=files.sealed)
            self.files[files.key] = files
            self.note_growth()

    def adopt(self, key: ObjectKey, identity: Identity) -> ObjectFiles | None:
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

    def create(self, key: ObjectKey, identity: Identity) -> ObjectFiles:
        try:
            return ObjectFiles.create(self.root, key, identity)
        except NoSpace:
            if not self.make_room(BLOCK, names_held=True):
                raise
            return ObjectFiles.create(self.root, key, identity)

    def discard(self, key: ObjectKey, *, names_held: bool = False) -> int | None:
        """Remove an object that nobody holds; returns the bytes it took, None where there is no such object."""
        with contextlib.nullcontext() if names_held else self.names:
            with self.lock:
                if key not in self.books or key in self.books.held:
                    return None
                record = self.books.remove(key)
                files = self.files.pop(key, None)
            if files is not None:
                files.close()
            taken = self.take_away(key)
        unlink_all(taken)
        with self.lock:
            self.books.freed(record.used)
        return record.used

    def take_away(self, key: ObjectKey) -> list[str]:
        """Free the object's names; returns where its files are now, to be unlinked when no lock is held any more."""
        try:
            return take_away(self.root, key, os.path.join(self.root, "trash"), next(self._trash_numbers))
        except OSError as exc:
            logger.warning("%s can't be removed from the cache: %s", key, exc)
            return []

    # Room

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Have `size` bytes below the cap reserved, evicting what is in the way.

        Raises:
            NoSpace: nothing is left that may go.
        """
        while True:
            with self.lock:
                if self.books.reserve(size):
                    self.note_growth()
                    break
            if not self._give_way():
                raise NoSpace(self.root, f"no room for {size} bytes below the cap of {self.books.cap}")
        try:
            yield
        finally:
            with self.lock:
                self.books.unreserve(size)

    def make_room(self, size: int, *, names_held: bool = False) -> bool:
        """Free `size` bytes since the disk is full, though the cap is not reached; False: nothing could go."""
        freed = 0
        while freed < size:
            gone = self._give_way(names_held=names_held)
            if not gone:
                break
            freed += gone
        return freed > 0

    def _give_way(self, *, names_held: bool = False) -> int:
        """Let the next victim go; returns the bytes that it took, at least 1 for a victim, 0 if there was none.

        What an earlier run left goes before what is being written: while it is counted, its next is waited for (1 then).
        """
        with self.lock:
            victim = self.books.victim()
            record = None if victim is None else self.books.record(victim)
        if victim is not None and record is not None and record.keep is None:
            self.classify(victim)
            return 1  # another one may be next now
        if victim is None:
            if self._counter.is_alive() and not names_held:  # who counts may want the names
                self._counter.join(_COUNT_TURN_S)
                return 1
            return 0 if self._keeps_held else self._punch_oldest()
        used = self.discard(victim, names_held=names_held)
        with self.lock:
            if used is not None:
                self.counters.evictions += 1
                self.counters.evicted_bytes += used
        return max(used or 0, 1)  # a victim that somebody took hold of meanwhile: look again

    def classify(self, key: ObjectKey, identity: Identity | None = None) -> None:
        """Note what the policy makes of an object.

        Args:
            identity: which it is; None: as its own header says.
        """
        if identity is None:
            with contextlib.suppress(NotFound, Corrupt, Unavailable):
                files = ObjectFiles.open(self.root, key)
                identity = files.identity
                files.close()
        keep: Keep = "normal" if identity is None else self._keep_of(identity)
        with self.lock:
            self.books.classify(key, keep)

    def _punch_oldest(self) -> int:
        """Punch the oldest segment of an open object; returns the bytes freed, 0 if there is none that may go."""
        with self.lock:
            candidates = self.books.oldest_segments()
        for key, segment in candidates:
            with contextlib.suppress(NotFound, Corrupt, Unavailable), self.opened(key) as files:
                freed = self._punch(files, segment)
                if freed:
                    return freed
        return 0

    def _punch(self, files: ObjectFiles, segment: int) -> int:
        """Free one segment; 0 where the object was sealed meanwhile."""
        with files.lock:
            with self.lock:
                record = self.books.record(files.key)
                if record is None or record.sealed:
                    return 0
                before = record.used
                self.books.punched(files.key, segment)  # also if it fails: it would fail again
            first = segment * SEGMENT_BLOCKS
            files.drop(first, min(SEGMENT_BLOCKS, block_count(files.size) - first), punch=True)
            used = files.used()
            with self.lock:
                self.books.resize(files.key, used)
                self.counters.punches += 1
            return max(before - used, 1)  # a segment that was absent already: look again

    def note_growth(self) -> None:
        """Record a bound for usage before it is passed; the lock is held."""
        books = self.books
        if books.used + books.assumed + books.reserved > self._usage_noted:
            self._note_usage(min(books.cap, self._usage_noted + books.cap // _USAGE_STEP + BLOCK))

    def _note_usage(self, usage: int) -> None:
        self._usage_noted = usage
        try:
            write_number(os.path.join(self.root, "usage"), usage)
        except OSError as exc:
            logger.warning("usage of the cache can't be noted: %s", exc)

    # Leftovers, on the counting thread

    def _count_leftovers(self) -> None:
        try:
            discard_other_formats(self._directory, os.path.basename(self.root))
            dated = self._find_leftovers()
            self._order_leftovers(dated)
            empty(os.path.join(self.root, "trash"), self._closing)
        except OSError as exc:
            logger.warning("leftovers in %s can't be counted: %s", self.root, exc)
        if not self._closing.is_set():
            with self.lock:
                self.books.assumed = 0
                self._note_usage(self.books.used + self.books.reserved)
            self.counted.set()

    def _find_leftovers(self) -> list[tuple[int, ObjectKey]]:
        """Enter every object that is there as a victim; returns (last use in ns, key) of each."""
        dated: list[tuple[int, ObjectKey]] = []
        for key, used, used_ns in leftovers(self.root, self._closing):
            if used is None or used_ns is None:
                self._remove_half(key)
                continue
            with self.lock:
                if key not in self.books:
                    self.books.add(key, used, oldest=True)
                self.books.assumed = max(0, self.books.assumed - used)
            dated.append((used_ns, key))
        return dated

    def _remove_half(self, key: ObjectKey) -> None:
        """Remove what a crash left of an object: one of two files. Not one that is being made just now."""
        with self.names:
            with self.lock:
                known = key in self.books
            if not known and used_on_disk(self.root, key) is None:
                remove(self.root, key)

    def _order_leftovers(self, dated: list[tuple[int, ObjectKey]]) -> None:
        """Put the leftovers in the order of their last use, those used longest ago first."""
        dated.sort(reverse=True)
        for start in range(0, len(dated), 1000):  # short holds of the lock
            with self.lock:
                for _, key in dated[start : start + 1000]:
                    self.books.date_leftover(key)


def unlink_all(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # what stays in the trash goes at the next start
            os.unlink(path)
