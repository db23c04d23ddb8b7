"""The line to controllers of other hosts, over HTTP: the first that answers serves, until it does not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec

from vfs import tls
from vfs.errors import Unavailable, WrongAnswer
from vfs.foresight.board import Board
from vfs.foresight.controller.api import QUIET_S, Reads
from vfs.foresight.model import Event, ReplicaId
from vfs.foresight.offers import Offers
from vfs.foresight.signing import refusal_of, signed

_TIMEOUT_S = 10.0
_LINE_BYTES_MAX = 256 << 20


class Remote:
    """A `Line`.

    Args:
        controllers: "https://host:port", at least one.
        secrets: of the file `foresight.tokens`; the first one signs.
        files: what we show them, and whose certificates we believe.
    """

    def __init__(self, controllers: Sequence[str], secrets: dict[str, bytes], files: tls.Files = tls.NO_FILES) -> None:
        self._controllers = [url.rstrip("/") for url in controllers]
        self._secrets = secrets
        self._tls = tls.Client(files, "foresight.certificate")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))

    async def close(self) -> None:
        """Close the sockets."""
        await self._session.close()

    async def tell(self, events: Sequence[Event]) -> int:
        answer = await self._post("/v1/events", list(events))
        return int(answer["accepted"])

    async def reads(self, mount: str, replicas: Sequence[ReplicaId]) -> None:
        await self._post("/v1/reads", Reads(mount, list(replicas)))

    async def board(self) -> Board:
        return msgspec.convert(await self._ask("GET", "/v1/board", b""), Board)

    async def offers(self) -> AsyncIterator[Offers]:
        base = self._controllers[0]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=3 * QUIET_S)
        headers = signed(self._secrets, "GET", "/v1/offers", b"")
        try:
            async with self._session.get(
                f"{base}/v1/offers", headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES_MAX, ssl=self._trusted(base)
            ) as response:
                if response.status != 200:
                    raise refusal_of(base, response.status, await response.read())
                async for line in response.content:
                    yield msgspec.json.decode(line, type=Offers)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            self._next()
            raise Unavailable(base, f"does not answer: {exc!r}") from exc
        except msgspec.MsgspecError as exc:
            raise WrongAnswer(base, f"offers something else: {exc}") from exc
        self._next()
        raise Unavailable(base, "ended the line")

    async def _post(self, target: str, body: Any) -> dict[str, Any]:
        return await self._ask("POST", target, msgspec.json.encode(body))

    async def _ask(self, method: str, target: str, payload: bytes) -> dict[str, Any]:
        trouble = ""
        for base in list(self._controllers):
            headers = signed(self._secrets, method, target, payload)
            try:
                async with self._session.request(
                    method, f"{base}{target}", data=payload, headers=headers, ssl=self._trusted(base)
                ) as response:
                    answer = await response.read()
                    if response.status == 200:
                        return dict(msgspec.json.decode(answer))
                    refused = refusal_of(base, response.status, answer)
                    if not isinstance(refused, Unavailable):
                        raise refused
                    trouble = str(refused)
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                trouble = repr(exc)
            self._next()
        raise Unavailable(",".join(self._controllers), f"no controller answers: {trouble}")

    def _trusted(self, base: str) -> ssl.SSLContext | bool:
        return self._tls.context() if base.startswith("https:") else True

    def _next(self) -> None:
        self._controllers.append(self._controllers.pop(0))
