"""A bucket, or a prefix of one, at S3 or what speaks its protocol: read through obstore.

A read is one conditional request: the store itself compares the ETag, and the answer's ETag is compared again. Errors come
typed where the client types them; of the others the HTTP status in their text is all there is, and the text itself is not
repeated: it quotes URLs.

Directories are prefixes. A listing with a delimiter is one call of the client that returns all entries, as Arrow columns.
They become ours a page at a time, and one listing of a site is fetched at a time.

Keys come from a shared credentials file, which is read again when they are rejected; where none is named from the
environment, the user's own credentials file, or the machine's role, in this order.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow
from obstore import exceptions
from obstore.store import S3Store

from vfs.errors import (
    Denied,
    ForemountError,
    InvalidConfig,
    NotADirectory,
    NotFound,
    Stale,
    Throttled,
    Unavailable,
    WrongAnswer,
)
from vfs.model import Entry, Kind, SiteName, SitePath, Version, split
from vfs.sites.credentials import SecretFile
from vfs.sites.names import NameFilter
from vfs.sites.protocol import Piece
from vfs.sites.s3keys import S3Keys, parse_keys

PAGE_ENTRIES = 1000
PIECE_BYTES = 1 << 20
_REGION = "us-east-1"
"""What stores other than Amazon's expect where nothing is said."""
_CONNECT_S = 10
_REQUEST_S = 3600
"""A bound for what nobody waits for any more; who waits sees a stall earlier, and cancels."""
_STATUS = re.compile(r"status code: (\d{3}) ")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REJECTIONS = frozenset({"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})
T = TypeVar("T")


class S3Site:
    """Serves what lies below `url`.

    Attributes:
        _opened: the client and the keys that it was made with; made on first use.
    """

    def __init__(
        self,
        name: SiteName,
        url: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        credentials_file: str | None = None,
        profile: str = "default",
        anonymous: bool = False,
    ) -> None:
        """Args:
        url: "s3://bucket/prefix".
        endpoint: "https://host:port" of a store that is not Amazon's.
        anonymous: send no keys: for public buckets.
        """
        self._name = name
        self._bucket, self._root = bucket_and_root(url, name)
        self._endpoint = endpoint
        self._region = region
        self._anonymous = anonymous
        file = None if anonymous else credentials_file or _own_credentials_file(os.environ)
        self._keys = SecretFile(file, lambda text: parse_keys(text, profile), name) if file else None
        self._opened: tuple[S3Store, S3Keys | None] | None = None
        self._listing_turn = asyncio.Semaphore(1)

    @property
    def name(self) -> SiteName:
        return self._name

    def __repr__(self) -> str:
        return f"S3Site({self._name!r}, {self._bucket!r})"

    async def stat(self, path: SitePath) -> Entry:
        if not path:
            return Entry("", Kind.DIRECTORY, Version(0))
        try:
            return _entry(await self._call(path, lambda store: obstore.head_async(store, path)), split(path)[1])
        except NotFound:
            if not await self._leads_somewhere(path):
                raise
            return Entry(split(path)[1], Kind.DIRECTORY, Version(0))

    async def _leads_somewhere(self, path: SitePath) -> bool:
        """Return whether an object lies below the path."""

        async def first(store: S3Store) -> bool:
            async for page in obstore.list(store, f"{path}/", chunk_size=1):
                return bool(page)
            return False

        return await self._call(path, first)

    async def list(self, path: SitePath) -> AsyncIterator[Sequence[Entry]]:
        async with self._listing_turn:
            found = await self._call(
                path, lambda store: obstore.list_with_delimiter_async(store, path or None, return_arrow=True)
            )
        objects = pyarrow.table(found["objects"])
        if path and not objects.num_rows and not found["common_prefixes"]:
            if (await self.stat(path)).kind is Kind.FILE:
                raise NotADirectory(f"{self._name}:{path}")
            return
        names = NameFilter(self._name, path)
        for page in _pages(path, objects, found["common_prefixes"]):
            if entries := [entry for entry in page if names.admits(entry.name)]:
                yield entries

    async def read(self, path: SitePath, version: Version, offset: int, length: int) -> AsyncIterator[Piece]:
        # The end may lie past that of another version, but only this version is answered.
        options: Any = {"range": (offset, offset + length)}
        if version.etag:
            options["if_match"] = version.etag
        answer = await self._call(path, lambda store: obstore.get_async(store, path, options=options))
        if not _is_version(_version(answer.meta), version):
            raise Stale(f"{self._name}:{path}")
        if answer.range != (offset, offset + length):
            raise WrongAnswer(f"{self._name}:{path}", f"answers the range {answer.range} for {length} bytes at {offset}")
        received = 0
        try:
            async for piece in answer.stream(min_chunk_size=PIECE_BYTES):
                received += len(piece)
                yield memoryview(piece)
        except Exception as exc:
            raise self._error(exc, path) from exc
        if received != length:
            raise WrongAnswer(f"{self._name}:{path}", f"brought {received} bytes of {length} at {offset}")

    async def close(self) -> None:
        self._opened = None

    async def _call(self, path: SitePath, ask: Callable[[S3Store], Awaitable[T]]) -> T:
        """Ask the store; once more with the keys as they are now if it rejects them."""
        store, used = self._client()
        try:
            return await self._translated(path, ask, store)
        except Denied:
            if self._keys is None or used is None or not self._keys.renewed(used):
                raise
        return await self._translated(path, ask, self._client()[0])

    async def _translated(self, path: SitePath, ask: Callable[[S3Store], Awaitable[T]], store: S3Store) -> T:
        try:
            return await ask(store)
        except (exceptions.BaseError, OSError, ValueError) as exc:
            raise self._error(exc, path) from exc

    def _client(self) -> tuple[S3Store, S3Keys | None]:
        """Return the client for the keys as they are now."""
        keys = self._keys.current() if self._keys else None
        if self._opened is None or self._opened[1] != keys:
            self._opened = self._open(keys), keys
        return self._opened

    def _open(self, keys: S3Keys | None) -> S3Store:
        options: dict[str, Any] = {
            "region": self._region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION,
            "client_options": {
                "allow_http": (self._endpoint or "").startswith("http://"),
                "connect_timeout": datetime.timedelta(seconds=_CONNECT_S),
                "timeout": datetime.timedelta(seconds=_REQUEST_S),
            },
            "retry_config": {"max_retries": 0},  # who asks retries: it knows the deadline and other replicas
            "skip_signature": self._anonymous,
        }
        if self._endpoint:
            options["endpoint"] = self._endpoint
        if keys is not None:
            options |= {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
            if keys.session_token:
                options["session_token"] = keys.session_token
        try:
            return S3Store(self._bucket, prefix=self._root or None, **options)
        except exceptions.BaseError as exc:
            raise InvalidConfig(f"sites.{self._name}", "the S3 client does not take this endpoint, region or bucket") from exc

    def _error(self, exc: Exception, path: SitePath) -> ForemountError:
        return error_of(exc, f"{self._name}:{path}")


def bucket_and_root(url: str, site: str) -> tuple[str, str]:
    """Return bucket and prefix of an s3:// URL. Pure.

    Raises:
        InvalidConfig: it is none, or holds keys or options. It is not quoted: keys may stand in it.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.hostname:
        raise InvalidConfig(f"sites.{site}.url", "is no s3://bucket/prefix")
    if parts.username or parts.query:
        hint = "write them as endpoint, region and credentials_file"
        raise InvalidConfig(f"sites.{site}.url", "holds keys or options", hint)
    return parts.netloc, unquote(parts.path).strip("/")


def error_of(exc: Exception, subject: str) -> ForemountError:
    """Return what an exception of the client means. Pure."""
    match exc:
        case FileNotFoundError():
            return NotFound(subject)
        case exceptions.PreconditionError() | exceptions.NotModifiedError():
            return Stale(subject)
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return Denied(subject, "is refused", "check the site's credentials")
        case exceptions.InvalidPathError():
            return WrongAnswer(
                subject, "holds a key that is no path", 'keys with an empty, "." or ".." part can not be shown'
            )
        case ValueError():
            return NotFound(subject, "can't be the name of an object")
    found = _STATUS.search(str(exc))
    status, code = int(found[1]) if found else 0, _CODE.search(str(exc))
    if status in (401, 403) or (code is not None and code[1] in _REJECTIONS):
        return Denied(subject, f"is refused: {code[1] if code else status}", "check the site's credentials")
    if status == 404:
        return NotFound(subject)
    if status == 416:
        return Stale(subject)
    if status in (429, 503):
        return Throttled(subject)
    return Unavailable(subject, f"failed: HTTP {status}" if status else f"failed: {type(exc).__name__}")


def _own_credentials_file(environ: Any) -> str | None:
    """Return the user's credentials file, None where the environment holds keys or there is none."""
    if environ.get("AWS_ACCESS_KEY_ID"):
        return None
    path = str(environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials"))
    return path if os.path.exists(path) else None


def _pages(path: SitePath, objects: pyarrow.Table, prefixes: Sequence[str]) -> Iterator[list[Entry]]:
    """Yield entries of files, then of directories, a page at a time.

    An object that ends in a slash marks its directory; it is listed under the directory's own name and left out.
    """
    for batch in objects.select(["path", "last_modified", "size", "e_tag"]).to_batches(max_chunksize=PAGE_ENTRIES):
        yield [_entry(meta, split(SitePath(meta["path"]))[1]) for meta in batch.to_pylist() if meta["path"] != path]
    for start in range(0, len(prefixes), PAGE_ENTRIES):
        some = prefixes[start : start + PAGE_ENTRIES]
        yield [Entry(split(SitePath(each))[1], Kind.DIRECTORY, Version(0)) for each in some]


def _entry(meta: Any, name: str) -> Entry:
    return Entry(name, Kind.FILE, _version(meta))


def _version(meta: Any) -> Version:
    """Return the version that an answer states: in whole seconds, as HEAD has them; listings have parts of them."""
    return Version(meta["size"], int(meta["last_modified"].timestamp()) * 10**9, meta["e_tag"] or "")


def _is_version(found: Version, expected: Version) -> bool:
    """Return whether both are one version: by ETag where there is one."""
    if expected.etag:
        return (found.size, found.etag) == (expected.size, expected.etag)
    return (found.size, found.mtime_ns) == (expected.size, expected.mtime_ns)
