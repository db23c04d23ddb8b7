"""Fetches what will be read next: what the kernel reads goes to a predictor, the predictor's answers to the fetch service.

The policy says how (`prefetch`, `read_ahead`), once for each opening: not at all; by streams; by the members of a layout
where the file's name promises one (a checkpoint shard, an archive, a table), and by streams until it is known; or all of it.

Tasks: one for each object whose layout is being read, owned by the service. No reader waits for anything here: a prediction
that fails costs speed only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vfs.agent.lessons import Lessons
from vfs.agent.rules import Mode
from vfs.checkpoints.layout import Layout, Needs, NoLayout
from vfs.checkpoints.recognise import recognise
from vfs.errors import ForemountError
from vfs.extents.budget import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.predict import Prediction, PredictionKnobs
from vfs.extents.readahead import Readahead
from vfs.extents.reader import CachedObject
from vfs.extents.whole import Whole
from vfs.model import LakePath, ObjectKey, object_key

log = logging.getLogger(__name__)

Range = tuple[int, int]

Rule = Callable[[LakePath, int], tuple[Mode, int]]
"""(path, size) → how it is fetched ahead, and how many bytes ahead of a reader at most."""

WINDOW_MIN = 1 << 20
"""Of a stream that has just been recognised, where the policy allows so much."""
LAYOUT_SIZE_MIN = 256 << 10
"""Smaller files come with their first request or two whatever they hold."""


@dataclass(slots=True)
class _Reader:
    """What is known about the reading of one open object.

    Attributes:
        ahead_bytes: fetched and not yet read at most.
        streams: predicts until the layout is known, and where there is none.
        whole: predicts where all of it will be read; None: the policy does not say so.
        prediction: predicts by members; None where there is no layout (yet).
        reading_layout: its task is under way; `early` keeps the reads meanwhile.
    """

    identity: Identity
    ahead_bytes: int
    streams: Readahead
    whole: Whole | None
    prediction: Prediction | None
    reading_layout: bool
    early: list[Range]

    def read(self, offset: int, length: int) -> list[Range]:
        """Note a read; return what to fetch ahead now."""
        if self.whole is not None:
            return self.whole.read(length)
        if self.prediction is not None and not self.prediction.is_off:
            return self.prediction.read(offset, length, limit_bytes=self.ahead_bytes)
        return [] if self.reading_layout else self.streams.read(offset, length)


class Layouts(Protocol):
    """Finds out where the members of a file lie."""

    async def find(self, identity: Identity, parser: Needs[Layout]) -> Layout:
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
        on_layout: called with each layout that was read.
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
        self._readers: dict[ObjectKey, _Reader] = {}
        self.on_layout: Callable[[Identity, Layout], None] = lambda *_: None

    def opened(self, identity: Identity, path: LakePath) -> None:
        """An object was opened: begin to read its layout where its name promises one, or all of it."""
        key = object_key(identity.site, identity.path, identity.version)
        size = identity.version.size
        if key in self._readers or not size:
            return
        mode, ahead_bytes = self._rule(path, size)
        if mode == "off" or not ahead_bytes:
            return
        parser = recognise(identity.path, size) if mode == "tensor" and size >= LAYOUT_SIZE_MIN else None
        streams = Readahead(size, window_min=min(WINDOW_MIN, ahead_bytes), window_max=ahead_bytes)
        whole = Whole(size, window_bytes=ahead_bytes) if mode == "whole" else None
        reader = self._readers[key] = _Reader(identity, ahead_bytes, streams, whole, None, parser is not None, [])
        if whole is not None:
            self._fetch(key, whole.begin())
        if parser is not None:
            self._spawn(self._read_layout(key, reader, parser))

    def closed(self, key: ObjectKey) -> None:
        """An object was closed: keep what its load taught."""
        reader = self._readers.pop(key, None)
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
        if reader.whole is not None:
            return {"by": "policy: whole", "prefetched_bytes": reader.whole.prefetched_bytes}
        if reader.prediction is not None and not reader.prediction.is_off:
            return {"by": "members", **reader.prediction.explain()}
        return {"by": "streams", "window": reader.streams.window, "prefetched_bytes": reader.streams.prefetched_bytes}

    def layouts(self) -> Iterator[tuple[Identity, Layout]]:
        """Yield the layouts of open objects, as far as they are known."""
        for reader in self._readers.values():
            if reader.prediction is not None:
                yield reader.identity, reader.prediction.layout

    def _fetch(self, key: ObjectKey, ahead: Sequence[Range]) -> None:
        if ahead:
            self._fetcher.prefetch_all(key, ahead)

    async def _read_layout(self, key: ObjectKey, reader: _Reader, parser: Needs[Layout]) -> None:
        """Read the layout through the cache, then replay what was read meanwhile."""
        try:
            layout = await self._layouts.find(reader.identity, parser)
            reader.prediction = Prediction(layout, learned=self._lessons.find(reader.identity), knobs=self._knobs)
            self.on_layout(reader.identity, layout)
        except NoLayout as exc:
            log.warning("%s: read as plain bytes: %s", reader.identity.path, exc.reason)
        except ForemountError as exc:
            log.info("%s: its layout can't be read: %s", reader.identity.path, exc)
        finally:
            reader.reading_layout = False
        early, reader.early = reader.early, []
        if self._readers.get(key) is reader:
            self.reads(key, early)


class CachedLayouts:
    """Reads layouts through the cache: the bytes are there when the reader comes for them.

    Source of `Layouts`.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def find(self, identity: Identity, parser: Needs[Layout]) -> Layout:
        key, content = object_key(identity.site, identity.path, identity.version), b""
        try:
            while True:
                offset, length = next(parser) if not content else parser.send(content)
                root = await self._fetcher.ensure(identity, offset, length, Priority.FOREGROUND)
                content = await asyncio.to_thread(_read_cached, root, key, offset, length)
        except StopIteration as end:
            found: Layout = end.value
            return found


def _read_cached(root: str, key: ObjectKey, offset: int, length: int) -> bytes:
    """Return verified bytes of an object that has just been fetched."""
    cached = CachedObject.open(root, key)
    try:
        found = cached.read(offset, length, memoryview(bytearray(length + 2 * BLOCK)))
        if found is None:
            raise NoLayout("evicted while it was read")
        return bytes(found)
    finally:
        cached.close()
