"""Schedules that are an order of numbered samples: the order is permuted, the data never is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import xxhash

from vfs.errors import InvalidFeed
from vfs.model import Entry, LakePath
from vfs.samples.feeds import batches as batching
from vfs.samples.feeds import mixing, mosaic
from vfs.samples.feeds.numbers import NumberFile, Numbers
from vfs.samples.feeds.protocol import Found
from vfs.samples.jobs import Batches, Job, Streaming, filler, seed_of
from vfs.samples.loading import LoadCache
from vfs.samples.model import Sample

_EPOCH_MAX = 1 << 30
"""Samples of an epoch that a loader computes: shuffling takes 20 bytes for each."""


class Bytes(Protocol):
    """Where the bytes of numbered samples lie.

    Attributes:
        count: samples, numbered from 0.
        entries: the files that say so.
    """

    count: int
    entries: Sequence[tuple[LakePath, Entry]]

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return where the sample of each number lies, in this order."""
        ...


class Order(Protocol):
    """Which numbered sample who reads when.

    Attributes:
        world_size: ranks, all of which read in every step.
        steps: from 0 on.
        files: that say so.
        count: samples that it has in one pass.
    """

    world_size: int
    count: int
    steps: range
    files: Sequence[tuple[LakePath, Entry]]

    async def numbers(self, step: int, rank: int) -> tuple[Numbers, Numbers]:
        """Return the samples of a rank's step by slot, and in which epoch each of them is read."""
        ...


class BatchedOrder:
    """Samples as a file lists them, or as they are numbered, dealt to ranks batch by batch.

    Attributes:
        world_size, steps, files, count: as `Order`.

    Args:
        file: of sample numbers; None: the samples in their own order.
        samples: that there are.
    """

    def __init__(self, batches: Batches, file: NumberFile | None, samples: int) -> None:
        self.world_size = batches.world_size
        self.count = file.rows if file else samples
        self.steps = range(batching.step_count(batches, self.count))
        self.files: Sequence[tuple[LakePath, Entry]] = [(file.path, file.entry)] if file else []
        self._batches = batches
        self._file = file
        self._samples = samples

    async def numbers(self, step: int, rank: int) -> tuple[Numbers, Numbers]:
        """Return samples and epochs. Raises `InvalidFeed` where the file names a sample that there is not."""
        places = batching.positions(self._batches, step, rank)
        epochs = places // self._samples
        if self._file is None:
            return places, epochs
        numbers = await self._file.take(places)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= self._samples))
        if len(wrong):
            row, number = places[wrong[0]], numbers[wrong[0]]
            raise InvalidFeed(self._file.path, f"row {row}: names sample {number} of {self._samples}")
        return numbers, epochs


class MosaicOrder:
    """The order that MosaicML Streaming computes for itself. Shuffled epochs are made in a thread, the latest two are kept.

    Attributes:
        world_size, steps, files, count: as `Order`.
    """

    def __init__(self, streaming: Streaming, streams: Sequence[mixing.Shards]) -> None:
        chosen = mixing.chosen(streaming, streams)
        self.count = sum(chosen)
        first = mosaic.partition(streaming, self.count, streaming.sample_in_epoch)
        whole = mosaic.partition(streaming, self.count)
        counts = [mosaic.batch_count(streaming, each.per_rank) for each in (first, whole)]
        self.world_size = streaming.nodes * streaming.ranks_per_node
        self.steps = range(counts[0] + (streaming.epochs - 1) * counts[1])
        self.files: Sequence[tuple[LakePath, Entry]] = ()
        self._streaming = streaming
        self._streams = streams
        self._is_plain = not streaming.shuffle and chosen == [sum(shards) for shards in streams]
        self._first, self._whole = first, whole
        self._first_count, self._whole_count = counts
        self._shuffled: LoadCache[int, Numbers] = LoadCache(self._shuffle, kept=2)

    @classmethod
    def open(cls, streaming: Streaming, streams: Sequence[mixing.Shards], path: LakePath) -> MosaicOrder:
        """Return the order of these streams.

        Raises:
            InvalidFeed: the world and the samples give none.
        """
        count = max(streaming.epoch_size, sum(map(sum, streams)))
        if count <= _EPOCH_MAX:
            count = sum(mixing.chosen(streaming, streams))
        if count > _EPOCH_MAX:
            raise InvalidFeed(path, f"an epoch has {count} samples, more than {_EPOCH_MAX}")
        for first in (0, streaming.sample_in_epoch):
            if why_not := mosaic.partition(streaming, count, first).why_not():
                raise InvalidFeed(path, why_not, "another order can be recorded: `order`, a .npy file, with batches")
        return cls(streaming, streams)

    async def numbers(self, step: int, rank: int) -> tuple[Numbers, Numbers]:
        """Return samples and epochs."""
        later, batch = divmod(step - self._first_count, self._whole_count) if step >= self._first_count else (-1, step)
        part = self._first if later < 0 else self._whole
        epoch = self._streaming.epoch + 1 + later
        size = self._streaming.batch_size
        places = part.places(rank, batch * size, min(part.per_rank, (batch + 1) * size))
        if not self._is_plain:
            places = (await self._shuffled.get(epoch))[places].astype(np.int64)
        return places, np.full(len(places), epoch, np.int64)

    async def _shuffle(self, epoch: int) -> Numbers:
        order = await asyncio.to_thread(mosaic.order, self._streaming, self._streams, epoch)
        samples = sum(map(sum, self._streams))
        return order.astype(np.min_scalar_type(samples), copy=False)  # half the memory, or less


class IndexedFeed:
    """An order of sample numbers, cut into steps and ranks."""

    def __init__(self, job: Job, order: Order, samples: Bytes) -> None:
        files = [*samples.entries, *order.files]
        self._job = job
        self._order = order
        self._samples = samples
        self._mtime_ns = max(entry.version.mtime_ns for _, entry in files)
        self._fill = filler(job, version_of(files))
        if not order.steps:
            raise InvalidFeed(files[-1][0], f"{order.count} samples are less than one batch of the whole world")

    @property
    def mtime_ns(self) -> int:
        """Return when the latest of them was written."""
        return self._mtime_ns

    async def steps(self) -> Sequence[int]:
        """Return all steps of the order."""
        return self._order.steps

    async def ranks(self, step: int) -> Sequence[int]:
        """Return the whole world."""
        return range(self._order.world_size if step in self._order.steps else 0)

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        """Return what a rank reads in a step, by slot."""
        if step not in self._order.steps or not 0 <= rank < self._order.world_size:
            return ()
        numbers, epochs = await self._order.numbers(step, rank)
        found = await self._samples.find(numbers)
        return [
            self._fill(
                Sample(
                    self._job.name, step, rank, slot, sample_id, source, *ranges[0],
                    seed=seed_of(self._job.seed, sample_id, int(epoch)),
                    more=ranges[1:],
                )
            )
            for slot, (epoch, (sample_id, source, ranges)) in enumerate(zip(epochs, found, strict=True))
        ]  # fmt: skip


def version_of(files: Sequence[tuple[LakePath, Entry]]) -> str:
    """Return one name for the state of these files."""
    said = "\0".join(f"{path}\0{e.version.size}\0{e.version.mtime_ns}\0{e.version.etag}" for path, e in sorted(files))
    return xxhash.xxh3_128_hexdigest(said.encode())
