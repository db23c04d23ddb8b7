"""Samples inside shards: WebDataset tars with an index beside them, and MDS shards of MosaicML Streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from vfs.checkpoints import tar
from vfs.checkpoints.layout import NoLayout
from vfs.errors import InvalidFeed
from vfs.model import Entry, Kind, LakePath, join, split
from vfs.samples import tree
from vfs.samples.feeds.files import file_entry, json_file
from vfs.samples.feeds.numbers import NumberFile, Numbers
from vfs.samples.feeds.protocol import Found, Lake
from vfs.samples.jobs import lake_path

_INDEX_BYTES_MAX = 256 << 20


class Tars:
    """The tars of a directory, by name. A sample is the files of one basename, or one of them.

    Attributes:
        count, entries: as `Bytes`.
    """

    def __init__(self, lake: Lake, tars: list[tuple[LakePath, Entry]], indices: list[NumberFile], part: str) -> None:
        self._lake = lake
        self._tars = tars
        self._indices = indices
        self._part = part.lower()
        self._ends = np.cumsum([index.rows - 1 for index in indices])
        self.count = int(self._ends[-1])
        self.entries: Sequence[tuple[LakePath, Entry]] = [*tars, *((index.path, index.entry) for index in indices)]

    @classmethod
    async def open(cls, lake: Lake, directory: LakePath, part: str) -> Tars:
        """Return the samples of a directory's tars.

        Raises:
            InvalidFeed: there is no tar, or one has no index that can be used.
        """
        tars = sorted(
            (LakePath(join(directory, entry.name)), entry)
            for entry in await lake.list(directory)
            if entry.kind is Kind.FILE and entry.name.endswith(".tar")
        )
        if not tars:
            raise InvalidFeed(directory, "holds no tar")
        indices = await asyncio.gather(*(_tar_index(lake, path) for path, _ in tars))
        return cls(lake, tars, list(indices), part)

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return where each sample lies, from the headers in its slice of the tar."""
        return await asyncio.gather(*(self._find(int(number)) for number in numbers))

    async def _find(self, number: int) -> Found:
        which = int(np.searchsorted(self._ends, number, "right"))
        row = number - (int(self._ends[which - 1]) if which else 0)
        (path, entry), index = self._tars[which], self._indices[which]
        start, end = (int(edge) for edge in await index.slice(row, row + 2))
        if not 0 <= start < end <= entry.version.size:
            raise InvalidFeed(index.path, f"row {row}: [{start}, {end}) is no part of a tar of {entry.version.size} bytes")
        members = await self._members(path, entry, start, end, index, row)
        names = {split(name)[1].partition(".") for name, _, _ in members}
        keys = {stem for stem, _, _ in names}
        if len(keys) != 1:
            raise InvalidFeed(index.path, f"row {row}: holds the samples {sorted(keys)}, not one")
        sample_id = keys.pop()
        if not tree.is_sample_id(sample_id):
            raise InvalidFeed(path, f"sample {row} is called {sample_id!r}, which is no name of a file")
        if not self._part:
            return sample_id, path, ((start, end - start),)
        for name, offset, length in members:
            if split(name)[1].partition(".")[2].lower() == self._part:
                return sample_id, path, ((start + offset, length),)
        raise InvalidFeed(path, f"sample {row} ({sample_id}) has no {self._part!r}")

    async def _members(
        self, path: LakePath, entry: Entry, start: int, end: int, index: NumberFile, row: int
    ) -> list[tuple[str, int, int]]:
        """Return (name, offset from `start`, length) of the files between two offsets of a tar."""
        parser = tar.layout(end - start)
        try:
            offset, length = next(parser)
            while True:
                body = await self._lake.read(path, entry.version, start + offset, length)
                offset, length = parser.send(body)
        except StopIteration as found:
            return [(member.name, member.offset, member.length) for member in found.value]
        except NoLayout as exc:
            raise InvalidFeed(index.path, f"row {row}: {exc.reason}") from exc


async def _tar_index(lake: Lake, path: LakePath) -> NumberFile:
    try:
        index = await NumberFile.open(lake, LakePath(f"{path}.idx"), plain="<u8")
    except InvalidFeed as exc:
        raise InvalidFeed(exc.subject, exc.reason, f"foremount index {path} makes one") from exc
    if index.rows < 2:
        raise InvalidFeed(index.path, "holds no sample")
    return index


class _RawData(msgspec.Struct, frozen=True):
    basename: str
    bytes: int


class _Shard(msgspec.Struct, frozen=True):
    """One shard as `index.json` has it; what else is said of it does not matter here."""

    format: str
    samples: int
    raw_data: _RawData
    column_names: list[str] = []
    column_sizes: list[int | None] = []
    zip_data: _RawData | None = None


class _Index(msgspec.Struct, frozen=True):
    version: int
    shards: list[_Shard]


class Mds:
    """The shards that one `index.json` names, or several do: one for each stream.

    Attributes:
        count, entries: as `Bytes`.
        streams: samples of each shard, by stream.

    Invariant: shards in `_counted` hold as many samples as `index.json` says; their version is pinned.
    """

    def __init__(
        self,
        lake: Lake,
        streams: list[list[tuple[_Shard, LakePath, Entry]]],
        indices: list[tuple[LakePath, Entry]],
        column: str,
    ) -> None:
        self._lake = lake
        self._shards = [shard for shards in streams for shard in shards]
        self._column = column
        self._counted: set[int] = set()
        self.streams = [[shard.samples for shard, _, _ in shards] for shards in streams]
        self._ends = np.cumsum([shard.samples for shard, _, _ in self._shards])
        self.count = int(self._ends[-1])
        self.entries: Sequence[tuple[LakePath, Entry]] = [*indices, *((path, entry) for _, path, entry in self._shards)]

    @classmethod
    async def open(cls, lake: Lake, files: Sequence[LakePath], column: str) -> Mds:
        """Return the samples of the `index.json` of each stream, numbered through.

        Raises:
            InvalidFeed: one can't be used, or a shard is missing, compressed, or of another size than it says.
        """
        found = [await cls._stream(lake, file, column) for file in files]
        return cls(
            lake,
            [shards for _, shards in found],
            [(file, entry) for file, (entry, _) in zip(files, found, strict=True)],
            column,
        )

    @staticmethod
    async def _stream(lake: Lake, file: LakePath, column: str) -> tuple[Entry, list[tuple[_Shard, LakePath, Entry]]]:
        entry = await file_entry(lake, file)
        index = await json_file(lake, file, entry, _Index, bytes_max=_INDEX_BYTES_MAX, refusal="is no index.json")
        if index.version != 2 or not index.shards:
            raise InvalidFeed(file, f"is of version {index.version} with {len(index.shards)} shards")
        paths = [lake_path(shard.raw_data.basename, LakePath(split(file)[0])) for shard in index.shards]
        entries = await asyncio.gather(*(lake.stat(path) for path in paths))
        shards = []
        for row, (shard, path, found) in enumerate(zip(index.shards, paths, entries, strict=True)):
            if shard.format != "mds":
                raise InvalidFeed(file, f"row {row}: format {shard.format!r} is not mds")
            if found is None:
                what = "is there compressed only" if shard.zip_data else "is missing"
                raise InvalidFeed(path, what, "samples are read in place: keep the shards uncompressed in the lake")
            if found.version.size != shard.raw_data.bytes or shard.samples < 1:
                raise InvalidFeed(file, f"row {row}: {path} has {found.version.size} bytes, not {shard.raw_data.bytes}")
            if column and column not in shard.column_names:
                raise InvalidFeed(file, f"row {row}: has no column {column!r}, but {shard.column_names}")
            if len(shard.column_names) != len(shard.column_sizes):
                raise InvalidFeed(file, f"row {row}: has {len(shard.column_sizes)} sizes of columns")
            shards.append((shard, path, found))
        return entry, shards

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return where each sample lies, from its shard's table of offsets."""
        return await asyncio.gather(*(self._find(int(number)) for number in numbers))

    async def _find(self, number: int) -> Found:
        which = int(np.searchsorted(self._ends, number, "right"))
        shard, path, entry = self._shards[which]
        row = number - (int(self._ends[which - 1]) if which else 0)
        table = NumberFile(self._lake, path, entry, np.dtype("<u4"), (1 + shard.samples + 1,), 0)
        if 4 * table.rows > entry.version.size:
            raise InvalidFeed(path, f"is too short for the table of {shard.samples} samples")
        _, (start, end) = await asyncio.gather(self._check_count(which, table), table.slice(1 + row, 3 + row))
        if not 4 * table.rows <= start < end <= entry.version.size:
            raise InvalidFeed(path, f"row {row}: [{start}, {end}) is no part of a shard of {entry.version.size} bytes")
        if self._column:
            start, end = await self._column_of(shard, path, entry, int(start), int(end), row)
        return f"{number:09d}", path, ((int(start), int(end - start)),)

    async def _check_count(self, which: int, table: NumberFile) -> None:
        """Refuse a shard that says another number of samples than `index.json`; it is asked until it was right once."""
        if which in self._counted:
            return
        (count,) = await table.slice(0, 1)
        said = self._shards[which][0].samples
        if count != said:
            raise InvalidFeed(table.path, f"holds {count} samples, index.json says {said}")
        self._counted.add(which)

    async def _column_of(
        self, shard: _Shard, path: LakePath, entry: Entry, start: int, end: int, row: int
    ) -> tuple[int, int]:
        """Return the part of a sample that is one column: sizes of the variable ones come first, then the columns."""
        variable = sum(size is None for size in shard.column_sizes)
        if start + 4 * variable > end:
            raise InvalidFeed(path, f"row {row}: is too short for the sizes of its columns")
        said = iter(
            np.frombuffer(await self._lake.read(path, entry.version, start, 4 * variable) if variable else b"", "<u4")
        )
        at = start + 4 * variable
        found = None
        for name, size in zip(shard.column_names, shard.column_sizes, strict=True):
            length = int(next(said)) if size is None else size
            if name == self._column:
                found = at, at + length
            at += length
        if at != end or found is None or found[0] == found[1]:
            raise InvalidFeed(path, f"row {row}: its columns end at {at}, the sample at {end}")
        return found
