"""An HTTP server that lists nothing, with a file that names every object.

The manifest is one JSON array, in any order, of

    {"path": "run7/step_12/model.safetensors", "size": 90900000, "mtime": 1764000000.25, "etag": "\\"5f3e\\""}

`path` and `size` (bytes) are needed; `mtime` (seconds since the epoch) and `etag` (as the server's ETag header has it) make
rewrites of equal size visible. Other keys are ignored. Directories are where objects lie below them.

Sketch: a million objects are 100 MB of JSON. It is read as it arrives into a temporary SQLite database on disk (some 10 s),
so that memory stays flat, a stat costs 10 us and a listing touches only its own rows. Each call asks the server whether the
manifest is still the same (304); a new one is loaded beside the old one, which serves who still lists from it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from vfs.errors import NotADirectory, NotFound, Unavailable, WrongAnswer
from vfs.model import Entry, Kind, SiteName, SitePath, Version, split
from vfs.sites import httpanswers
from vfs.sites.http import HttpSite
from vfs.sites.listings import JsonRows
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece
from vfs.sites.transfer import pieces_of

PAGE_ENTRIES = 1000
T = TypeVar("T")


class Row(msgspec.Struct):
    """One object in the manifest."""

    path: str
    size: int
    mtime: float = 0
    etag: str = ""


class Index:
    """The objects of one manifest in a private SQLite database, which is gone with the last reference to it.

    Used from one thread at a time. Rows are (path, size, mtime_ns, etag), ordered by path.
    """

    def __init__(self) -> None:
        self._rows = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._rows.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-8192;"
            "CREATE TABLE objects(path TEXT PRIMARY KEY, size INT, mtime_ns INT, etag TEXT) WITHOUT ROWID; BEGIN"
        )

    def add(self, rows: Sequence[Row]) -> None:
        """Add objects; of two with one path the later counts."""
        self._rows.executemany(
            "INSERT OR REPLACE INTO objects VALUES(?, ?, ?, ?)",
            [(row.path, row.size, round(row.mtime * 1e9), row.etag) for row in rows],
        )

    def seal(self) -> None:
        """Say that no more rows will come."""
        self._rows.execute("COMMIT")

    def entry(self, path: str) -> Entry | None:
        """Return the entry of an object or of a directory, None where nothing is."""
        row = self._rows.execute("SELECT size, mtime_ns, etag FROM objects WHERE path = ?", (path,)).fetchone()
        if row is not None:
            return Entry(split(path)[1], Kind.FILE, Version(*row))
        if not path or next(self._after(f"{path}/", f"{path}0"), None):
            return Entry(split(path)[1], Kind.DIRECTORY, Version(0))
        return None

    def children(self, path: str, after: str) -> tuple[list[Entry], str]:
        """Return up to a page of the entries in a directory, and where the next page begins ("": there is none).

        Args:
            after: "" for the first page.
        """
        lead = f"{path}/" if path else ""
        end = f"{path}0" if path else None  # "0" follows "/"
        at = after or lead
        page: list[Entry] = []
        while len(page) < PAGE_ENTRIES:
            at_before = at
            for row_path, *version in self._after(at, end):
                name, slash, _ = row_path[len(lead) :].partition("/")
                if slash:
                    # skip what lies below; the object of the same name, if there is one, was listed already
                    at = f"{lead}{name}0"
                    if not self._is_object(lead + name):
                        page.append(Entry(name, Kind.DIRECTORY, Version(0)))
                    break
                at = row_path + "\0"
                page.append(Entry(name, Kind.FILE, Version(*version)))
                if len(page) == PAGE_ENTRIES:
                    break
            if at == at_before:
                return page, ""
        return page, at

    def _after(self, first: str, end: str | None) -> Iterator[Any]:
        if end is None:
            return self._rows.execute("SELECT * FROM objects WHERE path >= ? ORDER BY path", (first,))
        return self._rows.execute("SELECT * FROM objects WHERE path >= ? AND path < ? ORDER BY path", (first, end))

    def _is_object(self, path: str) -> bool:
        return self._rows.execute("SELECT 1 FROM objects WHERE path = ?", (path,)).fetchone() is not None


class ManifestSite:
    """Lists and stats from the manifest, reads from the server.

    Invariant: `_index` holds the manifest of `_validators`.
    """

    def __init__(self, server: HttpSite, manifest: str) -> None:
        self._server = server
        self._path = SitePath(manifest.strip("/"))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"manifest-{server.name}")
        self._turn = asyncio.Lock()
        self._index: Index | None = None
        self._validators: dict[str, str] = {}

    @property
    def name(self) -> SiteName:
        return self._server.name

    def __repr__(self) -> str:
        return f"ManifestSite({self._server!r}, {self._path!r})"

    async def stat(self, path: SitePath) -> Entry:
        index = await self._current()
        entry = await self._call(index.entry, path)
        if entry is None:
            raise NotFound(f"{self.name}:{path}")
        return entry

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        index = await self._current()
        entry = await self._call(index.entry, path)
        if entry is None:
            raise NotFound(f"{self.name}:{path}")
        if entry.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{self.name}:{path}")
        after = ""
        while True:
            page, after = await self._call(index.children, path, after)
            if page:
                yield page
            if not after:
                return

    def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        return self._server.read(path, version, offset, length)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._server.close()

    async def _current(self) -> Index:
        """Return the index of the manifest as it is now; callers that come together ask once.

        Cancellation: a load that was begun is given up; the next caller begins again.
        """
        arrived = self._index
        async with self._turn:
            if self._index is None or self._index is arrived:
                self._index = await self._load()
            return self._index

    async def _load(self) -> Index:
        subject = f"{self.name}:{self._path}"
        asked = dict(self._validators) if self._index is not None else {}
        async with self._server.answer("GET", self._path, asked, pool="listings") as response:
            if response is not None and response.status == 304 and self._index is not None:
                return self._index
            if response is None or response.status in (404, 410):
                raise Unavailable(subject, "the manifest is missing", "its absence does not say that the objects are gone")
            if response.status != 200:
                raise httpanswers.error_of(response.status, subject)
            httpanswers.check_encoding(response.headers, subject)
            index, rows, names = Index(), JsonRows(subject), NameFilter(self.name, self._path)
            async for received, last in pieces_of(response):
                await self._call(index.add, objects_of(rows.feed(received, last=last), names, subject))
            await self._call(index.seal)
            self._validators = _validators_of(response.headers)
            return index

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


def _validators_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions for asking whether the manifest is still this one; none while it is too new to be told apart."""
    modified_s, answered_s = (httpanswers.seconds_of(headers.get(name, "")) for name in ("Last-Modified", "Date"))
    size = int(headers.get("Content-Length", "0"))
    if httpanswers.version_from(size, modified_s, headers.get("ETag", ""), answered_s).generation:
        return {}
    return {
        condition: headers[header]
        for condition, header in (("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified"))
        if header in headers
    }


def objects_of(rows: Sequence[dict[str, Any]], names: NameFilter, subject: str) -> list[Row]:
    """Return the objects that rows of a manifest name, without those whose path POSIX can't carry.

    Raises:
        WrongAnswer: a row has no path or size, or one of the wrong type.
    """
    try:
        typed = msgspec.convert(rows, list[Row])
    except msgspec.ValidationError as exc:
        raise WrongAnswer(subject, f"is no manifest: {exc}") from exc
    if any(row.size < 0 for row in typed):
        raise WrongAnswer(subject, "is no manifest: a size is negative")
    return [row for row in typed if all(names.admits(component) for component in row.path.split("/"))]
