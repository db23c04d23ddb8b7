"""An HTTP(S) server that serves ranges, as a site.

Which version an object has
    The cache key depends on the version, so listing and stat must state the same one, and one file must not change its
    version without changing. What servers tell: nginx lists size and whole seconds in JSON, only minutes in HTML; HEAD
    adds an ETag, which nginx makes from the two and others make from more.
    - Version = size, Last-Modified in whole seconds, and the ETag if it says more than those two (`repeats_size_and_time`).
    - JSON rows may carry an "etag" key. A server whose rows have none but whose HEAD has a telling ETag would contradict
      itself; once such rows were seen the ETag is left out of versions.
    - HTML gives names only: each file is asked with HEAD, some at a time. Dates in minutes would hide rewrites.
    - A manifest is the authority where it is used: `stat` reads it too.
    - Second resolution hides a rewrite of equal size within the second. A file that is younger than two seconds when it
      is seen, and has no telling ETag, gets generation 1; seen later it has generation 0, so that bytes that were read
      meanwhile are fetched once more. This costs files that are read while they are new a second fetch, nothing else.
    - Directories have no times: a redirect states none.

Reading
    One ranged GET for each call, with If-Match (or If-Unmodified-Since) so that another version costs no body; status,
    encoding, ETag, Last-Modified, size and Content-Range are checked before the first byte is yielded, the length after
    the last. A server that answers 200 with the whole object is used as long as little has to be skipped.

Connections
    `connections` bounds transfers and stats. Listings have a pool without a bound: who walks a tree holds one unfinished
    listing for each level, and a bound could lock them up.

Limits: nginx lists no dot files; a directory with an index page shows the page instead of its listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from vfs import tls
from vfs.errors import Denied, ForemountError, NotADirectory, NotFound, Stale, WrongAnswer
from vfs.model import Entry, Kind, SiteName, SitePath, Version, join, split
from vfs.sites import httpanswers
from vfs.sites.credentials import SecretFile, parse_headers
from vfs.sites.listings import HtmlLinks, JsonRows
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece
from vfs.sites.transfer import body_range, new_session, pieces_of, translated
from vfs.sites.writing import Body

logger = logging.getLogger(__name__)

PAGE_ENTRIES = 1000
HEADS_AT_ONCE = 16
HEADS_PER_PAGE = 128
REDIRECTS_MAX = 5
SKIP_BYTES_MAX = 8 << 20
"""What is thrown away of a 200 to reach a range's start: a second at 64 Mbit/s. Beyond it the server is of no use."""
_FIRST_BYTE = {"Range": "bytes=0-0"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Row(msgspec.Struct):
    """One row of nginx's JSON; `etag` is an addition that other servers may make."""

    name: str
    type: str
    mtime: str = ""
    size: int | None = None
    etag: str = ""


READERS_HEADER = "Foremount-Readers"


class HttpSite:
    """Serves what lies below `url`.

    Tasks: HTML listings start HEADs in a TaskGroup that ends with their page. Flow: request → status → headers → body.
    """

    def __init__(
        self,
        name: SiteName,
        url: str,
        *,
        headers_file: str | None = None,
        connections: int = 32,
        files: tls.Files = tls.NO_FILES,
        stall_timeout_s: float = 30.0,
    ) -> None:
        self._name = name
        self._base = URL(url if url.endswith("/") else url + "/")
        self._secrets = SecretFile(headers_file, parse_headers, name) if headers_file else None
        self._connections = connections
        self._tls = tls.Client(files, f"sites.{name}.certificate") if any(files) else None
        self._stall_timeout_s = stall_timeout_s
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._has_etags = True

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"HttpSite({self._name!r}, {str(self._base.origin()) + self._base.raw_path!r})"

    async def stat(self, path: SitePath) -> Entry:
        _, last = split(path)
        async with self.answer("HEAD", path) as response:
            if response is None:
                return Entry(last, Kind.DIRECTORY, Version(0))
            if response.status == 200 and (not path or self._leads_to_directory(response, path)):
                return Entry(last, Kind.DIRECTORY, Version(0))
            if response.status == 200 and self._states_size(response):
                return Entry(last, Kind.FILE, self._version(response, int(response.headers["Content-Length"])))
            if response.status not in (200, 400, 405, 501):
                raise httpanswers.error_of(response.status, self._subject(path))
        return await self._stat_by_get(path)

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        names = NameFilter(self._name, path)
        async with self.answer("GET", path, pool="listings", slash=True) as response:
            if response is None:
                raise WrongAnswer(self._subject(path), "redirects to a path with one slash more")
            if response.status in (404, 410):
                raise await self._why_no_listing(path)
            if response.status != 200:
                raise httpanswers.error_of(response.status, self._subject(path))
            httpanswers.check_encoding(response.headers, self._subject(path))
            pages = self._json_pages if response.content_type == "application/json" else self._html_pages
            async for page in pages(response, path, names):
                yield page

    async def readers_borne(self) -> str:
        """Return how many readers the server says that its copies bear (`vfs/foresight/bearing.py`), "" where it does not."""
        async with self.answer("GET", SitePath(""), pool="listings", slash=True) as response:
            return "" if response is None else response.headers.get(READERS_HEADER, "")

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        subject = self._subject(path)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"} | httpanswers.conditions(version)
        async with self.answer("GET", path, headers) as response:
            if response is None or self._leads_to_directory(response, path):
                raise NotFound(subject, "is a directory now")
            skip, must_end = check_answer(response.status, response.headers, version, offset, length, subject)
            async for piece in body_range(response, subject, skip=skip, length=length, must_end=must_end):
                yield piece

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    @contextlib.asynccontextmanager
    async def answer(
        self,
        method: str,
        path: SitePath,
        headers: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        pool: str = "",
        slash: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse | None]:
        """Yield the answer, whatever its status, or None where the server redirects to the path with a slash: a directory.

        401 and 403 are answered by reading the credentials again, once. The connection is let go of at the end, and can
        be used again if the body was read to its end.

        Raises:
            Denied: 401 or 403, also with what the credentials are now.
            Unavailable, WrongAnswer: no answer that HTTP allows.
        """
        subject = self._subject(path)
        ask = functools.partial(self._follow, method, self.url(path, slash=slash), dict(headers or {}), body, pool, subject)
        response = None
        try:
            with translated(subject):
                secret = self._secrets.current() if self._secrets else {}
                response = await ask(secret)
                if response is not None and response.status in (401, 403):
                    response.release()
                    if self._secrets is None or not self._secrets.renewed(secret):
                        raise httpanswers.error_of(response.status, subject)
                    response = await ask(self._secrets.current())
                    if response is not None and response.status in (401, 403):
                        raise httpanswers.error_of(response.status, subject)
                yield response
        finally:
            if response is not None:
                response.release()

    async def _follow(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        body: Body | None,
        pool: str,
        subject: str,
        secret: Mapping[str, str],
    ) -> aiohttp.ClientResponse | None:
        """Send a request and follow its redirects; other origins do not get to see the credentials."""
        here = url
        for _ in range(REDIRECTS_MAX + 1):
            own = dict(secret) if here.origin() == self._base.origin() else {}
            sent = None if body is None else body.pieces()
            response = await self._session(pool).request(
                method, here, headers=own | headers, data=sent, allow_redirects=False, ssl=self._trusted()
            )
            if response.status not in _REDIRECTS or "Location" not in response.headers:
                return response
            response.release()
            there = _target(here, response.headers["Location"], subject)
            if there.raw_path == here.raw_path + "/":
                return None
            here = there
        raise WrongAnswer(subject, f"redirects more than {REDIRECTS_MAX} times")

    async def _stat_by_get(self, path: SitePath, headers: Mapping[str, str] = _FIRST_BYTE) -> Entry:
        """Return the entry as a GET of one byte tells it, where HEAD is refused or states no size."""
        subject = self._subject(path)
        async with self.answer("GET", path, headers) as response:
            if response is None or (response.status in (200, 206) and not path):
                return Entry(split(path)[1], Kind.DIRECTORY, Version(0))
            if response.status not in (200, 206, 416):
                raise httpanswers.error_of(response.status, subject)
            if response.status != 416:
                httpanswers.check_encoding(response.headers, subject)
                size = httpanswers.stated_size(response.status, response.headers)
                if size is None:
                    raise WrongAnswer(subject, "the server does not tell its size", "list it in a manifest")
                return Entry(split(path)[1], Kind.FILE, self._version(response, size))
            if not headers:
                raise WrongAnswer(subject, "refuses a range that was not asked")
        return await self._stat_by_get(path, {})  # 416: empty, and that answer has neither ETag nor time

    async def _why_no_listing(self, path: SitePath) -> ForemountError:
        """Return why there is no directory here."""
        if path and (await self.stat(path)).kind is Kind.FILE:
            return NotADirectory(self._subject(path))
        return NotFound(self._subject(path))

    async def _json_pages(
        self, response: aiohttp.ClientResponse, path: SitePath, names: NameFilter
    ) -> AsyncIterator[Sequence[Entry]]:
        subject = self._subject(path)
        answered_s = httpanswers.seconds_of(response.headers.get("Date", ""))
        rows = JsonRows(subject)
        async for received, last in pieces_of(response):
            for page in _pages(rows.feed(received, last=last)):
                if entries := self._entries(page, answered_s, names, subject):
                    yield entries

    def _entries(self, rows: Sequence[dict[str, Any]], answered_s: int, names: NameFilter, subject: str) -> Sequence[Entry]:
        """Return the entries that nginx's rows state; sockets and dangling links are left out."""
        try:
            typed = msgspec.convert(rows, list[Row])
        except msgspec.ValidationError as exc:
            raise WrongAnswer(subject, f"is no listing of nginx: {exc}") from exc
        entries = []
        for row in typed:
            if row.type not in ("file", "directory") or not names.admits(row.name):
                continue
            if row.type == "directory":
                entries.append(Entry(row.name, Kind.DIRECTORY, Version(0)))
                continue
            if row.size is None:
                raise WrongAnswer(subject, "the listing states no size")
            if not row.etag:
                self._has_etags = False
            version = httpanswers.version_from(row.size, httpanswers.seconds_of(row.mtime), row.etag, answered_s)
            entries.append(Entry(row.name, Kind.FILE, version))
        return entries

    async def _html_pages(
        self, response: aiohttp.ClientResponse, path: SitePath, names: NameFilter
    ) -> AsyncIterator[Sequence[Entry]]:
        if response.content_type not in ("text/html", "application/xhtml+xml"):
            raise WrongAnswer(self._subject(path), f"lists its files as {response.content_type}", "use a manifest")
        if "Content-Length" not in response.headers and "Transfer-Encoding" not in response.headers:
            raise WrongAnswer(self._subject(path), "a cut listing would look like a short one", "use a manifest")
        links = HtmlLinks(self._subject(path), str(self.url(path, slash=True)))
        async for received, last in pieces_of(response):
            for page in _pages(links.take(received, last=last), HEADS_PER_PAGE):
                shown = [(name, is_directory) for name, is_directory in page if names.admits(name)]
                if entries := await self._stat_all(path, shown):
                    yield entries

    async def _stat_all(self, path: SitePath, links: Sequence[tuple[str, bool]]) -> Sequence[Entry]:
        """Return the entries behind links, in order; what vanished or is refused is left out."""
        turns = asyncio.Semaphore(min(HEADS_AT_ONCE, self._connections))

        async def look(name: str, is_directory: bool) -> Entry | None:
            if is_directory:
                return Entry(name, Kind.DIRECTORY, Version(0))
            async with turns:
                try:
                    return await self.stat(SitePath(join(path, name)))
                except (NotFound, Denied) as exc:
                    logger.debug("%s is listed, but: %s", self._subject(join(path, name)), exc)
                    return None

        try:
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(look(*link)) for link in links]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [entry for entry in (task.result() for task in looks) if entry is not None]

    def _version(self, response: aiohttp.ClientResponse, size: int) -> Version:
        headers = response.headers
        etag = headers.get("ETag", "") if self._has_etags else ""
        modified_s, answered_s = (httpanswers.seconds_of(headers.get(name, "")) for name in ("Last-Modified", "Date"))
        return httpanswers.version_from(size, modified_s, etag, answered_s)

    def _states_size(self, response: aiohttp.ClientResponse) -> bool:
        encoded = response.headers.get("Content-Encoding", "identity").lower() != "identity"
        return "Content-Length" in response.headers and not encoded

    def _leads_to_directory(self, response: aiohttp.ClientResponse, path: SitePath) -> bool:
        """Return whether a chain of redirects ended at a path with a slash."""
        return bool(path) and response.url.raw_path.endswith("/")

    def _trusted(self) -> ssl.SSLContext | bool:
        return self._tls.context() if self._tls is not None else True

    def _session(self, pool: str) -> aiohttp.ClientSession:
        if pool not in self._sessions:
            limit = 0 if pool else self._connections
            self._sessions[pool] = new_session(connections=limit, stall_timeout_s=self._stall_timeout_s)
        return self._sessions[pool]

    def url(self, path: SitePath, *, slash: bool = False) -> URL:
        """Return where an object is, or with `slash` a directory."""
        raw = self._base.raw_path + quote(path, safe="/", errors="surrogateescape") + ("/" if slash and path else "")
        return self._base.with_path(raw, encoded=True, keep_query=True)

    def _subject(self, path: str) -> str:
        return f"{self._name}:{path}"


def check_answer(
    status: int, headers: Mapping[str, str], version: Version, offset: int, length: int, subject: str
) -> tuple[int, bool]:
    """Return (bytes to skip, whether the body ends after the range) of an answer to a ranged GET.

    Pure.

    Raises:
        Stale, NotFound, Denied, Throttled, Unavailable, WrongAnswer: it holds nothing that may be yielded.
    """
    if status == 416:
        total = httpanswers.total_size(headers.get("Content-Range", ""))
        if total is not None and total != version.size:
            raise Stale(subject)
        raise WrongAnswer(subject, f"refuses the range {offset}-{offset + length - 1}")
    if status not in (200, 206):
        raise httpanswers.error_of(status, subject)
    httpanswers.check_encoding(headers, subject)
    announced = int(headers["Content-Length"]) if headers.get("Content-Length", "").isdigit() else None
    if status == 206:
        content_range = headers.get("Content-Range", "")
        httpanswers.check_version(headers, httpanswers.total_size(content_range), version, subject)
        httpanswers.check_range(content_range, offset, length, subject)
        if announced is not None and announced != length:
            raise WrongAnswer(subject, f"announces {announced} bytes for a range of {length}")
        return 0, True
    httpanswers.check_version(headers, announced, version, subject)
    if offset > SKIP_BYTES_MAX:
        raise WrongAnswer(subject, "the server does not serve ranges", "put it behind one that does")
    return offset, offset + length == version.size


def _pages(items: Sequence[Any], size: int = PAGE_ENTRIES) -> Sequence[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _target(here: URL, location: str, subject: str) -> URL:
    try:
        there = here.join(URL(location, encoded=True))
    except ValueError as exc:
        raise WrongAnswer(subject, "redirects to what is no URL") from exc
    if there.scheme not in ("http", "https"):
        raise WrongAnswer(subject, "redirects to what is no HTTP")
    return there
