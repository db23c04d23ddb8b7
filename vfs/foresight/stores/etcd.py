"""etcd, through the JSON gateway that every server of version 3 has: no client library, no wheels.

Source: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/; keys and values are base64, numbers are strings. Watches are
answers that do not end, one JSON document a line.
"""

from __future__ import annotations

import asyncio
import json
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from vfs.errors import Denied, InvalidConfig, Stale, Unavailable, WrongAnswer
from vfs.foresight.stores.protocol import LEASE_S_MIN, Change, Compacted, Delete, Item, LeaseId, Page, Put, end_of

_TIMEOUT_S = 5.0
ASKED_AT_ONCE = 32
"""Of one member: it writes one after the other; of hundreds that wait there some would be given up while they are done."""
_LINE_BYTES_MAX = 64 << 20
_LEASE_NOT_FOUND = 5  # gRPC's NOT_FOUND


class Etcd:
    """A cluster.

    Args:
        endpoints: "http://host:port" of its members; the first that answers serves, until it does not.
        prefix: before all keys, so that a cluster can serve others too.
    """

    def __init__(self, endpoints: Sequence[str], prefix: str = "foremount/") -> None:
        self._endpoints = list(endpoints)
        self._prefix = prefix
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)

    @classmethod
    def at(cls, url: str) -> Etcd:
        """Return the cluster of "etcd://host:port,host:port", or "etcds://…" over TLS.

        Raises:
            InvalidConfig: it is no such address.
        """
        scheme, _, rest = url.partition("://")
        hosts = [host for host in rest.strip("/").split(",") if host]
        if scheme not in ("etcd", "etcds") or not hosts:
            raise InvalidConfig("foresight.store", f"{url!r} is no store", 'write "etcd://host:2379,host:2379"')
        return cls([f"{'https' if scheme == 'etcds' else 'http'}://{host}" for host in hosts])

    async def close(self) -> None:
        await self._session.close()

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the first member that gives one.

        A write goes to another member only where it can't have arrived: what was sent may have been done.
        """
        if path.startswith("lease/"):  # a renewal does not wait behind the replicas at work
            return await self._ask_now(path, body)
        async with self._turns:  # waited for before the time of the answer begins
            return await self._ask_now(path, body)

    async def _ask_now(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        trouble = ""
        for endpoint in list(self._endpoints):
            try:
                async with self._session.post(f"{endpoint}/v3/{path}", json=body) as response:
                    answer = json.loads(await response.read() or b"{}")
                    if response.status == 200:
                        return dict(answer)
                    raise _refusal(endpoint, response.status, answer)
            except aiohttp.ClientConnectorError as exc:
                trouble = str(exc)
                self._endpoints.append(self._endpoints.pop(0))
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise Unavailable(endpoint, f"does not answer: {exc!r}") from exc
            except ValueError as exc:
                raise WrongAnswer(endpoint, "answered with something that is no JSON") from exc
        raise Unavailable(",".join(self._endpoints), f"can't be reached: {trouble}")

    async def get(self, key: str) -> Item | None:
        answer = await self._ask("kv/range", {"key": self._key(key)})
        return self._item(answer["kvs"][0]) if answer.get("kvs") else None

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        first = (self._prefix + prefix).encode()
        start = (self._prefix + after).encode() + b"\0" if after else first
        body = {"key": _text(max(start, first)), "range_end": _text(end_of(first)), "limit": str(limit)}
        answer = await self._ask("kv/range", body)
        return Page([self._item(each) for each in answer.get("kvs", ())], int(answer["header"]["revision"]))

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        compare = [
            {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in (expect or {}).items()
        ]
        success = [self._request(change) for change in changes]
        answer = await self._ask("kv/txn", {"compare": compare, "success": success})
        return bool(answer.get("succeeded", False))

    def _request(self, change: Put | Delete) -> dict[str, Any]:
        if isinstance(change, Delete):
            return {"request_delete_range": {"key": self._key(change.key)}}
        return {"request_put": {"key": self._key(change.key), "value": _text(change.value), "lease": str(change.lease)}}

    async def watch(self, prefix: str, after: int) -> AsyncIterator[list[Change]]:
        first = (self._prefix + prefix).encode()
        create = {"key": _text(first), "range_end": _text(end_of(first)), "start_revision": str(after + 1)}
        unbounded = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S)
        endpoint = self._endpoints[0]
        try:
            async with self._session.post(
                f"{endpoint}/v3/watch", json={"create_request": create}, timeout=unbounded, read_bufsize=_LINE_BYTES_MAX
            ) as response:
                async for line in response.content:
                    result = json.loads(line).get("result", {})
                    if int(result.get("compact_revision", 0)):
                        raise Compacted("watch", f"revision {after} is not kept any more")
                    if result.get("canceled"):
                        raise Unavailable(endpoint, f"ended a watch: {result.get('cancel_reason', '')}")
                    if found := [self._change(event) for event in result.get("events", ())]:
                        yield found
        except aiohttp.ClientConnectorError as exc:
            self._endpoints.append(self._endpoints.pop(0))
            raise Unavailable(endpoint, f"can't be reached: {exc}") from exc
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as exc:
            raise Unavailable(endpoint, f"a watch broke: {exc!r}") from exc
        except ValueError as exc:
            raise WrongAnswer(endpoint, "a watch brought something that is no JSON") from exc
        raise Unavailable(endpoint, "a watch ended")

    def _change(self, event: dict[str, Any]) -> Change:
        item = self._item(event["kv"])
        return Change(item.key, None if event.get("type") == "DELETE" else item.value, item.revision)

    async def lease(self, ttl_s: float) -> LeaseId:
        answer = await self._ask("lease/grant", {"TTL": str(math.ceil(max(LEASE_S_MIN, ttl_s)))})
        return LeaseId(int(answer["ID"]))

    async def renew(self, lease: LeaseId) -> bool:
        answer = await self._ask("lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: LeaseId) -> None:
        try:
            await self._ask("lease/revoke", {"ID": str(lease)})
        except Stale:
            return

    def _key(self, key: str) -> str:
        return _text((self._prefix + key).encode())

    def _item(self, kv: dict[str, Any]) -> Item:
        key = b64decode(kv["key"]).decode().removeprefix(self._prefix)
        return Item(key, b64decode(kv.get("value", "")), int(kv["mod_revision"]))


def _text(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")


def _refusal(endpoint: str, status: int, answer: Any) -> Exception:
    code, said = (answer.get("code"), answer.get("message", "")) if isinstance(answer, dict) else (None, "")
    if code == _LEASE_NOT_FOUND:
        return Stale("lease", "has ended")
    if status in (401, 403):
        return Denied(endpoint, f"refuses: {said}")
    return Unavailable(endpoint, f"answered with HTTP status {status}: {said}")
