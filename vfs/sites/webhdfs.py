"""HDFS through WebHDFS, as a site.

A file's version is size, modification time in ms and HDFS's file id, which a file keeps for life and no other gets.

A read is OPEN at the NameNode, which redirects to a DataNode that holds the block, and the DataNode's answer. OPEN knows no
condition, so the status is asked once the DataNode has answered: it has the file open then and goes on with that one,
whatever happens to the name. Ids don't come back, so a status that fits proves the bytes; they arrive meanwhile. Cost: three
round trips for each read and a connection that the DataNode closes; read large ranges.

DataNodes up to Hadoop 2.7 decode paths twice: asked for a file "%41" they open "A". Paths with a percent sign are therefore
opened by file id, below /.reserved/.inodes.

User name or token travel in query strings. URLs never get into errors or logs.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from vfs import tls
from vfs.errors import Denied, ForemountError, NotADirectory, Stale, Unavailable, WrongAnswer
from vfs.model import Entry, SiteName, SitePath, Version, split
from vfs.sites import hdfsanswers
from vfs.sites.credentials import SecretFile, parse_token
from vfs.sites.hdfsanswers import BatchAnswer, FileStatus, StatusAnswer
from vfs.sites.listings import JsonRows
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece
from vfs.sites.transfer import body_range, new_session, pieces_of, translated
from vfs.sites.writing import Body

AnswerT = TypeVar("AnswerT")
PAGE_ENTRIES = 1000
_done_decoder = msgspec.json.Decoder(hdfsanswers.DoneAnswer)
_locations_decoder = msgspec.json.Decoder(hdfsanswers.LocationsAnswer)
_status_decoder = msgspec.json.Decoder(StatusAnswer)
_batch_decoder = msgspec.json.Decoder(BatchAnswer)


class WebHdfsSite:
    """Serves what lies below `root` of one HDFS.

    Attributes:
        _has_batches: whether LISTSTATUS_BATCH is known; None until it was tried. Hadoop 2.8 brought it.
    """

    def __init__(
        self,
        name: SiteName,
        url: str,
        *,
        root: str = "/",
        user: str | None = None,
        token_file: str | None = None,
        connections: int = 32,
        files: tls.Files = tls.NO_FILES,
        stall_timeout_s: float = 30.0,
    ) -> None:
        self._name = name
        self._base = URL(url).origin()
        self._root = root.strip("/")
        self._user = user
        self._token = SecretFile(token_file, parse_token, name) if token_file else None
        self._connections = connections
        self._tls = tls.Client(files, f"sites.{name}.certificate") if any(files) else None
        self._stall_timeout_s = stall_timeout_s
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._has_batches: bool | None = None

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"WebHdfsSite({self._name!r}, {str(self._base)!r}, {'/' + self._root!r})"

    async def stat(self, path: SitePath) -> Entry:
        return hdfsanswers.entry_of(await self._status(path), split(path)[1])

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        names = NameFilter(self._name, path)
        pages = self._whole_listing(path) if self._has_batches is False else self._batched_listing(path)
        async for page in pages:
            if any(not status.name for status in page):
                raise NotADirectory(self._subject(path))
            if entries := [hdfsanswers.entry_of(status, status.name) for status in page if names.admits(status.name)]:
                yield entries

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        subject = self._subject(path)
        async with contextlib.AsyncExitStack() as opened:
            try:
                inode = version.etag if "%" in self.inside(path) else ""
                operation = self.answer("OPEN", path, inode=inode, offset=str(offset), length=str(length))
                response = await opened.enter_async_context(operation)
            except Unavailable:
                await self._check(path, version)  # a range past the end of a shorter version is refused like any other fault
                raise
            await self._check(path, version)
            with translated(subject):
                if response.content_length not in (None, length):
                    raise WrongAnswer(subject, f"announces {response.content_length} bytes for a range of {length}")
                async for piece in body_range(response, subject, skip=0, length=length, must_end=True):
                    yield piece

    async def replication(self, path: SitePath) -> int:
        """Return how many copies of each block the file is to have."""
        return (await self._status(path)).replication

    async def set_replication(self, path: SitePath, count: int) -> None:
        """Have the NameNode keep so many copies of each block from now on; `copies_held` says how far that is.

        Raises:
            WrongAnswer: it is no file.
        """
        asking = self.answer("SETREPLICATION", path, method="PUT", replication=str(count))
        if not (await self._answered(asking, _done_decoder, path, "is no answer of WebHDFS to SETREPLICATION")).boolean:
            raise WrongAnswer(self._subject(path), "is no file whose copies could be counted")

    async def copies_held(self, path: SitePath) -> int:
        """Return how many copies the block has that has the fewest; 0 for an empty file."""
        asking = self.answer("GET_BLOCK_LOCATIONS", path)
        found = await self._answered(asking, _locations_decoder, path, "is no answer of WebHDFS to GET_BLOCK_LOCATIONS")
        return min((len(block.locations) for block in found.located.blocks), default=0)

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def _status(self, path: SitePath) -> FileStatus:
        asking = self.answer("GETFILESTATUS", path)
        return (await self._answered(asking, _status_decoder, path, "is no status of WebHDFS")).status

    async def _answered(
        self,
        asking: AbstractAsyncContextManager[aiohttp.ClientResponse],
        decoder: msgspec.json.Decoder[AnswerT],
        path: SitePath,
        complaint: str,
    ) -> AnswerT:
        """Return what an answer says; one that can't be read is a `WrongAnswer` with the complaint."""
        async with asking as response:
            body = await _body(response, self._subject(path))
        try:
            return decoder.decode(body)
        except msgspec.DecodeError as exc:
            raise WrongAnswer(self._subject(path), complaint) from exc

    async def _check(self, path: SitePath, version: Version) -> None:
        """Refuse to go on if the path has another version now.

        Raises:
            Stale: it has.
            NotFound: it is gone.
        """
        status = await self._status(path)
        if status.kind != "FILE" or hdfsanswers.version_of(status) != version:
            raise Stale(self._subject(path))

    async def _batched_listing(self, path: SitePath) -> AsyncIterator[Sequence[FileStatus]]:
        """Yield the server's own pages, or the whole listing if the server turns out not to have pages."""
        after, more = "", True
        while more:
            try:
                async with self.answer("LISTSTATUS_BATCH", path, pool="listings", startAfter=after) as response:
                    body = await _body(response, self._subject(path))
                answer = _batch_decoder.decode(body).listing
            except WrongAnswer:
                if self._has_batches:
                    raise
                async for page in self._whole_listing(path):
                    self._has_batches = False
                    yield page
                return
            except msgspec.DecodeError as exc:
                raise WrongAnswer(self._subject(path), "is no listing of WebHDFS") from exc
            self._has_batches = True
            page = answer.partial.statuses.rows
            more = bool(answer.remaining and page)
            if page:
                after = page[-1].name
                yield page

    async def _whole_listing(self, path: SitePath) -> AsyncIterator[Sequence[FileStatus]]:
        """Yield pages of a listing that comes in one answer, as it arrives."""
        subject = self._subject(path)
        async with self.answer("LISTSTATUS", path, pool="listings") as response:
            with translated(subject):
                rows = JsonRows(subject, is_wrapped=True)
                async for received, last in pieces_of(response):
                    for page in _pages(rows.feed(received, last=last), subject):
                        yield page

    @contextlib.asynccontextmanager
    async def answer(
        self,
        operation: str,
        path: SitePath,
        *,
        method: str = "GET",
        body: Body | None = None,
        inode: str = "",
        pool: str = "",
        **parameters: str,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to a call that succeeded; a rejected token is read again, once.

        Args:
            body: is sent to where the NameNode points, None: nothing is.
            inode: file id that is asked for in place of the path, "" for the path itself.

        Raises:
            NotFound, AlreadyExists, NoSpace, Denied, Unavailable, WrongAnswer: it did not succeed.
        """
        subject = self._subject(path)
        target = f".reserved/.inodes/{inode}" if inode else self.inside(path)
        secret = self._token.current() if self._token else ""
        ask = functools.partial(self._follow, method, operation, target, body, pool, parameters, subject)
        response = await ask(secret)
        try:
            if response.status not in (200, 201):
                failure = await self._failure(response, subject)
                if not isinstance(failure, Denied) or self._token is None or not self._token.renewed(secret):
                    raise failure
                response.release()
                response = await ask(self._token.current())
                if response.status not in (200, 201):
                    raise await self._failure(response, subject)
            yield response
        finally:
            response.release()

    async def _follow(
        self,
        method: str,
        operation: str,
        target: str,
        body: Body | None,
        pool: str,
        parameters: dict[str, str],
        subject: str,
        secret: str,
    ) -> aiohttp.ClientResponse:
        """Send a call, and send it again, with the body, to where the NameNode points."""
        identity = {"delegation": secret} if secret else {"user.name": self._user} if self._user else {}
        query = urlencode({"op": operation} | identity | parameters)
        here = URL(f"{self._base}/webhdfs/v1/{quote(target)}?{query}", encoded=True)
        session = self._session(pool)
        with translated(subject):
            response = await session.request(method, here, allow_redirects=False, ssl=self._trusted())
            if response.status != 307:
                return response
            response.release()
            try:
                there = URL(response.headers["Location"], encoded=True)
                headers = None if body is None else {"Content-Length": str(body.length)}
                sent = None if body is None else body.pieces()
                return await session.request(
                    method, there, data=sent, headers=headers, allow_redirects=False, ssl=self._trusted()
                )
            except (KeyError, ValueError) as exc:
                raise WrongAnswer(subject, "redirects to what is no URL") from exc

    async def _failure(self, response: aiohttp.ClientResponse, subject: str) -> ForemountError:
        body = await _body(response, subject) if response.status >= 400 else b""
        return hdfsanswers.error_of(response.status, body, subject)

    def _trusted(self) -> ssl.SSLContext | bool:
        return self._tls.context() if self._tls is not None else True

    def _session(self, pool: str) -> aiohttp.ClientSession:
        if pool not in self._sessions:
            limit = 0 if pool else self._connections
            self._sessions[pool] = new_session(connections=limit, stall_timeout_s=self._stall_timeout_s)
        return self._sessions[pool]

    def inside(self, path: str) -> str:
        """Return the path in HDFS, without a leading slash."""
        return "/".join(part for part in (self._root, path) if part)

    def _subject(self, path: str) -> str:
        return f"{self._name}:{path}"


async def _body(response: aiohttp.ClientResponse, subject: str) -> bytes:
    """Return a small body."""
    with translated(subject):
        return await response.read()


def _pages(rows: Sequence[object], subject: str) -> Sequence[Sequence[FileStatus]]:
    try:
        typed = msgspec.convert(rows, list[FileStatus])
    except msgspec.ValidationError as exc:
        raise WrongAnswer(subject, f"is no listing of WebHDFS: {exc}") from exc
    return [typed[start : start + PAGE_ENTRIES] for start in range(0, len(typed), PAGE_ENTRIES)]
