"""Bins, maps and per-step files, as PROBLEM A3's deterministic loader keeps them. The bytes are ours (docs/samples.md).

    bins.json       which bins and maps there are
    *.map           records of 24 bytes, ascending ids: u64 id, u32 bin, u64 offset, u32 length, little-endian
    step_….npy      ids, one row for each rank

A step reads its row of ids and one record for each: nothing is loaded whole.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from vfs.errors import InvalidFeed
from vfs.model import Kind, LakePath, Version, join, split
from vfs.samples import tree
from vfs.samples.feeds.files import file_entry, json_file
from vfs.samples.feeds.indexed import version_of
from vfs.samples.feeds.numbers import NumberFile
from vfs.samples.feeds.protocol import Lake
from vfs.samples.jobs import Job, filler, lake_path
from vfs.samples.model import Sample

RECORD = np.dtype([("id", "<u8"), ("bin", "<u4"), ("offset", "<u8"), ("length", "<u4")])
assert RECORD.itemsize == 24
_PAGE_RECORDS = 2730
"""As many as a block of the cache holds."""
_DESCRIPTION_BYTES_MAX = 64 << 20
_STEP = re.compile(r"step_(\d{7,18})\.npy")


class MapFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One map. Ids without a gap are found by their number, others by halving.

    Attributes:
        first, last: ids in it.
    """

    path: str
    first: int
    last: int


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bins.json`. Paths are relative to it.

    Attributes:
        steps: directory of the per-step files.
        dataset_version: "": the version of this file and the maps.
    """

    bins: list[str]
    maps: list[MapFile]
    steps: str = "."
    dataset_version: str = ""


class BinsFeed:
    """The schedule that a `bins.json` describes.

    Args:
        maps: (description, version, records), by ascending ids.
    """

    def __init__(
        self,
        lake: Lake,
        job: Job,
        file: LakePath,
        said: Description,
        maps: list[tuple[MapFile, LakePath, Version]],
        version: str,
        mtime_ns: int,
    ) -> None:
        directory = LakePath(split(file)[0])
        self._lake = lake
        self._job = job.name
        self._file = file
        self._bins = [lake_path(path, directory) for path in said.bins]
        self._maps = maps
        self._firsts = [each.first for each, _, _ in maps]
        self._steps = lake_path(said.steps, directory)
        self._mtime_ns = mtime_ns
        self._fill = filler(job, said.dataset_version or version)

    @classmethod
    async def open(cls, lake: Lake, job: Job, file: LakePath) -> BinsFeed:
        """Return the feed of a `bins.json`.

        Raises:
            InvalidFeed: it or a map can't be used.
        """
        entry = await file_entry(lake, file)
        said = await json_file(lake, file, entry, Description, bytes_max=_DESCRIPTION_BYTES_MAX, refusal="can't be used")
        directory = LakePath(split(file)[0])
        paths = [lake_path(each.path, directory) for each in said.maps]
        entries = await asyncio.gather(*(file_entry(lake, path) for path in paths))
        maps = sorted(
            ((each, path, found.version) for each, path, found in zip(said.maps, paths, entries, strict=True)),
            key=lambda each: each[0].first,
        )
        _check(file, said, maps)
        version = version_of([(file, entry), *zip(paths, entries, strict=True)])
        return cls(lake, job, file, said, maps, version, max(each.version.mtime_ns for each in (entry, *entries)))

    @property
    def mtime_ns(self) -> int:
        """Return when the description or a map was written last."""
        return self._mtime_ns

    async def steps(self) -> Sequence[int]:
        """Return the steps whose files are there."""
        entries = await self._lake.list(self._steps)
        found = (_STEP.fullmatch(entry.name) for entry in entries if entry.kind is Kind.FILE)
        return sorted({int(match[1]) for match in found if match})

    async def ranks(self, step: int) -> Sequence[int]:
        """Return the rows of the step's file."""
        ids = await self._ids(step)
        return range(ids.rows if ids else 0)

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        """Return what a rank reads in a step, by slot."""
        file = await self._ids(step)
        if file is None or not 0 <= rank < file.rows:
            return ()
        (ids,) = await file.slice(rank, rank + 1)
        records = await asyncio.gather(*(self._find(int(number), file.path, rank, slot) for slot, number in enumerate(ids)))
        return [
            self._fill(Sample(self._job, step, rank, slot, str(int(number)), *record))
            for slot, (number, record) in enumerate(zip(ids, records, strict=True))
        ]

    async def _ids(self, step: int) -> NumberFile | None:
        path = LakePath(join(self._steps, f"{tree.step_name(step)}.npy"))
        entry = await self._lake.stat(path)
        return None if entry is None else await NumberFile.open(self._lake, path, columns=-1)

    async def _find(self, number: int, asked_by: LakePath, rank: int, slot: int) -> tuple[LakePath, int, int]:
        """Return (bin, offset, length) of a sample."""
        place = bisect_right(self._firsts, number) - 1
        record = None
        if place >= 0 and number <= self._maps[place][0].last:
            record = await self._lookup(*self._maps[place], number)
        if record is None:
            raise InvalidFeed(asked_by, f"row {rank}: slot {slot} is sample {number}, which is in no map")
        path = self._maps[place][1]
        if record["bin"] >= len(self._bins):
            raise InvalidFeed(path, f"sample {number} lies in bin {record['bin']} of {len(self._bins)}")
        if record["length"] == 0 or record["offset"] > np.iinfo(np.int64).max - int(record["length"]):
            raise InvalidFeed(path, f"sample {number} has no bytes")
        return self._bins[record["bin"]], int(record["offset"]), int(record["length"])

    async def _lookup(self, each: MapFile, path: LakePath, version: Version, number: int) -> np.void | None:
        """Return the record of an id, None where the map has none."""
        low, high = 0, version.size // RECORD.itemsize
        if high == each.last - each.first + 1:
            low, high = number - each.first, number - each.first + 1
        while low < high:
            first = max(low, (low + high) // 2 // _PAGE_RECORDS * _PAGE_RECORDS)
            last = min(high, first + _PAGE_RECORDS)
            body = await self._lake.read(path, version, first * RECORD.itemsize, (last - first) * RECORD.itemsize)
            page = np.frombuffer(body, RECORD)
            if len(page) > 1 and not (page["id"][1:] > page["id"][:-1]).all():
                row = first + 1 + int(np.flatnonzero(page["id"][1:] <= page["id"][:-1])[0])
                raise InvalidFeed(path, f"row {row}: ids don't ascend")
            if number < page["id"][0]:
                high = first
            elif number > page["id"][-1]:
                low = last
            else:
                at = int(np.searchsorted(page["id"], np.uint64(number)))
                return page[at] if page["id"][at] == number else None
        return None


def _check(file: LakePath, said: Description, maps: list[tuple[MapFile, LakePath, Version]]) -> None:
    """Refuse a description that can't be right."""
    if not said.bins or not maps:
        raise InvalidFeed(file, "names no bins or no maps")
    before = -1
    for each, path, version in maps:
        count, span = version.size // RECORD.itemsize, each.last - each.first + 1
        if version.size % RECORD.itemsize or not count:
            raise InvalidFeed(path, f"has {version.size} bytes, which are no records of {RECORD.itemsize}: empty or cut off")
        if each.first <= before or span < 1:
            raise InvalidFeed(file, f"{each.path} begins at id {each.first}, where another map holds up to {before}")
        if count > span:
            raise InvalidFeed(path, f"has {count} records for the ids {each.first} to {each.last}")
        before = each.last
