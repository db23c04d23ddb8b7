"""Writing to S3: multipart uploads through aiobotocore.

Why not through pyarrow.fs, which reads: its output streams have no parts that could be sent again or found after a restart,
and one that is dropped half written completes its upload (apache/arrow#40502). obstore retries parts itself but keeps the
upload's id to itself.

A part travels with its MD5, which the store checks, and the store's answer is compared with it. The whole is verified by the
ETag, the MD5 of the parts' MD5s, where the store makes it that way: with SSE-KMS and SSE-C it does not, and the size counts
together with the checks of the parts. An object of one part is one PUT, which is as atomic.

Each part is held in memory while it is on its way: 16 MiB times the parts at a time. Uploads that nobody finishes stay in the
bucket, invisible: give it a lifecycle rule with AbortIncompleteMultipartUpload.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from vfs.errors import (
    Corrupt,
    Denied,
    DirectoryNotEmpty,
    ForemountError,
    InvalidConfig,
    NoSpace,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
    WrongAnswer,
)
from vfs.model import Kind, SitePath, Version, join
from vfs.sites.credentials import SecretFile
from vfs.sites.protocol import Site
from vfs.sites.s3 import bucket_and_root
from vfs.sites.s3keys import S3Keys, parse_keys
from vfs.sites.writing import Body, Upload, part_size, whole

PART_BYTES = 16 << 20
"""A second of 128 Mbit/s: small enough to send again, large enough that the round trip does not count."""
PARTS_MAX = 10_000
"""Of S3."""
STALL_S = 30.0
_IN_PLACE = "in place"
"""Receipt of a part that may be in the finished object already: `finish` compares its ETag with what the parts come to."""
_ETAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
_MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchBucket", "404"})
_REJECTIONS = frozenset(
    {
        "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
        "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "401", "403",
    }
)  # fmt: skip
_THROTTLES = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "429"})
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "EntityTooLarge", "507"})
T = TypeVar("T")


class S3Writer:
    """Writes what lies below the path of `url`.

    Attributes:
        _client: made on first use and again when the keys have changed, together with those it was made with.
    """

    renames = False

    def __init__(
        self,
        site: Site,
        url: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        credentials_file: str | None = None,
        profile: str = "default",
        connections: int = 32,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Args:
        site: reads the same place; states the versions.

        Raises:
            InvalidConfig: aiobotocore is not installed.
        """
        self._site = site
        self._bucket, self._root = bucket_and_root(url, site.name)
        self._endpoint = endpoint
        self._region = region
        self._keys = (
            SecretFile(credentials_file, lambda text: parse_keys(text, profile), site.name) if credentials_file else None
        )
        self._connections = connections
        self._part_bytes = part_bytes
        self._client: tuple[Any, S3Keys | None] | None = None
        self._opened = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        try:
            import aiobotocore.session  # noqa: F401
        except ImportError as exc:
            raise InvalidConfig(
                f"sites.{site.name}", "writing to S3 needs aiobotocore", "pip install 'foremount[s3]'"
            ) from exc

    def __repr__(self) -> str:
        return f"S3Writer({self._site.name!r}, {self._bucket!r})"

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        part_bytes = part_size(size, least=self._part_bytes, count_max=PARTS_MAX, step=1 << 20)
        upload = Upload(path, size, part_bytes, token)
        if upload.count == 1:
            return upload
        answer = await self._call(path, lambda s3: s3.create_multipart_upload(**self._at(path)))
        return Upload(path, size, part_bytes, token, answer["UploadId"])

    async def received(self, upload: Upload) -> Mapping[int, str]:
        if not upload.handle:
            return {}
        found: dict[int, str] = {}
        try:
            async for part in self._listed(upload):
                index = part["PartNumber"] - 1
                if index < upload.count and part["Size"] == upload.span(index)[1]:
                    found[index] = _bare(part["ETag"])
        except NotFound:  # given up, or finished by a try whose answer was lost: then the object tells, once all is digested
            head = await self._head(upload.path)
            if head["ContentLength"] != upload.size or not _bare(head["ETag"]).endswith(f"-{upload.count}"):
                raise
            return dict.fromkeys(range(upload.count), _IN_PLACE)
        return found

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        part = await whole(body)
        digest = await asyncio.to_thread(lambda: hashlib.md5(part, usedforsecurity=False))
        if known in (digest.hexdigest(), _IN_PLACE):
            return digest.hexdigest()
        request = {"Body": bytes(part), "ContentMD5": base64.b64encode(digest.digest()).decode()}
        if upload.handle:
            at = self._at(upload.path) | {"UploadId": upload.handle, "PartNumber": index + 1}
            answer = await self._call(upload.path, lambda s3: s3.upload_part(**at, **request))
        else:
            answer = await self._call(upload.path, lambda s3: s3.put_object(**self._at(upload.path), **request))
        receipt = _bare(answer["ETag"])
        if receipt != digest.hexdigest() and _is_digest(answer):
            raise WrongAnswer(self._subject(upload.path), f"part {index} has another MD5 at the store")
        return receipt

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        etags = [receipts[index] for index in range(upload.count)]
        expected = etag_of(etags) if upload.handle else etags[0]
        if upload.handle:
            await self._complete(upload, etags, expected)
        return await self._verified(upload, expected)

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        with contextlib.suppress(NotFound):
            if not upload.handle:
                if receipts and _bare((await self._head(upload.path))["ETag"]) == receipts[0]:
                    await self.remove(upload.path)
                return
            at = self._at(upload.path) | {"UploadId": upload.handle}
            await self._call(upload.path, lambda s3: s3.abort_multipart_upload(**at))

    async def make_directory(self, path: SitePath) -> None:
        """Store the empty object that other tools too take for a directory."""
        if path:
            await self._call(path, lambda s3: s3.put_object(Bucket=self._bucket, Key=self._key(path) + "/", Body=b""))

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        if directory:
            with contextlib.suppress(NotFound):
                async for page in self._site.list(path):
                    if page:
                        raise DirectoryNotEmpty(self._subject(path))
        key = self._key(path) + ("/" if directory else "")
        with contextlib.suppress(NotFound):
            await self._call(path, lambda s3: s3.delete_object(Bucket=self._bucket, Key=key))

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        raise Unsupported(self._subject(path), "S3 can't rename")

    async def close(self) -> None:
        await self._opened.aclose()

    async def _complete(self, upload: Upload, etags: Sequence[str], expected: str) -> None:
        parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, 1)]
        at = self._at(upload.path) | {"UploadId": upload.handle, "MultipartUpload": {"Parts": parts}}
        try:
            await self._call(upload.path, lambda s3: s3.complete_multipart_upload(**at))
        except NotFound:
            head = await self._head(upload.path)
            if _bare(head["ETag"]) != expected:  # else an earlier try got that far
                raise

    async def _head(self, path: SitePath) -> dict[str, Any]:
        head: dict[str, Any] = await self._call(path, lambda s3: s3.head_object(**self._at(path)))
        return head

    async def _verified(self, upload: Upload, expected: str) -> Version:
        head = await self._head(upload.path)
        if head["ContentLength"] != upload.size:
            raise Corrupt(self._subject(upload.path), f"has {head['ContentLength']} bytes, {upload.size} were sent")
        if expected and _is_digest(head) and _bare(head["ETag"]) != expected:
            raise Corrupt(self._subject(upload.path), "has another digest at the store than what was sent")
        entry = await self._site.stat(upload.path)
        if entry.kind is not Kind.FILE or entry.version.size != upload.size:
            raise Corrupt(self._subject(upload.path), "another object has taken its place")
        return entry.version

    async def _listed(self, upload: Upload) -> AsyncIterator[dict[str, Any]]:
        marker = 0
        while True:
            page = await self._call(upload.path, functools.partial(self._list_parts, upload, marker))
            for part in page.get("Parts", ()):
                yield part
            if not page.get("IsTruncated"):
                return
            marker = page["NextPartNumberMarker"]

    def _list_parts(self, upload: Upload, marker: int, s3: Any) -> Awaitable[Any]:
        found: Awaitable[Any] = s3.list_parts(**self._at(upload.path), UploadId=upload.handle, PartNumberMarker=marker)
        return found

    async def _call(self, path: SitePath, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Return what the store answers; keys that it rejects are read again, once."""
        client, used = await self._current()
        try:
            return await self._translated(path, ask(client))
        except Denied:
            if self._keys is None or used is None or not self._keys.renewed(used):
                raise
        client, _ = await self._current()
        return await self._translated(path, ask(client))

    async def _current(self) -> tuple[Any, S3Keys | None]:
        keys = self._keys.current() if self._keys else None
        async with self._opening:
            if self._client is None or self._client[1] != keys:
                self._client = await self._open(keys), keys
            return self._client

    async def _open(self, keys: S3Keys | None) -> Any:
        session, config = await asyncio.to_thread(_prepare, self._connections, self._endpoint is not None)
        client = session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=self._endpoint,
            aws_access_key_id=keys and keys.access_key,
            aws_secret_access_key=keys and keys.secret_key,
            aws_session_token=keys and keys.session_token,
            config=config,
        )
        return await self._opened.enter_async_context(client)

    async def _translated(self, path: SitePath, asked: Awaitable[T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        subject = self._subject(path)
        try:
            return await asked
        except ClientError as exc:
            status = str(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
            raise error_of(exc.response.get("Error", {}).get("Code", ""), status, subject) from exc
        except NoCredentialsError as exc:
            raise Denied(subject, "there are no credentials") from exc
        except (BotoCoreError, TimeoutError, OSError) as exc:
            raise Unavailable(subject, f"failed: {type(exc).__name__}") from exc

    def _at(self, path: SitePath) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._key(path)}

    def _key(self, path: SitePath) -> str:
        return join(self._root, path)

    def _subject(self, path: SitePath) -> str:
        return f"{self._site.name}:{path}"


def error_of(code: str, status: str, subject: str) -> ForemountError:
    """Return what an error code of S3, or the HTTP status where that says more, means. Pure."""
    for known, kind in ((_MISSING, NotFound), (_FULL, NoSpace), (_THROTTLES, Throttled), (_REJECTIONS, Denied)):
        if code in known or status in known:
            return kind(subject, f"answered {status} {code}".rstrip())
    return Unavailable(subject, f"answered {status} {code}".rstrip())


def _prepare(connections: int, by_path: bool) -> tuple[Any, Any]:
    """Return a session and a client configuration. Half a second of imports and parsing."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    session = get_session()
    session.get_component("data_loader").load_service_model("s3", "service-2")
    config = AioConfig(
        connect_timeout=STALL_S,
        read_timeout=STALL_S,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if by_path else "auto"},
        user_agent="foremount",
    )
    return session, config


def etag_of(etags: Sequence[str]) -> str:
    """Return the ETag of an object made of parts with these, "" where they are no MD5s. Pure."""
    if not all(_ETAG.fullmatch(etag) and "-" not in etag for etag in etags):
        return ""
    return hashlib.md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest() + f"-{len(etags)}"


def _bare(etag: str) -> str:
    return etag.strip('"')


def _is_digest(answer: Mapping[str, Any]) -> bool:
    """Return whether the answer's ETag is made of MD5s."""
    sealed = answer.get("ServerSideEncryption", "").startswith("aws:kms") or "SSECustomerAlgorithm" in answer
    return not sealed and _ETAG.fullmatch(_bare(answer["ETag"])) is not None
