"""Samples of tokens in flat files: by Megatron's cached indices, or cut into chunks as OLMo does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import numpy as np

from vfs.errors import InvalidFeed
from vfs.model import Entry, LakePath
from vfs.samples.feeds.files import file_entry
from vfs.samples.feeds.numbers import NumberFile, Numbers
from vfs.samples.feeds.protocol import Found, Lake

_MAGIC = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<QBQQ")
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}
"""By the code of Megatron's DType."""
_DOCUMENTS_MAX = 100_000
"""Of one sample: more is no index but noise."""


class Chunks:
    """Files of tokens, each cut into chunks; what is left at a file's end is no sample.

    Attributes:
        count, entries: as `Bytes`.
    """

    def __init__(self, files: list[tuple[LakePath, Entry]], chunk_bytes: int) -> None:
        self.entries: Sequence[tuple[LakePath, Entry]] = files
        self._chunk_bytes = chunk_bytes
        self._ends = np.cumsum([entry.version.size // chunk_bytes for _, entry in files])
        self.count = int(self._ends[-1])

    @classmethod
    async def open(cls, lake: Lake, paths: Sequence[LakePath], dtype: str, chunk_tokens: int) -> Chunks:
        """Return the chunks of these files.

        Raises:
            InvalidFeed: a file is missing or is no array of `dtype`.
        """
        entries = await asyncio.gather(*(file_entry(lake, path) for path in paths))
        token_bytes = np.dtype(dtype).itemsize
        for path, entry in zip(paths, entries, strict=True):
            if entry.version.size % token_bytes:
                raise InvalidFeed(path, f"has {entry.version.size} bytes, which are no array of {dtype}: cut off")
        return cls(list(zip(paths, entries, strict=True)), token_bytes * chunk_tokens)

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return the chunk of each number."""
        found = []
        for number in numbers:
            file = int(np.searchsorted(self._ends, number, "right"))
            before = int(self._ends[file - 1]) if file else 0
            place = (int(number) - before) * self._chunk_bytes
            found.append((str(int(number)), self.entries[file][0], ((place, self._chunk_bytes),)))
        return found


class Documents:
    """Megatron samples: runs of documents of one `.bin`, from a token of the first to a token of the last.

    Attributes:
        count, entries: as `Bytes`.
    """

    def __init__(
        self,
        data: LakePath,
        extra: int,
        samples: NumberFile,
        documents: NumberFile,
        lengths: NumberFile,
        pointers: NumberFile,
        token_bytes: int,
    ) -> None:
        self._data = data
        self._extra = extra
        self._samples = samples
        self._documents = documents
        self._lengths = lengths
        self._pointers = pointers
        self._token_bytes = token_bytes
        self.count = samples.rows - 1
        files = {file.path: file.entry for file in (samples, documents, lengths)}
        self.entries: Sequence[tuple[LakePath, Entry]] = list(files.items())

    @classmethod
    async def open(cls, lake: Lake, index: LakePath, data: LakePath, *, add_extra_token: bool) -> Documents:
        """Return the samples of a cached index over `data`.idx and `data`.bin.

        Raises:
            InvalidFeed: a file is missing, broken or cut off.
        """
        samples = await NumberFile.open(lake, LakePath(f"{index}-sample_index.npy"), columns=2)
        documents = await NumberFile.open(lake, LakePath(f"{index}-document_index.npy"))
        if samples.rows < 2 or not documents.rows:
            raise InvalidFeed(samples.path, "holds no sample")
        path = LakePath(f"{data}.idx")
        entry = await file_entry(lake, path)
        head_bytes = len(_MAGIC) + _HEAD.size
        head = await lake.read(path, entry.version, 0, min(entry.version.size, head_bytes))
        if len(head) < head_bytes or not head.startswith(_MAGIC):
            raise InvalidFeed(path, "is no index of Megatron's")
        version, code, sequences, documents_there = _HEAD.unpack_from(head, len(_MAGIC))
        if version != 1 or code not in _TOKEN_BYTES:
            raise InvalidFeed(path, f"is of version {version}, tokens of type {code}")
        needed = head_bytes + 12 * sequences + 8 * documents_there
        if entry.version.size not in (needed, needed + sequences):  # with or without modes
            raise InvalidFeed(path, f"has {entry.version.size} bytes where {needed} are announced: cut off")
        lengths = NumberFile(lake, path, entry, np.dtype("<i4"), (sequences,), head_bytes)
        pointers = NumberFile(lake, path, entry, np.dtype("<i8"), (sequences,), head_bytes + 4 * sequences)
        extra = 1 if add_extra_token else 0
        return cls(LakePath(f"{data}.bin"), extra, samples, documents, lengths, pointers, _TOKEN_BYTES[code])

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return the ranges of each sample's tokens."""
        edges = await self._samples.take(np.concatenate([numbers, numbers + 1]))
        starts, ends = edges[: len(numbers)], edges[len(numbers) :]
        for number, start, end in zip(numbers, starts, ends, strict=True):
            if (end[0], end[1]) < (start[0], start[1]) or end[0] - start[0] > _DOCUMENTS_MAX or start[1] < 0:
                raise InvalidFeed(self._samples.path, f"row {number}: {start} to {end} is no run of documents")
        runs = [np.arange(start[0], end[0] + 1) for start, end in zip(starts, ends, strict=True)]
        sequences = await self._documents.take(np.concatenate(runs) if runs else np.zeros(0, np.int64))
        lengths, pointers = await asyncio.gather(self._lengths.take(sequences), self._pointers.take(sequences))
        found: list[Found] = []
        at = 0
        for number, start, end, run in zip(numbers, starts, ends, runs, strict=True):
            part = slice(at, at + len(run))
            at += len(run)
            ranges = self._ranges(int(number), int(start[1]), int(end[1]), lengths[part], pointers[part])
            found.append((str(int(number)), self._data, ranges))
        return found

    def _ranges(self, number: int, first: int, last: int, lengths: Numbers, pointers: Numbers) -> tuple[tuple[int, int], ...]:
        """Return the bytes from token `first` of the first document to token `last` of the last one, by document."""
        ranges = []
        for index, (length, pointer) in enumerate(zip(lengths, pointers, strict=True)):
            start = first if index == 0 else 0
            stop = last + self._extra if index == len(lengths) - 1 else int(length)
            if not start <= stop <= length or pointer < 0:
                raise InvalidFeed(self._samples.path, f"row {number}: tokens [{start}, {stop}) of a document of {length}")
            if start < stop:
                ranges.append((int(pointer) + start * self._token_bytes, (stop - start) * self._token_bytes))
        if not ranges:
            raise InvalidFeed(self._samples.path, f"row {number}: has no token")
        return tuple(ranges)
