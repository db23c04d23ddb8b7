"""An agent's side of a node service: what `vfs/samples/nodewire.py` says, over HTTP(S)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from vfs import tls
from vfs.config import is_plain_elsewhere
from vfs.errors import Denied, Failure, ForemountError, NotFound, Unavailable, from_failure
from vfs.samples import nodewire

_CONNECT_S = 5.0
_ANSWER_S = 60.0
"""Of an order: a node opens the job's schedule before it answers."""
_PIECE_BYTES = 1 << 20
_REFUSAL_BYTES_MAX = 64 << 10
_STATUS_BYTES_MAX = 4 << 20


class _Fields(msgspec.Struct):
    kind: str
    subject: str = ""
    reason: str = ""
    hint: str = ""


class _Document(msgspec.Struct):
    error: _Fields


class NodeClient:
    """Speaks to any number of nodes with one token.

    Args:
        token_file: holds the token; read again for each request. "": none is sent.
        files: what we show them, and whose certificates we believe.
    """

    def __init__(self, token_file: str, files: tls.Files = tls.NO_FILES) -> None:
        self._token_file = token_file
        self._tls = tls.Client(files, "samples.certificate")
        self._opened: aiohttp.ClientSession | None = None

    async def tell(self, address: str, job: str, told: nodewire.Told) -> None:
        """Tell a job and how far it is.

        Raises:
            InvalidFeed: the node can't use the job's document or schedule.
            Denied: it does not take the token.
            Unavailable: it can't be reached.
        """
        await self._order("PUT", address, job, msgspec.json.encode(told))

    async def forget(self, address: str, job: str) -> None:
        """Have a job forgotten. Raises as `tell`."""
        await self._order("DELETE", address, job, b"")

    async def status(self, address: str) -> dict[str, Any]:
        """Return a node's facts (`/v1/status`). Raises `Denied`, `Unavailable` as `tell`."""
        timeout = aiohttp.ClientTimeout(total=_CONNECT_S)
        try:
            async with self._answered("GET", address, nodewire.STATUS, timeout) as answer:
                return msgspec.json.decode(await answer.content.read(_STATUS_BYTES_MAX), type=dict[str, Any])
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as exc:
            raise Unavailable(address, f"the node tells no facts: {type(exc).__name__} {exc}".rstrip()) from exc

    async def group(self, address: str, job: str, step: int, rank: int) -> AsyncGenerator[bytes, None]:
        """Yield the stream of a group in pieces as they come.

        Raises:
            NotFound: the node does not know the job: it was started again.
            Denied, Unavailable: as `tell`; also in the middle.
        """
        path = nodewire.GROUP.format(job=quote(job, safe=""), step=step, rank=rank)
        try:
            # No bound for the whole and none between pieces: a node sends a sample when it is ready, which may take a step.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            async with self._answered("GET", address, path, timeout) as answer:
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(
                address, f"the node can't be reached or broke off: {type(exc).__name__} {exc}".rstrip()
            ) from exc

    async def close(self) -> None:
        """Let go of connections."""
        if self._opened is not None:
            await self._opened.close()

    async def _order(self, method: str, address: str, job: str, body: bytes) -> None:
        path = nodewire.JOB.format(job=quote(job, safe=""))
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
        try:
            async with self._answered(method, address, path, timeout, body) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(address, f"the node can't be reached: {type(exc).__name__} {exc}".rstrip()) from exc

    @contextlib.asynccontextmanager
    async def _answered(
        self, method: str, address: str, path: str, timeout: aiohttp.ClientTimeout, body: bytes | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Ask with our token and over TLS as configured; the answer is 200, or what it refuses is raised."""
        headers = self._headers() | ({} if body is None else {"Content-Type": "application/json"})
        async with self._session().request(
            method, address.rstrip("/") + path, data=body, timeout=timeout, headers=headers, ssl=self._trusted(address)
        ) as answer:
            if answer.status != 200:
                raise await _refused(address, answer)
            yield answer

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._opened = aiohttp.ClientSession(connector=connector, read_bufsize=_PIECE_BYTES)
        return self._opened

    def _trusted(self, address: str) -> ssl.SSLContext | bool:
        if is_plain_elsewhere(address):
            raise Unavailable(address, "is another host, and not encrypted", "write https://")
        return self._tls.context() if address.startswith("https:") else True

    def _headers(self) -> dict[str, str]:
        if not self._token_file:
            return {}
        try:
            with open(self._token_file, encoding="utf-8") as file:
                return {"Authorization": f"Bearer {file.read().strip()}"}
        except OSError as exc:
            raise Denied(self._token_file, f"can't be read: {exc.strerror}", "samples.token_file names it") from exc


async def _refused(address: str, answer: aiohttp.ClientResponse) -> ForemountError:
    """Return why a node said no."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            fields = msgspec.json.decode(await answer.content.read(_REFUSAL_BYTES_MAX), type=_Document).error
    except (msgspec.DecodeError, TimeoutError):
        return Unavailable(address, f"the node answered {answer.status}")
    found = from_failure(Failure(fields.kind, fields.subject, fields.reason, fields.hint))
    if answer.status >= 500 and not isinstance(found, Unavailable):
        return Unavailable(address, str(found))
    return found if not isinstance(found, NotFound) else NotFound(address, str(found))
