"""Samples of WebDataset tars by the index that Energon writes: `.nv-meta/index.sqlite` and `.nv-meta/.info.json`.

SQLite needs a local file: the index is copied once, to a file without a name. It is read by few statements of ours, on
tables alone: what else a hostile file may have for the asking (views, triggers, virtual tables) is refused by the library
before it runs, and so is a statement that takes too long.

Tasks: none; statements run in threads, one at a time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import IO, Any

import msgspec
import numpy as np

from vfs.errors import InvalidFeed
from vfs.model import Entry, LakePath, can_posix_carry, join, split
from vfs.oserrors import Translated
from vfs.samples import tree
from vfs.samples.feeds.files import file_entry, json_file
from vfs.samples.feeds.numbers import Numbers
from vfs.samples.feeds.protocol import Found, Lake

INDEX_BYTES_MAX = 16 << 30
_INFO_BYTES_MAX = 64 << 20
_PIECE_BYTES = 8 << 20
_TEXT_BYTES_MAX = 1 << 20
_OPERATIONS = 100_000
"""Of SQLite's machine between two looks; a look costs some microseconds."""
_LOOKS_TO_FIND = 10
"""A sample found by an index takes some hundred operations, in all the table some ten for each row."""
_COLUMNS = {
    "samples": ("tar_file_id", "sample_key", "sample_index", "byte_offset", "byte_size"),
    "sample_parts": ("tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size"),
}
_COUNTS = "SELECT tar_file_id, COUNT(*), MIN(sample_index), MAX(sample_index) FROM samples GROUP BY tar_file_id"
_SAMPLE = "SELECT sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? AND sample_index = ?"
_PART = (
    "SELECT content_byte_offset, content_byte_size FROM sample_parts"
    " WHERE tar_file_id = ? AND sample_index = ? AND part_name = ?"
)


class _Info(msgspec.Struct, frozen=True):
    """`.info.json`: samples by tar, in the order of `tar_file_id`; what else is said does not matter here."""

    shard_counts: dict[str, int]


class Energon:
    """The tars that an index of Energon's names.

    Attributes:
        count, entries: as `Bytes`.

    Args:
        part: name of the file that is the sample; "": the slice of the tar with all its files.
    """

    def __init__(
        self,
        tars: list[tuple[LakePath, Entry]],
        counts: Sequence[int],
        index: _Index,
        files: Sequence[tuple[LakePath, Entry]],
        part: str,
    ) -> None:
        self._tars = tars
        self._index = index
        self._part = part
        self._ends = np.cumsum(counts)
        self.count = int(self._ends[-1])
        self.entries: Sequence[tuple[LakePath, Entry]] = [*tars, *files]

    @classmethod
    async def open(cls, lake: Lake, directory: LakePath, part: str) -> Energon:
        """Return the samples of a directory that Energon has prepared.

        Raises:
            InvalidFeed: a file is missing, can't be used, or contradicts another.
        """
        meta = LakePath(join(directory, ".nv-meta"))
        info_path, index_path = LakePath(join(meta, ".info.json")), LakePath(join(meta, "index.sqlite"))
        info_entry, index_entry = await file_entry(lake, info_path), await file_entry(lake, index_path)
        said = await _info(lake, info_path, info_entry)
        paths = [LakePath(join(directory, name)) for name in said.shard_counts]
        tars = list(zip(paths, await asyncio.gather(*(file_entry(lake, path) for path in paths)), strict=True))
        if index_entry.version.size > INDEX_BYTES_MAX:
            raise InvalidFeed(index_path, f"has {index_entry.version.size} bytes")
        with Translated(tempfile.gettempdir()), tempfile.NamedTemporaryFile(prefix="foremount-index-") as copy:
            await _copy(lake, index_path, index_entry, copy)
            index = await asyncio.to_thread(_Index, copy.name, index_path, index_entry.version.size)
        await asyncio.to_thread(index.check, list(said.shard_counts.values()), with_parts=bool(part))
        files = [(info_path, info_entry), (index_path, index_entry)]
        return cls(tars, list(said.shard_counts.values()), index, files, part)

    async def find(self, numbers: Numbers) -> Sequence[Found]:
        """Return where each sample lies."""
        return await asyncio.to_thread(lambda: [self._find(int(number)) for number in numbers])

    def _find(self, number: int) -> Found:
        tar = int(np.searchsorted(self._ends, number, "right"))
        row = number - (int(self._ends[tar - 1]) if tar else 0)
        path, entry = self._tars[tar]
        key, start, size = self._index.one(_SAMPLE, (tar, row), row)
        sample_id = split(key)[1] if isinstance(key, str) else ""
        if not tree.is_sample_id(sample_id):
            raise self._index.refused(tar, row, f"is called {key!r}, which is no name of a file")
        if self._part:
            start, size = self._index.one(_PART, (tar, row, self._part), row)
        if not (isinstance(start, int) and isinstance(size, int) and 0 <= start < start + size <= entry.version.size):
            raise self._index.refused(tar, row, f"[{start!r}, +{size!r}) is no part of {path} of {entry.version.size} bytes")
        return sample_id, path, ((start, size),)


class _Index:
    """The database, read-only. Thread-safe.

    Invariant: `_looks` is how often the statement that runs may be looked at yet, under `_lock`.

    Args:
        file: a copy that nobody else writes to; it may be removed afterwards.
        path, size: of the original.
    """

    def __init__(self, file: str, path: LakePath, size: int) -> None:
        self._path = path
        self._size = size
        self._lock = threading.Lock()
        self._looks = 0
        try:
            self._connection = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        except sqlite3.Error as exc:
            raise InvalidFeed(path, f"can't be opened: {exc}") from exc
        weakref.finalize(self, self._connection.close)
        for statement in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            self._connection.execute(f"PRAGMA {statement}")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _TEXT_BYTES_MAX)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.set_progress_handler(self._look, _OPERATIONS)

    def check(self, counts: Sequence[int], *, with_parts: bool) -> None:
        """Refuse an index that is none of Energon's, or does not have these samples.

        Raises:
            InvalidFeed: it is so.
        """
        (((page, pages),),) = (self._rows("SELECT * FROM pragma_page_size, pragma_page_count", (), 1),)
        if page * pages != self._size:
            raise InvalidFeed(self._path, f"has {self._size} bytes where its header says {page * pages}: cut off")
        for table in ("samples", "sample_parts") if with_parts else ("samples",):
            kinds = self._rows("SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,), 1)
            columns = {row[0] for row in self._rows("SELECT name FROM pragma_table_info(?)", (table,), 1)}
            if kinds != [("table",)] or not columns >= set(_COLUMNS[table]):
                raise InvalidFeed(self._path, f"has no table {table!r} as Energon writes it", "energon prepare makes one")
        self._connection.set_authorizer(_only_reading_tables)
        looks = 10 + sum(counts) * 100 // _OPERATIONS
        found = {row[0]: row[1:] for row in self._rows(_COUNTS, (), looks)}
        for tar, count in enumerate(counts):
            if found.pop(tar, (0, None, None)) != (count, 0, count - 1):
                raise InvalidFeed(self._path, f"tar {tar}: does not have the {count} samples that .info.json says")
        if found:
            raise InvalidFeed(self._path, f"has samples of tar {min(found, key=repr)!r}, which .info.json does not name")

    def one(self, statement: str, arguments: tuple[object, ...], row: int) -> tuple[Any, ...]:
        """Return the one row that there has to be.

        Raises:
            InvalidFeed: there is none, or more than one.
        """
        found = self._rows(statement, arguments, _LOOKS_TO_FIND)
        if len(found) != 1:
            what = f"stands there {len(found)} times" if found else f"has no {arguments[-1]!r}"
            raise self.refused(int(str(arguments[0])), row, what)
        return found[0]

    def refused(self, tar: int, row: int, why: str) -> InvalidFeed:
        """Return the error of a row."""
        return InvalidFeed(self._path, f"tar {tar}, row {row}: {why}")

    def _rows(self, statement: str, arguments: tuple[object, ...], looks: int) -> list[tuple[Any, ...]]:
        with self._lock:
            self._looks = looks
            try:
                return self._connection.execute(statement, arguments).fetchall()
            except (sqlite3.Error, OverflowError, UnicodeDecodeError) as exc:  # the last of the module's own messages
                if self._looks < 0:
                    raise InvalidFeed(
                        self._path, "can't be searched: it has no indices", "energon prepare makes them"
                    ) from exc
                raise InvalidFeed(self._path, f"is broken or cut off: {exc}") from exc

    def _look(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def _only_reading_tables(action: int, first: str | None, *_: str | None) -> int:
    """Return whether SQLite may do what a statement of ours needs; nothing of a schema can need more."""
    if action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and first in _COLUMNS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_FUNCTION else sqlite3.SQLITE_DENY


async def _info(lake: Lake, path: LakePath, entry: Entry) -> _Info:
    said = await json_file(lake, path, entry, _Info, bytes_max=_INFO_BYTES_MAX, refusal="is no .info.json of Energon's")
    for name, count in said.shard_counts.items():
        if not all(can_posix_carry(part) for part in name.split("/")) or count < 1:
            raise InvalidFeed(path, f"says {count} samples of {name!r}")
    if not said.shard_counts:
        raise InvalidFeed(path, "names no tar")
    return said


async def _copy(lake: Lake, path: LakePath, entry: Entry, copy: IO[bytes]) -> None:
    size = entry.version.size
    for offset in range(0, size, _PIECE_BYTES):
        body = await lake.read(path, entry.version, offset, min(_PIECE_BYTES, size - offset))
        await asyncio.to_thread(copy.write, body)
    copy.flush()
