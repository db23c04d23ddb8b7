"""Writing to HDFS through WebHDFS: part files in a hidden directory, CONCAT, and a rename that replaces.

The hidden directory lies beside the object, in the same encryption zone and under the same quota; parts are its files "0",
"1", …, each one block. CONCAT joins them onto the first by metadata alone and a file keeps its id through CONCAT and RENAME,
which tells an answer that was lost from an upload that was. HDFS checks each packet's CRC on its way to the disks but tells
no digest that could be compared at a bearable price: what is verified at the end is the length.

DataNodes up to Hadoop 2.7 decode paths twice (see `webhdfs.py`), and CONCAT takes its sources with commas between them: for
paths with a percent sign or a comma the hidden directory lies at the site's root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from vfs.errors import Corrupt, NotFound, WrongAnswer
from vfs.model import Kind, SitePath, Version, join, split
from vfs.sites.transfer import translated
from vfs.sites.webhdfs import WebHdfsSite
from vfs.sites.writing import HIDDEN_PREFIX, Body, Upload

BLOCK_BYTES = 128 << 20
CONCAT_SOURCES = 32
"""Paths of one CONCAT: they travel in the query, of which Jetty takes 4 to 8 KiB."""


class WebHdfsWriter:
    """Writes through a `WebHdfsSite`'s connections and credentials."""

    renames = True

    def __init__(self, site: WebHdfsSite, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._site = site
        self._block_bytes = block_bytes

    def __repr__(self) -> str:
        return f"WebHdfsWriter({self._site!r})"

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        upload = Upload(path, size, self._block_bytes, token)
        await self.make_directory(_directory(upload))
        return upload

    async def received(self, upload: Upload) -> Mapping[int, str]:
        return {
            index: version.etag
            for index, version in (await self._arrived(upload)).items()
            if version.size == upload.span(index)[1]
        }

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        if known:
            async for _ in body.pieces():  # whoever made it wants it read
                pass
            return known
        part = _part(upload, index)
        block = str(self._block_bytes)
        async with self._site.answer("CREATE", part, method="PUT", body=body, overwrite="true", blocksize=block):
            pass
        version = (await self._site.stat(part)).version
        if version.size != body.length:
            raise WrongAnswer(f"{self._site.name}:{part}", f"has {version.size} bytes, {body.length} were sent")
        return version.etag

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        subject = f"{self._site.name}:{upload.path}"
        if not await self._is_in_place(upload, receipts[0]):
            await self._join(upload)
            whole = (await self._site.stat(_part(upload, 0))).version
            if whole.size != upload.size or whole.etag != receipts[0]:
                raise Corrupt(subject, f"{whole.size} bytes arrived instead of {upload.size}")
            await self.rename(_part(upload, 0), upload.path)
        version = (await self._site.stat(upload.path)).version
        if version.etag != receipts[0] or version.size != upload.size:
            raise Corrupt(subject, "another file has taken its place")
        await self.abandon(upload)
        return version

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        await self._delete(_directory(upload), recursive=True)

    async def make_directory(self, path: SitePath) -> None:
        async with self._site.answer("MKDIRS", path, method="PUT"):
            pass

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        await self._delete(path, recursive=False)

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        await self.make_directory(SitePath(split(new_path)[0]))
        target = "/" + self._site.inside(new_path)
        async with self._site.answer("RENAME", path, method="PUT", destination=target, renameoptions="OVERWRITE"):
            pass

    async def close(self) -> None:
        """The site closes its connections."""

    async def _delete(self, path: SitePath, *, recursive: bool) -> None:
        with contextlib.suppress(NotFound):
            async with self._site.answer("DELETE", path, method="DELETE", recursive=str(recursive).lower()) as response:
                with translated(path):
                    msgspec.json.decode(await response.read())

    async def _arrived(self, upload: Upload) -> dict[int, Version]:
        """Return the versions of the part files that are there.

        Raises:
            NotFound: the hidden directory is not.
        """
        return {
            int(entry.name): entry.version
            async for page in self._site.list(_directory(upload))
            for entry in page
            if entry.kind is Kind.FILE and entry.name.isdecimal() and int(entry.name) < upload.count
        }

    async def _is_in_place(self, upload: Upload, identity: str) -> bool:
        """Return whether the first part has the object's name already: an earlier try got that far."""
        try:
            return (await self._site.stat(upload.path)).version.etag == identity
        except NotFound:
            return False

    async def _join(self, upload: Upload) -> None:
        """Append to the first part, in order, those that no earlier try has appended."""
        rest = sorted(await self._arrived(upload))[1:]
        for start in range(0, len(rest), CONCAT_SOURCES):
            group = rest[start : start + CONCAT_SOURCES]
            sources = ",".join("/" + self._site.inside(_part(upload, index)) for index in group)
            async with self._site.answer("CONCAT", _part(upload, 0), method="POST", sources=sources):
                pass


def _directory(upload: Upload) -> SitePath:
    return SitePath(HIDDEN_PREFIX + upload.token) if {"%", ","} & set(upload.hidden) else upload.hidden


def _part(upload: Upload, index: int) -> SitePath:
    return SitePath(join(_directory(upload), str(index)))
