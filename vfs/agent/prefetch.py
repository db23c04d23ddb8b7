"""Fetches what will be read next: what the kernel reads goes to a predictor, the predictor's answers to the fetch service.

The policy says how (`prefetch`, `read_ahead`), once for each opening: not at all; by streams; by the members of a layout
where the file's name promises one (a checkpoint shard, an archive, a table), and by streams until it is known; or all of it.

Tasks: one for each object whose layout is being read, owned by the service. No reader waits for anything here: a prediction
that fails costs speed only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vfs.agent.layouts import promises_layout
from vfs.agent.lessons import Lessons
from vfs.agent.rules import Mode
from vfs.checkpoints.layout import Layout, NoLayout
from vfs.checkpoints.learned import Learned
from vfs.errors import ForemountError
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import Identity
from vfs.extents.predict import Prediction, PredictionKnobs
from vfs.extents.readahead import Readahead
from vfs.extents.spans import Spans
from vfs.extents.whole import Whole
from vfs.model import LakePath, ObjectKey, object_key

log = logging.getLogger(__name__)

Range = tuple[int, int]

Rule = Callable[[LakePath, int], tuple[Mode, int]]
"""(path, size) → how it is fetched ahead, and how many bytes ahead of a reader at most."""

WINDOW_MIN = 1 << 20
"""Of a stream that has just been recognised, where the policy allows so much."""
WHOLE_SHARE = 0.98
"""Of a file's bytes: a load that read so much read all of it, but for what the kernel had already."""
EXPECT_BYTES_MIN = 128 << 10
"""Shorter ranges come with the kernel's own request, or the next one."""


@dataclass(slots=True)
class _Reader:
    """What is known about the reading of one open object.

    Attributes:
        ahead_bytes: fetched and not yet read at most.
        streams: predicts until the layout is known, and where there is none.
        whole: predicts where all of it will be read; None: the policy does not say so. `seen` is what was read then.
        prediction: predicts by members; None where there is no layout (yet).
        reading_layout: its task is under way; `early` keeps the reads meanwhile.
    """

    identity: Identity
    path: LakePath
    ahead_bytes: int
    streams: Readahead
    whole: Whole | None
    prediction: Prediction | None
    reading_layout: bool
    early: list[Range] = field(default_factory=list)
    seen: Spans = field(default_factory=Spans)

    @property
    def unread_bytes(self) -> int:
        """Return what was fetched ahead and not read; when the object is closed, what never was."""
        if self.whole is not None:
            return max(0, self.whole.prefetched_bytes - self.seen.total)
        return self.streams.unread_bytes + (self.prediction.unread_bytes if self.prediction is not None else 0)

    def read(self, offset: int, length: int) -> list[Range]:
        """Note a read; return what to fetch ahead now."""
        if self.whole is not None:
            self.seen.add(offset, min(offset + length, self.identity.version.size))
            return self.whole.read(length)
        if self.prediction is not None and not self.prediction.is_off:
            return self.prediction.read(offset, length, limit_bytes=self.ahead_bytes)
        return [] if self.reading_layout else self.streams.read(offset, length)

    def expected(self, ahead: Sequence[Range]) -> Sequence[Range]:
        """Return what of these ranges will be read: members without what the kernel reads around them."""
        return ahead if self.prediction is None or self.prediction.is_off else self.prediction.taken()


def _reads_all(taught: Learned | None) -> bool:
    """Return whether the load before read all of such a file."""
    return taught is not None and taught.whole >= WHOLE_SHARE


class Layouts(Protocol):
    """Finds out where the members of a file lie."""

    async def find(self, identity: Identity, path: LakePath) -> Layout:
        """Return the layout of an object that is open.

        Raises:
            NoLayout: it has none.
            ForemountError: it can't be read.
        """
        ...


class Prefetcher:
    """Keeps a predictor for every open object.

    Args:
        layouts: those of open objects.
        lessons: of earlier loads; this one's are added when an object is closed.
        rule: of the policy in force.
        read_ahead: of the kernel. A mapped file that was advised SEQUENTIAL is read twice as far around a fault, and two
            such windows beyond it: four times, and a page more, of what nobody asked for.

    Attributes:
        on_layout: called with each layout that was read, and what was known of its reading.
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
    ) -> None:
        self._fetcher = fetcher
        self._layouts = layouts
        self._lessons = lessons
        self._rule = rule
        self._knobs = PredictionKnobs(around_bytes=read_ahead, ahead_bytes=5 * read_ahead)
        self._spawn = spawn
        self.on_expect: Callable[[ObjectKey, list[Range]], None] = lambda _key, _ranges: None
        self._readers: dict[ObjectKey, _Reader] = {}
        self.on_layout: Callable[[Identity, Layout, Learned | None], None] = lambda *_: None

    def opened(self, identity: Identity, path: LakePath) -> None:
        """An object was opened: begin to read its layout where its name promises one, or all of it."""
        key = object_key(identity.site, identity.path, identity.version)
        size = identity.version.size
        if key in self._readers or not size:
            return
        mode, ahead_bytes = self._rule(path, size)
        if mode == "off" or not ahead_bytes:
            return
        has_layout = mode == "tensor" and promises_layout(path, size)
        streams = Readahead(size, window_min=min(WINDOW_MIN, ahead_bytes), window_max=ahead_bytes)
        whole = Whole(size, window_bytes=ahead_bytes) if mode == "whole" else None
        reader = self._readers[key] = _Reader(identity, path, ahead_bytes, streams, whole, None, has_layout)
        if whole is not None:
            self._fetch(key, whole.begin())
        if has_layout:
            self._spawn(self._read_layout(key, reader))

    def closed(self, key: ObjectKey) -> None:
        """An object was closed: keep what its load taught."""
        reader = self._readers.pop(key, None)
        if reader is not None:
            self._fetcher.counters.unread_bytes += reader.unread_bytes
        if reader is not None and reader.prediction is not None:
            log.debug("%s: read to the end: %s", reader.identity.path, reader.prediction.explain())
            found = reader.prediction.learned()
            if found is not None:
                self._lessons.keep(reader.identity, found)

    def reads(self, key: ObjectKey, ranges: Sequence[Range]) -> None:
        """The kernel read these ranges of an open object."""
        reader = self._readers.get(key)
        if reader is None:
            return
        if reader.reading_layout:
            reader.early += ranges
        ahead: list[Range] = []
        for offset, length in ranges:
            ahead += reader.read(offset, length)
        self._fetch(key, ahead)

    def facts(self, key: ObjectKey) -> dict[str, Any] | None:
        """Return how an open object is predicted, for `explain`."""
        reader = self._readers.get(key)
        if reader is None:
            return None
        facts: dict[str, Any] = {"ahead_bytes_max": reader.ahead_bytes}
        if reader.whole is not None:
            facts |= {"by": "policy: whole", "prefetched_bytes": reader.whole.prefetched_bytes}
        elif reader.prediction is not None and not reader.prediction.is_off:
            facts |= {"by": "members", **reader.prediction.explain()}
        else:
            streams = reader.streams
            facts |= {"by": "streams", "window": streams.window, "prefetched_bytes": streams.prefetched_bytes}
        return facts | {"unread_bytes": reader.unread_bytes}

    def layouts(self) -> Iterator[tuple[Identity, Layout, Learned | None]]:
        """Yield the layouts of open objects, as far as they are known, and what is known of their reading."""
        for reader in self._readers.values():
            if reader.prediction is not None:
                yield reader.identity, reader.prediction.layout, self._lessons.find(reader.identity)

    def _fetch(self, key: ObjectKey, ahead: Sequence[Range]) -> None:
        if ahead:
            self._fetcher.prefetch_all(key, ahead)
            expected = self._readers[key].expected(ahead)
            if expected := [each for each in expected if each[1] >= EXPECT_BYTES_MIN]:
                self.on_expect(key, expected)

    async def _read_layout(self, key: ObjectKey, reader: _Reader) -> None:
        """Read the layout through the cache, then replay what was read meanwhile."""
        try:
            layout = await self._layouts.find(reader.identity, reader.path)
            taught = self._lessons.find(reader.identity)
            reader.prediction = Prediction(layout, learned=taught, whole=_reads_all(taught), knobs=self._knobs)
            self.on_layout(reader.identity, layout, taught)
        except NoLayout as exc:
            log.warning("%s: read as plain bytes: %s", reader.identity.path, exc.reason)
        except ForemountError as exc:
            log.info("%s: its layout can't be read: %s", reader.identity.path, exc)
        finally:
            reader.reading_layout = False
        early, reader.early = reader.early, []
        if self._readers.get(key) is reader:
            self.reads(key, early)
