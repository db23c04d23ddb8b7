"""What a reader will read next, from what it has read: sequential and strided streams, several on one handle.

Pure: no I/O, no clock. Works for any source of bytes; knows nothing of formats.

A *run* is reads that follow each other without a hole; a *stream* is one reader's runs, at a constant distance if there is
more than one. A read continues the run that it lies closest behind, else the stream whose distance leads to it; what
continues none begins a stream. A run is believed from its second read on and never fetched further ahead than it has read so
far, so that a wrong guess costs no more than what was asked for; one that begins with the file and has read half of it is
believed at once. Runs that end show how long runs are: when two of the last
were alike, the next one is fetched to that length at its first read, and not beyond. A handle whose prefetches are not read
is left alone from then on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from vfs.extents.layout import BLOCK

STREAMS_MAX = 8
"""Told apart on one handle: loaders of several workers share a descriptor of their parent."""
RUNS_KEPT = 6
"""Runs that have ended of which two have to be alike before the next is believed to be so long. The others may be reads that
the kernel sent out of turn."""
_ALIKE = 8
"""Lengths that differ by less than an eighth are alike."""
STRIDES_SEEN = 3
"""Equal distances in a row before a stream is believed to go on like that: two happen by chance."""
JUDGED_BYTES = 4 << 20
"""Prefetched before a handle is judged by how much of it was read."""
UNREAD_MAX = 0.5
FORGOTTEN_BLOCKS = 4096
"""Prefetched blocks remembered as unread: beyond, the oldest count as never read."""
LONG_RUN_BYTES = 8 << 20
"""A run of reads so long is no random access of large records."""


class ReadaheadFacts(msgspec.Struct, frozen=True):
    """A handle's state as `explain` shows it.

    Attributes:
        window: bytes that the widest stream is fetched ahead.
        run: length of runs where they are alike, else 0.
        unread: bytes prefetched and not read (yet).
    """

    streams: int
    window: int
    run: int
    prefetched: int
    unread: int
    off: bool


@dataclass(slots=True)
class _Stream:
    """One reader.

    Attributes:
        serial: tells streams apart.
        start, end: of the run that is being read; `end` is where its next read is expected.
        reads: of this run.
        longest: read of this run: what goes along into the page cache is one long read, and the kernel may have sent one of
            its middle before that, which comes to us later.
        run: length of the run before, 0 for the first.
        stride: from the start of the run before to `start`, 0 for the first.
        strides: runs in a row that began at this distance and were as long as the one before.
        frontier: end of what was prefetched of this run, >= `end`.
        window: bytes to be ahead.
    """

    serial: int
    start: int
    end: int
    frontier: int
    reads: int = 1
    longest: int = 0
    run: int = 0
    stride: int = 0
    strides: int = 0
    window: int = 0


class Readahead:
    """The streams of one handle.

    Args:
        size: of the object; nothing is predicted past it.
        window_min: of a run that has just been recognised.
        window_max: what is ahead of one stream at most: what the line holds, a few times.

    Invariants: at most `STREAMS_MAX` streams, the least recently used first; at most `RUNS_KEPT` ended runs; `_unread` holds
    only prefetched blocks.
    """

    def __init__(self, size: int, *, window_min: int, window_max: int) -> None:
        assert 0 < window_min <= window_max
        self._size = size
        self._window_min = window_min
        self._window_max = window_max
        self._streams: list[_Stream] = []
        self._begun = 0
        self._ended_runs: OrderedDict[int, int] = OrderedDict()  # serial of the stream → length of its run
        self._left: deque[int] = deque(maxlen=2 * STREAMS_MAX)  # starts of lone reads that a stream went on from
        self._unread: OrderedDict[int, None] = OrderedDict()
        self._never_read = 0
        self._prefetched = 0
        self._off = False

    @property
    def is_off(self) -> bool:
        """Return whether prefetching was given up for this handle."""
        return self._off

    @property
    def prefetched_bytes(self) -> int:
        return self._prefetched

    @property
    def unread_bytes(self) -> int:
        """Return the bytes that were prefetched and not read; when the handle is closed, those that never were."""
        return (len(self._unread) + self._never_read) * BLOCK

    @property
    def window(self) -> int:
        """Return the bytes that the widest stream is fetched ahead; 0 on random access."""
        return 0 if self._off else max((stream.window for stream in self._streams), default=0)

    @property
    def runs_long(self) -> bool:
        """Return whether the reader that read last goes on without a hole, for long already."""
        return bool(self._streams) and self._streams[-1].end - self._streams[-1].start >= LONG_RUN_BYTES

    def facts(self) -> ReadaheadFacts:
        """Return the state for people."""
        return ReadaheadFacts(
            len(self._streams), self.window, self._usual_run(), self._prefetched, self.unread_bytes, self._off
        )

    def read(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Note a read; return the ranges (offset, length) to fetch now, those needed first before the others.

        The first read of a run whose length is known is part of its range: one request brings all of it.
        """
        length = min(length, self._size - offset)
        if length <= 0:
            return []
        self._note_read(offset, length)
        if self._off:
            return []
        stream = self._follow(offset, length)
        if stream is None:
            return []
        ahead = self._strided(stream) if stream.strides >= STRIDES_SEEN else self._sequential(stream)
        return self._note_prefetched(ahead, range(offset // BLOCK, (offset + length - 1) // BLOCK + 1))

    # Streams

    def _follow(self, offset: int, length: int) -> _Stream | None:
        """Return the stream that the read moves on, now the most recently used; None: it tells nothing new."""
        stream = self._running(offset, length)
        if stream is not None:
            if offset + length <= stream.end:
                return None
            self._ended_runs.pop(stream.serial, None)
            stream.end, stream.longest = offset + length, max(stream.longest, length)
            stream.frontier = max(stream.frontier, stream.end)
            stream.reads += 1
        elif (stream := self._jumping(offset)) is not None:
            self._begin_run(stream, offset, length)
        elif (left := self._left_at(offset, length)) is not None:
            self._left.remove(left)
            stream = self._begin(left, offset + length)
            stream.reads = 2
        elif (stream := self._patternless()) is not None:
            self._begin_run(stream, offset, length)
        else:
            stream = self._begin(offset, offset + length)
        self._streams.remove(stream)
        self._streams.append(stream)
        return stream

    def _running(self, offset: int, length: int) -> _Stream | None:
        """Return the stream whose run the read continues. The kernel sends the reads of a run in any order, two apart."""
        near = [
            stream
            for stream in self._streams
            if stream.start <= offset and stream.end - max(2 * length, stream.longest) <= offset <= stream.end + length
        ]
        return min(near, key=lambda stream: abs(offset - stream.end), default=None)

    def _jumping(self, offset: int) -> _Stream | None:
        """Return the stream whose next run begins here."""
        return next((one for one in reversed(self._streams) if one.stride and offset == one.start + one.stride), None)

    def _left_at(self, offset: int, length: int) -> int | None:
        """Return the start of a lone read that this one continues: what seemed to be one reader's jump were two readers."""
        return next((start for start in self._left if start < offset <= start + 2 * length), None)

    def _patternless(self) -> _Stream | None:
        """Return the last stream if nothing speaks for a reader that will go on there: this read may be its next run."""
        if not self._streams:
            return None
        last = self._streams[-1]
        done = last.end - last.start
        return last if not last.strides and (last.reads == 1 or done in (last.run, self._usual_run())) else None

    def _begin_run(self, stream: _Stream, offset: int, length: int) -> None:
        run, stride = stream.end - stream.start, offset - stream.start
        alike = stride == stream.stride and run == (stream.run or run)
        if stream.reads == 1:
            self._left.append(stream.start)
        if not alike:
            self._shrink()
        stream.strides = stream.strides + 1 if alike else 0
        stream.run, stream.stride = run, stride
        stream.start, stream.end, stream.frontier = offset, offset + length, offset + length
        stream.reads, stream.longest = 1, length

    def _begin(self, start: int, end: int) -> _Stream:
        """Return a new stream; the run that was read last has perhaps ended."""
        if self._streams:
            last = self._streams[-1]
            self._ended_runs[last.serial] = last.end - last.start
            if len(self._ended_runs) > RUNS_KEPT:
                self._ended_runs.popitem(last=False)
        self._shrink()
        if len(self._streams) == STREAMS_MAX:
            del self._streams[0]
        self._begun += 1
        stream = _Stream(self._begun, start, end, end)
        self._streams.append(stream)
        return stream

    def _shrink(self) -> None:
        """Halve all windows: a read came that nobody expected."""
        for stream in self._streams:
            stream.window = stream.window // 2 if stream.window // 2 >= self._window_min else 0

    # Windows

    def _sequential(self, stream: _Stream) -> list[tuple[int, int]]:
        usual, done = self._usual_run(), stream.end - stream.start
        if not stream.start and self._size - done <= done:
            usual = self._size
        if done < usual:  # runs are alike: to the end of this one, and not beyond
            stream.window = usual - done
        elif done <= usual + usual // _ALIKE or stream.reads < 2:
            stream.window = 0
        elif stream.frontier - stream.end <= stream.window // 2:  # else it is far enough ahead: wait for a worthy request
            stream.window = min(max(self._window_min, 2 * stream.window), self._window_max, max(done, self._window_min))
        begun = stream.reads == 1 and done < usual  # the read and the rest of its run come with one request
        start, stop = stream.start if begun else stream.frontier, min(stream.end + stream.window, self._size)
        if start >= stop or (stream.frontier - stream.end > stream.window // 2):
            return []
        stream.frontier = stop
        return [(start, stop - start)]

    def _strided(self, stream: _Stream) -> list[tuple[int, int]]:
        """Return the next runs of a stream with holes: as many as were seen, and as the window holds."""
        if stream.reads > 1:
            return []  # asked for when the run began
        stream.window = min(max(self._window_min, 2 * stream.window), self._window_max)
        count = min(stream.strides, max(1, stream.window // stream.run))
        rest = [(stream.end, stream.run - (stream.end - stream.start))]
        ahead = [(stream.start + step * stream.stride, stream.run) for step in range(1, count + 1)]
        return [
            (offset, min(length, self._size - offset))
            for offset, length in rest + ahead
            if length > 0 and 0 <= offset < self._size
        ]

    def _usual_run(self) -> int:
        """Return the greatest length that two of the last runs had, else 0."""
        lengths = sorted(self._ended_runs.values(), reverse=True)
        return next((longer for longer, shorter in pairwise(lengths) if longer - shorter <= longer // _ALIKE), 0)

    # Accounts

    def _note_read(self, offset: int, length: int) -> None:
        if self._unread:
            for block in range(offset // BLOCK, (offset + length - 1) // BLOCK + 1):
                self._unread.pop(block, None)

    def _note_prefetched(self, ranges: list[tuple[int, int]], read: range) -> list[tuple[int, int]]:
        """Keep accounts of what will be prefetched; returns what of it was not prefetched already.

        Args:
            read: blocks that are being read: no prediction.
        """
        new = []
        for offset, length in ranges:
            blocks = range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)
            fresh = [block for block in blocks if block not in self._unread and block not in read]
            if not fresh:
                continue
            self._unread.update(dict.fromkeys(fresh))
            self._prefetched += len(fresh) * BLOCK
            new.append((offset, length))
        while len(self._unread) > FORGOTTEN_BLOCKS:
            self._unread.popitem(last=False)
            self._never_read += 1
        self._judge()
        return [] if self._off else new

    def _judge(self) -> None:
        """Give up where most of what was prefetched was not read, apart from what lies ahead of the streams now."""
        ahead = sum(max(stream.window, stream.frontier - stream.end) // BLOCK for stream in self._streams)
        unread = len(self._unread) + self._never_read - ahead
        if self._prefetched >= JUDGED_BYTES and unread * BLOCK > UNREAD_MAX * self._prefetched:
            self._off = True
            self._streams.clear()
