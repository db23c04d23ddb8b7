"""Fetches what will be read next: what the kernel reads goes to a predictor, the predictor's answers to the fetch service.

The policy says how (`prefetch`, `read_ahead`), once for each opening: not at all; by streams; by the members of a layout
where the file's name promises one (a checkpoint shard, an archive, a table), and by streams until it is known; or all of it.

Shards are read one after the other. When the first one is opened the layouts of those that follow are read too, and what
will be read of them is fetched as soon as this one has nothing left to fetch: the line would be idle for two round trips
at each shard otherwise. A shard of the next step of a run mostly has the layout of this step's: it is believed until its
own header has come.

Tasks: one for each object whose layout is being read, one for each opening that looks for what follows, one for each fetch
of a shard that nobody has open; owned by the service. No reader waits for anything here: a prediction that fails costs speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vfs.agent.reading.ahead import Range, Reading
from vfs.agent.reading.layouts import promises_layout
from vfs.agent.reading.lessons import Lessons
from vfs.agent.rules import Mode
from vfs.checkpoints.layout import Layout, NoLayout, is_alike
from vfs.checkpoints.learned import Learned
from vfs.checkpoints.patterns import Patterns, generalise
from vfs.checkpoints.series import following
from vfs.errors import ForemountError
from vfs.extents.fair import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.extents.predict import Prediction, PredictionKnobs
from vfs.extents.readahead import Readahead
from vfs.extents.whole import Whole
from vfs.model import Entry, Kind, LakePath, ObjectKey, SitePath, Version, join, split

log = logging.getLogger(__name__)

Rule = Callable[[LakePath, int], tuple[Mode, int]]
"""(path, size) → how it is fetched ahead, and how many bytes ahead of a reader at most."""

WINDOW_MIN = 1 << 20
"""Of a stream that has just been recognised, where the policy allows so much."""
WHOLE_SHARE = 0.98
"""Of a file's bytes: a load that read so much read all of it, but for what the kernel had already."""
EXPECT_BYTES_MIN = 128 << 10
"""Shorter ranges come with the kernel's own request, or the next one."""
SHARDS_AHEAD = 8
"""Whose layouts are read ahead: 128 KiB each, 8 ms of 1 Gbit/s in all, while the first tensor is waited for."""
SHARD_KEPT_S = 30.0
"""What is known of a shard that was expected and not opened is kept for so long after the one before it is closed."""
_PATTERNS_KEPT = 64
"""Layouts of earlier steps, some MB for the largest."""
_READ_BEFORE_MAX = 64
"""Intervals kept of an object that was closed: of a header that was looked into, one or two."""
_LONG_BYTES = 8 << 20
"""A run that is longer comes in several requests at once, the end of it with the last byte of all."""
_END_BYTES = 256 << 10
"""Of such a run that is asked for before the rest: safetensors and torch touch the end of a tensor before they read it."""
_ROOM_SHARE = 8
"""Part of the window that has to be free before more is fetched of the next shard: a request for each read would be many."""


def _reads_all(taught: Learned | None) -> bool:
    """Return whether the load before read all of such a file."""
    return taught is not None and taught.whole >= WHOLE_SHARE


class Layouts(Protocol):
    """Finds out where the members of a file lie."""

    async def find(self, identity: Identity, path: LakePath) -> Layout:
        """Return the layout of an object that is held.

        Raises:
            NoLayout: it has none.
            ForemountError: it can't be read.
        """
        ...


class Beside(Protocol):
    """The files beside one that is open."""

    async def files(self, directory: LakePath) -> Sequence[Entry]:
        """Return what a directory holds, nothing of a huge one: the same object as long as it was not listed anew."""
        ...

    async def hold(self, path: LakePath, version: Version) -> tuple[Identity, ObjectKey, str]:
        """Hold a version of a file until `release`."""
        ...

    def is_here(self, path: LakePath, identity: Identity) -> bool:
        """Return whether it would be read from a copy on this host, and nothing need be fetched."""
        ...

    def release(self, key: ObjectKey) -> None: ...


@dataclass(slots=True)
class _Series:
    """The shards of one directory whose names differ by their numbers.

    Attributes:
        pattern: of their names.
        opened_last: None: none of them was.
    """

    pattern: str
    opened_last: str | None = None
    _listing: Sequence[Entry] | None = None
    _files: dict[str, Entry] = field(default_factory=dict)

    def files(self, listing: Sequence[Entry]) -> dict[str, Entry]:
        """Return those of a directory's listing; the same listing is gone through once, however many are opened."""
        if listing is not self._listing:
            found = (each for each in listing if each.kind is Kind.FILE and generalise(each.name)[0] == self.pattern)
            self._listing, self._files = listing, {each.name: each for each in found}
        return self._files


class Prefetcher:
    """Keeps a predictor for every open object, and for the shards that follow it.

    Args:
        layouts: those of open objects.
        lessons: of earlier loads; this one's are added when an object is closed.
        beside: finds what follows; None: nothing is known of other files.
        rule: of the policy in force.
        read_ahead: of the kernel. A mapped file that was advised SEQUENTIAL is read twice as far around a fault, and two
            such windows beyond it: four times, and a page more, of what nobody asked for.

    Attributes:
        on_layout: called with each layout that was read, and what was known of its reading.
        on_expect: called with what will be read of an open object.

    Invariant: a reading that is not open is named in `_ahead`, or a timer will strike it out.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        layouts: Layouts,
        lessons: Lessons,
        *,
        rule: Rule,
        read_ahead: int,
        spawn: Callable[[Awaitable[None]], None],
        beside: Beside | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._layouts = layouts
        self._lessons = lessons
        self._beside = beside
        self._rule = rule
        self._knobs = PredictionKnobs(around_bytes=read_ahead, ahead_bytes=5 * read_ahead)
        self._spawn = spawn
        self._readings: dict[ObjectKey, Reading] = {}
        self._ahead: dict[ObjectKey, list[ObjectKey]] = {}  # of each open shard: those that follow
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._read_before: OrderedDict[ObjectKey, list[Range]] = OrderedDict()  # what the kernel may have of closed objects
        self._patterns: OrderedDict[str, Patterns] = OrderedDict()  # of files of earlier steps, by their names
        self.on_expect: Callable[[ObjectKey, list[Range]], None] = lambda _key, _ranges: None
        self.on_layout: Callable[[Identity, Layout, Learned | None], None] = lambda *_: None
        fetcher.on_room = self._has_room

    def opened(self, identity: Identity, path: LakePath) -> None:
        """An object was opened: begin to read its layout where its name promises one, or all of it."""
        key = identity.key
        reading = self._readings.get(key)
        if reading is not None and reading.is_open:
            return
        reading = reading or self._make(identity, path)
        if reading is None:
            return
        reading.is_open = True
        if key in self._readings:  # it was expected
            if reading.told:
                self.on_expect(key, reading.told)
        else:
            self._begin(key, reading)
        if reading.has_layout and self._beside is not None:
            self._spawn(self._look_ahead(key, reading, self._beside))

    def closed(self, key: ObjectKey) -> None:
        """An object was closed: keep what its load taught."""
        reading = self._readings.get(key)
        if reading is None or not reading.is_open:
            return
        if reading.prediction is not None:
            log.debug("%s: read to the end: %s", reading.identity.path, reading.prediction.explain())
            self._read_before[key] = reading.prediction.read_so_far()[:_READ_BEFORE_MAX]
            if len(self._read_before) > _PATTERNS_KEPT:
                self._read_before.popitem(last=False)
            found = reading.prediction.learned()
            if found is not None:
                self._lessons.keep(reading.identity, found)
        self.read_elsewhere(key)

    def read_elsewhere(self, key: ObjectKey) -> None:
        """An open object is not read through the cache any more: nothing is fetched for it."""
        if key in self._readings:
            self._strike_out(key)
        for each in self._ahead.pop(key, ()):
            asyncio.get_running_loop().call_later(SHARD_KEPT_S, self._strike_out_if_idle, each)

    def reads(self, key: ObjectKey, ranges: Sequence[Range]) -> None:
        """The kernel read these ranges of an open object."""
        reading = self._readings.get(key)
        if reading is None:
            return
        if reading.reading_layout:
            reading.early += ranges
        ahead: list[Range] = []
        room = self._fetcher.room_bytes(reading.identity) if reading.members is not None else 0
        for offset, length in ranges:
            found = reading.read(offset, length, room - sum(length for _, length in ahead))
            if found and found[0][0] == offset:  # all of a run that has just begun: its reader waits for it
                if found[0][1] > _LONG_BYTES:
                    self._fetcher.prefetch(key, sum(found[0]) - _END_BYTES, _END_BYTES, Priority.FOREGROUND)
                self._fetch(key, found[:1], Priority.FOREGROUND)
                found = found[1:]
            ahead += found
        self._fetch(key, ahead)
        self._go_on(key, reading)

    def _has_room(self, key: ObjectKey) -> None:
        """The line has room for more of an object: a fetch of it has ended."""
        reading = self._readings.get(key)
        if reading is None or reading.members is None:
            return
        if reading.is_open and (room := self._fetcher.room_bytes(reading.identity)) > 0:
            self._fetch(key, reading.members.more(reading.ahead_bytes, room))
            self._go_on(key, reading)
        self._go_on_before(key)

    def facts(self, key: ObjectKey) -> dict[str, Any] | None:
        """Return how an open object is predicted, for `explain`."""
        reading = self._readings.get(key)
        return None if reading is None else reading.facts() | {"shards_ahead": len(self._ahead.get(key, ()))}

    def layouts(self) -> Iterator[tuple[Identity, Layout, Learned | None]]:
        """Yield the layouts of open objects, as far as they are known, and what is known of their reading."""
        for reading in self._readings.values():
            if reading.prediction is not None:
                yield reading.identity, reading.prediction.layout, self._lessons.find(reading.identity)

    # One object

    def _make(self, identity: Identity, path: LakePath) -> Reading | None:
        """Return what will be known of a reading; None: the policy has nothing fetched ahead."""
        size = identity.version.size
        mode, ahead_bytes = self._rule(path, size)
        if not size or mode == "off" or not ahead_bytes:
            return None
        streams = Readahead(size, window_min=min(WINDOW_MIN, ahead_bytes), window_max=ahead_bytes)
        whole = Whole(size, window_bytes=ahead_bytes) if mode == "whole" else None
        return Reading(identity, path, ahead_bytes, streams, whole, mode == "tensor" and promises_layout(path, size))

    def _begin(self, key: ObjectKey, reading: Reading) -> None:
        self._readings[key] = reading
        if reading.whole is not None:
            self._fetch(key, reading.whole.begin())
        if reading.has_layout:
            reading.reading_layout = True
            self._spawn(self._read_layout(key, reading))

    def _strike_out(self, key: ObjectKey) -> None:
        reading = self._readings.pop(key)
        self._fetcher.counters.unread_bytes += reading.unread_bytes

    def _strike_out_if_idle(self, key: ObjectKey) -> None:
        reading = self._readings.get(key)
        if reading is not None and not reading.is_open and not any(key in ahead for ahead in self._ahead.values()):
            self._strike_out(key)

    def _fetch(self, key: ObjectKey, ahead: Sequence[Range], priority: Priority = Priority.PREFETCH) -> None:
        if ahead:
            self._fetcher.prefetch_all(key, ahead, priority)
            if expected := self._readings[key].expected(ahead, EXPECT_BYTES_MIN):
                self.on_expect(key, expected)

    async def _read_layout(self, key: ObjectKey, reading: Reading) -> None:
        """Read the layout through the cache, then replay what was read meanwhile."""
        name = _place(reading.identity)
        guess = self._patterns.get(name)
        if guess is not None and guess.layout.size == reading.identity.version.size:
            self._predict(reading, guess, self._lessons.find(reading.identity))
        try:
            async with self._held(reading):
                layout = await self._layouts.find(reading.identity, reading.path)
            taught = self._lessons.find(reading.identity)
            if reading.prediction is None or not is_alike(reading.prediction.layout, layout):
                self._patterns[name] = guess = Patterns(layout)
                self._predict(reading, guess, taught)
            self._patterns.move_to_end(name)
            if len(self._patterns) > _PATTERNS_KEPT:
                self._patterns.popitem(last=False)
            self.on_layout(reading.identity, layout, taught)
        except NoLayout as exc:
            reading.prediction = None
            if reading.is_open:
                log.warning("%s: read as plain bytes: %s", reading.identity.path, exc.reason)
            elif self._readings.get(key) is reading:
                del self._readings[key]  # who opens it will be told
        except ForemountError as exc:
            log.info("%s: its layout can't be read: %s", reading.identity.path, exc)
        finally:
            reading.reading_layout = False
        early, reading.early = reading.early, []
        if self._readings.get(key) is reading:
            self.reads(key, early)
            self._go_on_before(key)

    def _predict(self, reading: Reading, patterns: Patterns, taught: Learned | None) -> None:
        """Predict by these members, and by nothing that was believed before."""
        if reading.prediction is not None:
            self._fetcher.counters.unread_bytes += reading.prediction.unread_bytes
        reading.prediction = Prediction(
            patterns.layout, learned=taught, whole=_reads_all(taught), patterns=patterns, knobs=self._knobs
        )
        for offset, length in self._read_before.get(reading.identity.key, ()):  # who looked at a header reads on behind it
            reading.prediction.pushed(offset, length)

    # Those that follow

    @contextlib.asynccontextmanager
    async def _held(self, reading: Reading) -> AsyncIterator[None]:
        """Hold the object while something is done to it; one that is open is held by its opener."""
        if reading.is_open or self._beside is None:
            yield
            return
        _, key, _ = await self._beside.hold(reading.path, reading.identity.version)
        try:
            yield
        finally:
            self._beside.release(key)

    async def _look_ahead(self, key: ObjectKey, reading: Reading, beside: Beside) -> None:
        """Find the shards that follow one that was opened, and have their layouts read."""
        directory, name = split(reading.path)
        pattern, numbers = generalise(name)
        if not numbers:
            return
        series = self._series.setdefault(join(directory, pattern), _Series(pattern))
        before, series.opened_last = series.opened_last, name
        self._series.move_to_end(join(directory, pattern))
        if len(self._series) > _PATTERNS_KEPT:
            self._series.popitem(last=False)
        try:
            files = series.files(await beside.files(LakePath(directory)))
        except ForemountError as exc:
            log.debug("%s: what follows is not known: %s", reading.path, exc)
            return
        if self._readings.get(key) is not reading:
            return  # closed meanwhile
        ahead = self._ahead[key] = []
        for each in following(name, files, None if before == name else before)[:SHARDS_AHEAD]:
            path, version = LakePath(join(directory, each)), files[each].version
            identity = Identity(reading.identity.site, SitePath(join(split(reading.identity.path)[0], each)), version)
            found = identity.key
            if found not in self._readings and (next_one := self._make(identity, path)) is not None and next_one.has_layout:
                self._begin(found, next_one)
            ahead.append(found)

    def _go_on(self, key: ObjectKey, reading: Reading) -> None:
        """Fetch of the shards that follow what the window has room for, once all of this one is on its way."""
        by = reading.members
        if by is None or not by.is_drained or key not in self._ahead:
            return
        window = by.window(reading.ahead_bytes)
        room = window - by.outstanding_bytes
        believed: Learned | None = None
        for each in self._ahead[key]:
            shard = self._readings.get(each)
            if shard is None or shard.is_open or (self._beside and self._beside.is_here(shard.path, shard.identity)):
                continue
            if shard.members is None:
                return  # its layout is on its way
            room -= shard.members.outstanding_bytes
            if room < window // _ROOM_SHARE:
                return
            believed = believed or by.believed()
            shard.teach(believed)
            found = shard.members.more(shard.members.outstanding_bytes + room, self._fetcher.room_bytes(shard.identity))
            room -= sum(length for _, length in found)
            if found:
                shard.expected(found, EXPECT_BYTES_MIN)
                self._spawn(self._fetch_held(each, shard, found))
            if not shard.members.is_drained:
                return

    def _go_on_before(self, key: ObjectKey) -> None:
        """Let the open shards that this one follows go on with it."""
        for each, ahead in self._ahead.items():
            if key in ahead:
                self._go_on(each, self._readings[each])

    async def _fetch_held(self, key: ObjectKey, reading: Reading, ahead: Sequence[Range]) -> None:
        with contextlib.suppress(ForemountError):  # who reads it will hear of it
            async with self._held(reading):
                self._fetcher.prefetch_all(key, ahead)


def _place(identity: Identity) -> str:
    """Return the name of a file with the numbers of its directory left out: the same shard in every step."""
    directory, name = split(identity.path)
    return f"{identity.site}:{generalise(directory)[0]}/{name}"
