"""Trace files: Parquet, one row for each open, read and close, so that any tool that reads tables reads them.

What a replay needs beside the rows is in the file's metadata: under "foremount" the setting and the measured lines as JSON,
under "foremount.layouts" the layouts of the files that were read. Paths are those below the mount point; no trace holds bytes
of files.

Memory: one row group of rows (3 MiB), the names of at most `FILES_MAX` files, and `LAYOUTS_BYTES_MAX` of layouts.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vfs.errors import ForemountError, NoSpace, NotFound, Unavailable
from vfs.extents.spans import Spans
from vfs.model import LakePath, SiteName, Version
from vfs.traces.recording import Line, PackedLayout, Said, Setting
from vfs.traces.records import RECORD, How
from vfs.units import decode_unit, encode_unit

GROUP_ROWS = 65_536
FILES_MAX = 200_000
LAYOUTS_BYTES_MAX = 32 << 20
_RAW = np.dtype(
    [("at", "<u8"), ("wait", "<u8"), ("file", "<u8"), ("offset", "<u8"), ("length", "<u4"), ("thread", "<u4"), ("how", "u1")]
)
assert _RAW.itemsize == RECORD.size
_TEXT = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("thread", pa.uint32()),
        ("path", _TEXT),
        ("how", _TEXT),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("wait_ns", pa.int64()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("etag", _TEXT),
        ("generation", pa.int64()),
    ]
)
_HOWS = [how.name.lower() for how in How]
_META, _LAYOUTS = b"foremount", b"foremount.layouts"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself.

    Attributes:
        rows: events that are in it.
        requests, fetched_bytes: to sites and from them while it was recorded; since the last gap where there was one.
        lost: events that happened and are not in it.
        gaps: times that the agent was started again, during which nothing was recorded.
        layouts_left_out: layouts that were too large to be kept; their files are replayed as plain bytes.
    """

    format: int = 1
    setting: Setting
    lines: dict[SiteName, Line]
    rows: int
    requests: int
    fetched_bytes: int
    lost: int
    gaps: int = 0
    layouts_left_out: int = 0


class TraceWriter:
    """Writes one file; it is there under its name once `close` has returned.

    Attributes:
        rows, lost, gaps: so far.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._partial = f"{path}.partial"
        try:
            self._file = os.fdopen(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")
        except OSError as exc:
            raise Unavailable(path, f"can't be written: {exc.strerror}") from exc
        self._parquet = pq.ParquetWriter(self._file, _SCHEMA, compression="zstd")
        self._setting: Setting | None = None
        self._lines: dict[SiteName, Line] = {}
        self._fetched = (0, 0)
        self._files: OrderedDict[tuple[int, int], tuple[LakePath, Version]] = OrderedDict()
        self._pending: list[tuple[int, npt.NDArray[np.void]]] = []
        self._pending_rows = 0
        self._layouts: dict[str, PackedLayout] = {}
        self._layouts_bytes = self._layouts_left_out = 0
        self.rows = self.lost = self.gaps = 0

    @property
    def size(self) -> int:
        """Return the bytes of the file so far, and what is not written yet at the least that it may become."""
        return self._file.tell() + self._layouts_bytes

    def add(self, said: Said) -> None:
        """Take a line of a recording.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        self.gaps += said.setting is not None and self._setting is not None
        self._setting = said.setting or self._setting
        if said.lines:
            self._lines |= said.lines
            self._fetched = said.requests, said.fetched_bytes
        self.lost += said.lost
        for number, path, version in said.files:
            self._files[said.worker, number] = path, version
            self._files.move_to_end((said.worker, number))
        while len(self._files) > FILES_MAX:
            self._files.popitem(last=False)
        if said.layout is not None:
            self._keep_layout(said.layout)
        if said.records:
            rows = np.frombuffer(said.records, _RAW)
            self.rows += len(rows)
            self._pending.append((said.worker, rows))
            self._pending_rows += len(rows)
            if self._pending_rows >= GROUP_ROWS:
                self._write()

    def close(self) -> None:
        """Finish the file.

        Raises:
            Unavailable: the recording never began, or the disk refuses.
            NoSpace: the disk is full.
        """
        if self._setting is None:
            self.discard()
            raise Unavailable(self._path, "nothing was recorded")
        self._write()
        meta = Meta(
            setting=self._setting,
            lines=self._lines,
            rows=self.rows,
            requests=self._fetched[0],
            fetched_bytes=self._fetched[1],
            lost=self.lost,
            gaps=self.gaps,
            layouts_left_out=self._layouts_left_out,
        )
        self._parquet.add_key_value_metadata(
            {
                _META: msgspec.json.encode(meta, enc_hook=encode_unit),
                _LAYOUTS: msgspec.json.encode(list(self._layouts.values())),
            }
        )
        try:
            self._parquet.close()
            self._file.close()
            os.replace(self._partial, self._path)
        except OSError as exc:
            raise _refused(self._path, exc) from exc

    def discard(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError, pa.ArrowException):  # what it can't finish is not wanted
            self._parquet.close()
        self._file.close()
        os.unlink(self._partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and not self._file.closed:
            self.discard()

    def _keep_layout(self, layout: PackedLayout) -> None:
        if layout.key in self._layouts:
            return
        if self._layouts_bytes + len(layout.packed) > LAYOUTS_BYTES_MAX:
            self._layouts_left_out += 1
            return
        self._layouts[layout.key] = layout
        self._layouts_bytes += len(layout.packed)

    def _write(self) -> None:
        """Write what is pending as one row group."""
        for worker in {worker for worker, _ in self._pending}:
            rows = np.concatenate([rows for by, rows in self._pending if by == worker])
            try:
                self._parquet.write_table(self._table(worker, rows))
            except OSError as exc:
                raise _refused(self._path, exc) from exc
        self._pending, self._pending_rows = [], 0

    def _table(self, worker: int, rows: npt.NDArray[np.void]) -> pa.Table:
        numbers, places = np.unique(rows["file"], return_inverse=True)
        nobody = LakePath(""), Version(0)
        known = [self._files.get((worker, int(number)), nobody) for number in numbers]
        versions = [version for _, version in known]
        return pa.table(
            [
                pa.array((rows["at"] // 1000).astype("datetime64[us]"), pa.timestamp("us", "UTC")),
                pa.array(rows["thread"]),
                _texts([path for path, _ in known], places),
                _texts(_HOWS, rows["how"]),
                pa.array(rows["offset"].astype(np.int64)),
                pa.array(rows["length"].astype(np.int64)),
                pa.array(rows["wait"].astype(np.int64)),
                pa.array(np.array([version.size for version in versions], np.int64)[places]),
                pa.array(np.array([version.mtime_ns for version in versions], np.int64)[places]),
                _texts([version.etag for version in versions], places),
                pa.array(np.array([version.generation for version in versions], np.int64)[places]),
            ],
            schema=_SCHEMA,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file in memory. Columns have one entry for each event, in the order of time.

    Attributes:
        at_ns: when the event began, from the first one.
        file: index into `files`, -1 where it is not known.
        how: `How` values.
    """

    meta: Meta
    files: list[tuple[LakePath, Version]]
    layouts: list[PackedLayout]
    at_ns: npt.NDArray[np.int64]
    wait_ns: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    how: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.at_ns)

    def wanted_bytes(self, files: Collection[int]) -> int:
        """Return the distinct bytes that were read of these files (indices)."""
        spans = [Spans() for _ in self.files]
        for index in np.flatnonzero(np.isin(self.how, (How.HIT, How.FETCHED)) & (self.length > 0)):
            offset = int(self.offset[index])
            spans[self.file[index]].add(offset, offset + int(self.length[index]))
        return sum(spans[file].total for file in files)


def load(path: str) -> Trace:
    """Return a trace file's content.

    Raises:
        NotFound: there is no such file.
        Unavailable: it can't be read, or is no trace.
    """
    try:
        parquet = pq.ParquetFile(path)
        stated = parquet.metadata.metadata or {}
        meta = msgspec.json.decode(stated[_META], type=Meta, dec_hook=decode_unit)
        layouts = msgspec.json.decode(stated[_LAYOUTS], type=list[PackedLayout])
        table = parquet.read()
    except FileNotFoundError as exc:
        raise NotFound(path, "no such file", "record one with foremount trace") from exc
    except (OSError, pa.ArrowException, KeyError, msgspec.DecodeError) as exc:
        raise Unavailable(path, f"is no trace: {str(exc).splitlines()[0]}", "record one with foremount trace") from exc
    table = table.unify_dictionaries().combine_chunks()
    order = np.argsort(table["at"].cast(pa.int64()).to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    files, file = _files(table)
    at = table["at"].cast(pa.int64()).to_numpy()
    numbers = {name: _numbers(table, name) for name in ("wait_ns", "thread", "offset", "length")}
    hows = np.array([_HOWS.index(how) for how in _dictionary(table, "how")] or [0], np.int64)
    return Trace(
        meta,
        files,
        layouts,
        1000 * (at - at[:1].sum()),
        numbers["wait_ns"],
        numbers["thread"],
        file,
        hows[_indices(table, "how")] if len(table) else np.zeros(0, np.int64),
        numbers["offset"],
        numbers["length"],
    )


def _files(table: pa.Table) -> tuple[list[tuple[LakePath, Version]], npt.NDArray[np.int64]]:
    """Return the versions of files that a trace names, and for each row which one it is."""
    columns = [_indices(table, "path"), _numbers(table, "size"), _numbers(table, "mtime_ns"), _indices(table, "etag")]
    rows = np.stack([*columns, _numbers(table, "generation")], axis=1) if len(table) else np.zeros((0, 5), np.int64)
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    paths, etags = _dictionary(table, "path"), _dictionary(table, "etag")
    files = [
        (LakePath(paths[path]), Version(int(size), int(mtime_ns), etags[etag], int(generation)))
        for path, size, mtime_ns, etag, generation in unique
    ]
    return files, places.reshape(-1).astype(np.int64)


def _texts(texts: list[str], places: npt.NDArray[np.integer]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(places.reshape(-1).astype(np.int32)), pa.array(texts, pa.string()))


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(table[name].to_numpy(), np.int64)


def _indices(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(_column(table, name).indices.to_numpy(zero_copy_only=False), np.int64)


def _dictionary(table: pa.Table, name: str) -> list[str]:
    return [str(text) for text in _column(table, name).dictionary.to_pylist()]


def _column(table: pa.Table, name: str) -> pa.DictionaryArray:
    chunks = table[name].combine_chunks()
    return chunks if isinstance(chunks, pa.DictionaryArray) else chunks.chunk(0)


def _refused(path: str, error: OSError) -> ForemountError:
    kind = NoSpace if error.errno == 28 else Unavailable
    return kind(path, f"can't be written: {error.strerror or error}")
