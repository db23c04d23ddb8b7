"""Fetches what will be read next: what the kernel reads goes to a predictor, the predictor's answers to the fetch service.

A file whose name promises a layout (a checkpoint shard, an archive, a table) is predicted by its members once the layout is
known; until then, and every other file, by its streams.

Tasks: one for each object whose layout is being read, owned by the service. No reader waits for anything here: a prediction
that fails costs speed only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vfs.agent.lessons import Lessons
from vfs.checkpoints.layout import Layout, Needs, NoLayout
from vfs.checkpoints.recognise import recognise
from vfs.errors import ForemountError
from vfs.extents.budget import Priority
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.predict import Prediction, PredictionKnobs
from vfs.extents.readahead import Readahead
from vfs.extents.reader import CachedObject
from vfs.model import ObjectKey, object_key

log = logging.getLogger(__name__)

Range = tuple[int, int]

WINDOW_MIN = 1 << 20
WINDOW_MAX = 64 << 20
"""Ahead of one stream: five times what a line of 1 Gbit/s and 100 ms holds, half of 10 Gbit/s."""
LAYOUT_SIZE_MIN = 256 << 10
"""Smaller files come with their first request or two whatever they hold."""


@dataclass(slots=True)
class _Reader:
    """What is known about the reading of one open object.

    Attributes:
        streams: predicts until the layout is known, and where there is none.
        prediction: predicts by members; None where there is no layout (yet).
        reading_layout: its task is under way; `early` keeps the reads meanwhile.
    """

    identity: Identity
    streams: Readahead
    prediction: Prediction | None
    reading_layout: bool
    early: list[Range]


class Prefetcher:
    """Keeps a predictor for every open object.

    Args:
        lessons: of earlier loads; this one's are added when an object is closed.
        read_ahead: of the kernel. A mapped file that was advised SEQUENTIAL is read twice as far around a fault, and two
            such windows beyond it: four times, and a page more, of what nobody asked for.

    Attributes:
        on_layout: called with each layout that was read.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        lessons: Lessons,
        *,
        read_ahead: int,
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._fetcher = fetcher
        self._lessons = lessons
        self._knobs = PredictionKnobs(around_bytes=read_ahead, ahead_bytes=5 * read_ahead)
        self._spawn = spawn
        self._readers: dict[ObjectKey, _Reader] = {}
        self.on_layout: Callable[[Identity, Layout], None] = lambda *_: None

    def opened(self, identity: Identity) -> None:
        """An object was opened: begin to read its layout where its name promises one."""
        key = object_key(identity.site, identity.path, identity.version)
        if key in self._readers or not identity.version.size:
            return
        size = identity.version.size
        parser = recognise(identity.path, size) if size >= LAYOUT_SIZE_MIN else None
        streams = Readahead(size, window_min=WINDOW_MIN, window_max=WINDOW_MAX)
        self._readers[key] = _Reader(identity, streams, None, parser is not None, [])
        if parser is not None:
            self._spawn(self._read_layout(key, self._readers[key], parser))

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
            if reader.prediction is not None and not reader.prediction.is_off:
                ahead += reader.prediction.read(offset, length)
            elif not reader.reading_layout:
                ahead += reader.streams.read(offset, length)
        self._fetch(key, ahead)

    def facts(self, key: ObjectKey) -> dict[str, Any] | None:
        """Return how an open object is predicted, for `explain`."""
        reader = self._readers.get(key)
        if reader is None:
            return None
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
            layout = await self._parse(key, reader.identity, parser)
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

    async def _parse(self, key: ObjectKey, identity: Identity, parser: Needs[Layout]) -> Layout:
        content = b""
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
