"""Arrays of whole numbers in files of the lake: `.npy`, or plain memory images without a header. Rows are read, not files.

Cost: 64 KiB of the lake for each run of rows that lie together; nothing is kept.
"""

from __future__ import annotations

import asyncio
import io

import numpy as np
import numpy.typing as npt

from vfs.errors import InvalidFeed
from vfs.model import Entry, LakePath
from vfs.samples.feeds.files import file_entry
from vfs.samples.feeds.protocol import Lake

_HEADER_BYTES = 4096
"""NumPy's header of an array without fields takes 128."""
_NEAR_BYTES = 64 << 10
"""Rows so close are read in one go: a block of the cache, which comes whole anyway."""
_ROWS_AT_A_TIME_BYTES = 64 << 20
Numbers = npt.NDArray[np.int64]


class NumberFile:
    """An array of rows in a file.

    Attributes:
        path: in the lake.
        rows: how many.
        entry: which version of the file is read.
    """

    def __init__(
        self, lake: Lake, path: LakePath, entry: Entry, dtype: np.dtype[np.integer], shape: tuple[int, ...], at: int
    ):
        self.path = path
        self.rows = shape[0]
        self.entry = entry
        self._lake = lake
        self._dtype = dtype
        self._shape = shape[1:]
        self._at = at
        self._row_bytes = dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))

    @classmethod
    async def open(cls, lake: Lake, path: LakePath, *, columns: int = 0, plain: str = "") -> NumberFile:
        """Return a file's rows.

        Args:
            columns: numbers in a row of a two-dimensional array, -1: any; 0: the array has one dimension.
            plain: dtype of a file that has no header; "": it has to have one.
        Raises:
            InvalidFeed: it is missing, no such array, or shorter or longer than it says.
        """
        entry = await file_entry(lake, path)
        size = entry.version.size
        head = await lake.read(path, entry.version, 0, min(size, _HEADER_BYTES)) if size else b""
        if not head.startswith(np.lib.format.MAGIC_PREFIX):
            if not plain:
                raise InvalidFeed(path, "is no .npy file")
            dtype = np.dtype(plain)
            if size == 0 or size % dtype.itemsize:
                raise InvalidFeed(path, f"holds {size} bytes, which are no array of {plain}: empty or cut off")
            return cls(lake, path, entry, dtype, (size // dtype.itemsize,), 0)
        dtype, shape, at = _header(head, path)
        wanted = 2 if columns else 1
        if len(shape) != wanted or (columns > 0 and shape[1] != columns) or dtype.kind not in "iu":
            raise InvalidFeed(path, f"is {dtype} of shape {shape}, not whole numbers in {wanted} dimensions")
        needed = at + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if needed != size:
            raise InvalidFeed(path, f"has {size} bytes where its header says {needed}: cut off, or more than one array")
        return cls(lake, path, entry, dtype, shape, at)

    async def slice(self, start: int, stop: int) -> Numbers:
        """Return rows [start, stop), all of which exist."""
        assert 0 <= start <= stop <= self.rows
        if start == stop:
            return np.zeros((0, *self._shape), np.int64)
        body = await self._lake.read(
            self.path, self.entry.version, self._at + start * self._row_bytes, (stop - start) * self._row_bytes
        )
        found = np.frombuffer(body, self._dtype).reshape(-1, *self._shape)
        if self._dtype.kind == "u" and self._dtype.itemsize == 8 and found.max() > np.iinfo(np.int64).max:
            raise InvalidFeed(self.path, f"row {start + int(found.argmax())}: {found.max()} is beyond any file")
        return found.astype(np.int64)

    async def take(self, rows: Numbers) -> Numbers:
        """Return these rows in this order.

        Raises:
            InvalidFeed: there is no such row; `rows` come from another file, which contradicts this one.
        """
        if not len(rows):
            return np.zeros((0, *self._shape), np.int64)
        if rows.min() < 0 or rows.max() >= self.rows:
            bad = rows[(rows < 0) | (rows >= self.rows)][0]
            raise InvalidFeed(self.path, f"has {self.rows} rows, row {bad} is asked for")
        wanted, places = np.unique(rows, return_inverse=True)
        runs = runs_of(wanted, near=max(1, _NEAR_BYTES // self._row_bytes), longest=_ROWS_AT_A_TIME_BYTES // self._row_bytes)
        found = np.concatenate(
            [
                block[wanted[first:end] - wanted[first]]
                for (first, end), block in zip(
                    runs,
                    await asyncio.gather(*(self.slice(int(wanted[a]), int(wanted[b - 1]) + 1) for a, b in runs)),
                    strict=True,
                )
            ]
        )
        return found[places.reshape(-1)]


def runs_of(wanted: Numbers, *, near: int, longest: int) -> list[tuple[int, int]]:
    """Return [start, end) index pairs of ascending numbers that lie within `near` of each other, in spans of `longest`."""
    runs: list[tuple[int, int]] = []
    start = 0
    for index in range(1, len(wanted) + 1):
        if index == len(wanted) or wanted[index] - wanted[index - 1] > near or wanted[index] - wanted[start] >= longest:
            runs.append((start, index))
            start = index
    return runs


def _header(head: bytes, path: LakePath) -> tuple[np.dtype[np.integer], tuple[int, ...], int]:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(stream)
    except ValueError as exc:
        raise InvalidFeed(path, f"has a broken header: {exc}") from exc
    if by_column and len(shape) > 1:
        raise InvalidFeed(path, "is in the order of columns")
    return dtype, shape, stream.tell()
