"""Writing to a `MemorySite`: a fake that passes the contract of the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import xxhash

from vfs.errors import Corrupt, DirectoryNotEmpty, NotFound, Unsupported
from vfs.model import SitePath, Version
from vfs.sites.memory import MemorySite
from vfs.sites.writing import Body, Upload, whole

PART_BYTES = 1 << 20


class MemoryWriter:
    """Attributes:
    _arrived: parts of the uploads that are neither finished nor abandoned, by token.
    """

    renames = False

    def __init__(self, site: MemorySite, *, part_bytes: int = PART_BYTES) -> None:
        self._site = site
        self._part_bytes = part_bytes
        self._arrived: dict[str, dict[int, bytes]] = {}
        self._finished: dict[str, Version] = {}

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        await asyncio.sleep(0)
        self._arrived.setdefault(token, {})
        return Upload(path, size, self._part_bytes, token)

    async def received(self, upload: Upload) -> Mapping[int, str]:
        await asyncio.sleep(0)
        return {index: _receipt(part) for index, part in self._parts(upload).items()}

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        part = bytes(await whole(body))
        await asyncio.sleep(0)
        if known != _receipt(part):
            self._parts(upload)[index] = part
        return _receipt(part)

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        await asyncio.sleep(0)
        if upload.token in self._finished:
            return self._finished[upload.token]
        parts = self._parts(upload)
        if {index: _receipt(part) for index, part in parts.items()} != dict(receipts):
            raise Corrupt(upload.path, "the parts that arrived are not those that were sent")
        content = b"".join(parts[index] for index in sorted(parts))
        if len(content) != upload.size:
            raise Corrupt(upload.path, f"{len(content)} bytes arrived instead of {upload.size}")
        version = self._finished[upload.token] = self._site.put(upload.path, content)
        del self._arrived[upload.token]
        return version

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        self._arrived.pop(upload.token, None)

    async def make_directory(self, path: SitePath) -> None:
        """Directories are there as long as something lies in them."""

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        await asyncio.sleep(0)
        try:
            if not directory:
                self._site.delete(path)
            elif (await self._site.stat(path)).kind == "directory":
                raise DirectoryNotEmpty(path)
        except NotFound:
            return

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        raise Unsupported(path, "this store can't rename")

    async def close(self) -> None:
        """Keep what has arrived: tests look at it afterwards."""

    def _parts(self, upload: Upload) -> dict[int, bytes]:
        try:
            return self._arrived[upload.token]
        except KeyError:
            raise NotFound(upload.path, "no such upload") from None


def _receipt(part: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(part)
