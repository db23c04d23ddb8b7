"""What all our HTTP services do alike: who asks too often or too much is refused, and refusals are JSON.

The same bounds hold for the admin API, the controller, the node service and replica servers. Bulk bytes (groups of samples,
files of replica servers) are bounded by how many answers go on at a time, never by a rate of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from vfs.errors import Denied, ForemountError, Throttled, Unavailable, Unsupported, to_failure
from vfs.rates import Callers

log = logging.getLogger(__name__)
BURST_S = 2.0
"""How much of its rate a caller that was silent has at once."""
STRANGERS_RATE, STRANGERS_BURST = 20.0, 200.0
"""Requests without a valid token or signature, of one address."""
BODY_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 64 << 10
"""Of a request: 4,096 characters of four bytes, each byte written with three."""
SLOW_S = 30.0
"""A caller that sends its request, or takes what it asked for, more slowly than this is let go."""


class TooOften(Throttled):
    """Is asked too often.

    Attributes:
        wait_s: when to come again.
    """

    def __init__(self, subject: str, wait_s: float) -> None:
        super().__init__(subject, "is asked too often", "come again later")
        self.wait_s = wait_s


class TooMany(Throttled):
    """Has too many requests at a time."""


class Rates:
    """How often callers may ask one service.

    Args:
        subject: the service, for who is refused.
        rate: requests a second of one caller at one address.
    Raises (of all methods):
        TooOften: it has been too often.
    """

    def __init__(self, subject: str, rate: float) -> None:
        self._subject = subject
        self._known = Callers(rate, rate * BURST_S)
        self._strangers = Callers(STRANGERS_RATE, STRANGERS_BURST)

    def known(self, caller: str, request: web.Request) -> None:
        """Count a request of a caller that is known; the same one at another address counts for itself."""
        self._count(self._known, f"{caller} at {request.remote}")

    def stranger(self, request: web.Request) -> None:
        """Count a request that nobody known has made."""
        self._count(self._strangers, request.remote or "")

    def _count(self, callers: Callers, name: str) -> None:
        if wait_s := callers.wait_s(name, time.monotonic()):
            raise TooOften(self._subject, wait_s)


class AtOnce:
    """Bounds how many answers of one kind go on at a time.

    Invariant: 0 <= count <= `most`.
    """

    def __init__(self, subject: str, most: int) -> None:
        self._subject = subject
        self._most = most
        self.count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one answer until the block ends.

        Raises:
            TooMany: there are as many as there may be.
        """
        if self.count >= self._most:
            raise TooMany(self._subject, f"has {self._most} such requests at a time", "come again later")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


async def body_of(request: web.Request) -> bytes:
    """Return the body.

    Raises:
        web.HTTPException: it is too large, or takes too long to come.
    """
    try:
        async with asyncio.timeout(SLOW_S):
            return await request.read()
    except TimeoutError as exc:
        raise web.HTTPRequestTimeout from exc


async def send(request: web.Request, response: web.StreamResponse, piece: bytes | memoryview) -> None:
    """Send a piece of an answer.

    Raises:
        ConnectionError: the caller has gone, or took nothing for so long that it is cut off.
    """
    try:
        async with asyncio.timeout(SLOW_S):
            await response.write(piece)
    except TimeoutError as exc:
        log.info("%s is cut off: it takes nothing", request.remote)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(f"took nothing for {SLOW_S:.0f} s") from exc


def errors_as_json(status_of: Mapping[type[ForemountError], int], otherwise: int) -> Middleware:
    """Return what turns errors into answers.

    Args:
        status_of: of a kind and what refines it; the first one that fits.
        otherwise: of all other kinds.
    """

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (TooOften, TooMany) as exc:
            return refused_for_now(exc)
        except ForemountError as exc:
            return refused(next((code for kind, code in status_of.items() if isinstance(exc, kind)), otherwise), exc)
        except web.HTTPException as exc:
            answer = refused(exc.status, Unsupported("request", (exc.reason or "refused").lower()))
            answer.headers.update({name: value for name, value in exc.headers.items() if name == "Allow"})
            return answer
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as exc:
            log.exception("bug while answering %s", request.path)
            return refused(500, Unavailable("service", f"bug: {type(exc).__name__}, see its log"))

    return answered


def refused(status: int, error: ForemountError) -> web.Response:
    """Return an expected failure as an answer."""
    body = msgspec.json.encode({"error": msgspec.structs.asdict(to_failure(error))})
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(body=body, status=status, headers=headers)


def refused_for_now(error: TooOften | TooMany) -> web.Response:
    """Return the answer to a caller that may come again."""
    answer = refused(429 if isinstance(error, TooOften) else 503, error)
    answer.headers["Retry-After"] = str(max(1, round(error.wait_s))) if isinstance(error, TooOften) else "1"
    return answer


def stranger() -> web.Response:
    """Return the answer to a caller without a valid token."""
    answer = refused(401, Denied("token", "is missing or wrong", "send Authorization: Bearer TOKEN"))
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def bearer(request: web.Request) -> str:
    """Return the token that a request brings, "" for none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def runner_of(app: web.Application) -> web.AppRunner:
    """Return what runs an application here: no log of requests, room for a long path in percent signs."""
    return web.AppRunner(app, access_log=None, shutdown_timeout=1.0, max_line_size=LINE_BYTES_MAX)
