"""Schedules that are an order of numbered samples: the order is permuted, the data never is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import xxhash

from vfs.errors import InvalidFeed
from vfs.model import Entry, LakePath
from vfs.samples.feeds import batches as batching
from vfs.samples.feeds.numbers import NumberFile, Numbers
from vfs.samples.jobs import Batches, Job, filler, seed_of
from vfs.samples.model import Sample


class Bytes(Protocol):
    """Where the bytes of numbered samples lie.

    Attributes:
        count: samples, numbered from 0.
        entries: the files that say so.
    """

    count: int
    entries: Sequence[tuple[LakePath, Entry]]

    async def find(self, numbers: Numbers) -> Sequence[tuple[str, LakePath, tuple[tuple[int, int], ...]]]:
        """Return (sample id, source, ranges) of each number, in this order."""
        ...


class IndexedFeed:
    """An order of sample numbers, cut into steps and ranks.

    Args:
        order: file of numbers; None: the samples in their own order.
    """

    def __init__(self, job: Job, batches: Batches, order: NumberFile | None, samples: Bytes) -> None:
        files = [*samples.entries, *([(order.path, order.entry)] if order else [])]
        self._job = job
        self._batches = batches
        self._order = order
        self._samples = samples
        self._count = order.rows if order else samples.count
        self._steps = range(batching.step_count(batches, self._count))
        self._mtime_ns = max(entry.version.mtime_ns for _, entry in files)
        self._fill = filler(job, version_of(files))
        if not self._steps:
            where = files[-1][0]
            raise InvalidFeed(where, f"{self._count} samples are less than one batch of the whole world")

    @property
    def mtime_ns(self) -> int:
        """Return when the latest of them was written."""
        return self._mtime_ns

    async def steps(self) -> Sequence[int]:
        """Return all steps of the order."""
        return self._steps

    async def ranks(self, step: int) -> Sequence[int]:
        """Return the whole world."""
        return range(self._batches.world_size if step in self._steps else 0)

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        """Return what a rank reads in a step, by slot."""
        if step not in self._steps or not 0 <= rank < self._batches.world_size:
            return ()
        places = batching.positions(self._batches, step, rank)
        numbers = await self._numbers(places)
        found = await self._samples.find(numbers)
        return [
            self._fill(
                Sample(
                    self._job.name, step, rank, slot, sample_id, source, *ranges[0],
                    seed=seed_of(self._job.seed, sample_id, int(place) // self._samples.count),
                    more=ranges[1:],
                )
            )
            for slot, (place, (sample_id, source, ranges)) in enumerate(zip(places, found, strict=True))
        ]  # fmt: skip

    async def _numbers(self, places: Numbers) -> Numbers:
        if self._order is None:
            return places
        numbers = await self._order.take(places)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= self._samples.count))
        if len(wrong):
            row, number = places[wrong[0]], numbers[wrong[0]]
            raise InvalidFeed(self._order.path, f"row {row}: names sample {number} of {self._samples.count}")
        return numbers


def version_of(files: Sequence[tuple[LakePath, Entry]]) -> str:
    """Return one name for the state of these files."""
    said = "\0".join(f"{path}\0{e.version.size}\0{e.version.mtime_ns}\0{e.version.etag}" for path, e in sorted(files))
    return xxhash.xxh3_128_hexdigest(said.encode())
