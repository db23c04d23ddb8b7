"""The agent's admin API over its Unix socket, with deadlines: an agent that hangs costs a bounded time."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from vfs.errors import DeadlineExceeded, ForemountError, Unavailable, WrongAnswer, failure_from
from vfs.unixhttp import UnixConnection

LINE_BYTES_MAX = 1 << 20
_HINT = "foremount status says how the agent does"


class AdminClient:
    """One agent.

    Args:
        socket_path: `RunDir.admin_socket`.
        timeout_s: without a byte from the agent, for each call.
    """

    def __init__(self, socket_path: str, timeout_s: float) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s

    def get(self, resource: str, **query: str) -> Any:
        """Return the JSON document at this resource.

        Raises:
            Unavailable: nobody listens.
            DeadlineExceeded: the agent does not answer.
            ForemountError: what the agent says is wrong, as it says it.
        """
        target = f"{resource}?{urlencode(query)}" if query else resource
        return self._document("GET", target, None)

    def post(self, resource: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON document that answers the request. Raises as `get`."""
        return self._document("POST", resource, body, headers)

    def stream(self, resource: str, body: Any, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[dict[str, Any]]:
        """Yield the lines of an NDJSON answer as they come. Raises as `get`, also between lines.

        A stream that ends without a line {"done": true, …} was cut off.
        """
        connection = UnixConnection(self._path, self._timeout_s)
        try:
            response = self._ask(connection, "POST", resource, body)
            done = False
            while line := response.readline(line_bytes_max):
                record = _decode(line)
                done = bool(record.get("done"))
                yield record
            if not done:
                raise Unavailable("agent", "ended before it was done", _HINT)
        except (OSError, http.client.HTTPException) as exc:
            raise _translate(exc, self._timeout_s) from exc
        finally:
            connection.close()

    def _document(self, method: str, target: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        connection = UnixConnection(self._path, self._timeout_s)
        try:
            return _decode(self._ask(connection, method, target, body, headers).read())
        except (OSError, http.client.HTTPException) as exc:
            raise _translate(exc, self._timeout_s) from exc
        finally:
            connection.close()

    def _ask(
        self, connection: UnixConnection, method: str, target: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body)
        stated = {"Content-Type": "application/json"} if payload else {}
        connection.request(method, target, payload, {**stated, **(headers or {})})
        response = connection.getresponse()
        if response.status >= 400:
            raise _refusal(response.status, response.read())
        return response


def _decode(body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError as exc:
        raise WrongAnswer("agent", "answered with something that is no JSON") from exc
    if not isinstance(document, dict):
        raise WrongAnswer("agent", "answered with JSON that is no object")
    return document


def _refusal(status: int, body: bytes) -> ForemountError:
    try:
        fields = json.loads(body)["error"]
        return failure_from(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return WrongAnswer("agent", f"answered with HTTP status {status}")


def _translate(error: OSError | http.client.HTTPException, timeout_s: float) -> ForemountError:
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("agent", f"has not answered within {timeout_s:g} s", _HINT)
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return Unavailable("agent", "is not running", _HINT)
    if isinstance(error, PermissionError):
        return Unavailable("agent", "belongs to another user", "run this as the user who mounted")
    return Unavailable("agent", f"can't be asked: {error}", _HINT)
