"""Writing to an HTTP server: PUT, or with WebDAV a PUT under a hidden name and a MOVE.

An object is one part: HTTP has no PUT of a range. With "webdav" it gets its name when its size is verified; with "put" the
server gives it the name, and it is the server's word that it does so only when all of the body is there (nginx and Apache
do). No digest is told that could be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Literal

from vfs.errors import Corrupt, DirectoryNotEmpty, ForemountError, NotFound, Unsupported
from vfs.model import SitePath, Version, split
from vfs.sites import httpanswers
from vfs.sites.http import HttpSite
from vfs.sites.writing import Body, Upload


class HttpWriter:
    """Writes through an `HttpSite`'s connections and credentials."""

    def __init__(self, site: HttpSite, way: Literal["put", "webdav"]) -> None:
        self._site = site
        self._moves = way == "webdav"

    @property
    def renames(self) -> bool:
        return self._moves

    def __repr__(self) -> str:
        return f"HttpWriter({self._site!r})"

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        if self._moves:
            await self.make_directory(SitePath(split(path)[0]))
        return Upload(path, size, max(1, size), token)

    async def received(self, upload: Upload) -> Mapping[int, str]:
        try:
            version = (await self._site.stat(self._target(upload))).version
        except NotFound:
            return {}
        return {0: _receipt(version)} if self._moves and version.size == upload.size else {}

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        if known:
            async for _ in body.pieces():  # whoever made it wants it read
                pass
            return known
        target = self._target(upload)
        headers = {"Content-Length": str(body.length), "Content-Type": "application/octet-stream"}
        await self._do("PUT", target, headers, body=body)
        version = (await self._site.stat(target)).version
        if version.size != body.length:
            raise Corrupt(f"{self._site.name}:{target}", f"has {version.size} bytes, {body.length} were sent")
        return _receipt(version)

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        if self._moves:
            try:
                await self.rename(upload.hidden, upload.path)
            except NotFound:  # an earlier try got that far, or somebody removed it: its receipt tells
                pass
        version = (await self._site.stat(upload.path)).version
        if _receipt(version) != receipts[0]:
            raise Corrupt(f"{self._site.name}:{upload.path}", "another object has taken its place")
        return version

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        if self._moves:
            await self.remove(upload.hidden)
        elif receipts:
            with contextlib.suppress(NotFound):
                if _receipt((await self._site.stat(upload.path)).version) == receipts[0]:
                    await self.remove(upload.path)

    async def make_directory(self, path: SitePath) -> None:
        if not self._moves or not path:
            return
        try:
            await self._do("MKCOL", path, slash=True, also=(405,))  # 405: it is there
        except _ParentMissing:
            await self.make_directory(SitePath(split(path)[0]))
            await self._do("MKCOL", path, slash=True, also=(405,))

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        try:
            if directory:
                async for page in self._site.list(path):
                    if page:
                        raise DirectoryNotEmpty(f"{self._site.name}:{path}")
            await self._do("DELETE", path, slash=directory)
        except NotFound:
            return

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        if not self._moves:
            raise Unsupported(f"{self._site.name}:{path}", "the server can't rename", 'with WebDAV: writes = "webdav"')
        headers = {"Destination": str(self._site.url(new_path)), "Overwrite": "T"}
        try:
            await self._do("MOVE", path, headers)
        except _ParentMissing:
            await self.make_directory(SitePath(split(new_path)[0]))
            await self._do("MOVE", path, headers)

    async def close(self) -> None:
        """The site closes its connections."""

    async def _do(
        self,
        method: str,
        path: SitePath,
        headers: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        slash: bool = False,
        also: tuple[int, ...] = (),
    ) -> None:
        """Send a request that must succeed.

        Args:
            also: statuses that are no failure.
        """
        subject = f"{self._site.name}:{path}"
        async with self._site.answer(method, path, headers, body=body, slash=slash) as response:
            if response is None:
                raise Unsupported(subject, "is a directory at the server")
            if response.status // 100 == 2 or response.status in also:
                return
            if response.status == 409:
                raise _ParentMissing(subject, "the directory above it is not there")
            if response.status in (405, 501):
                raise Unsupported(subject, f"the server does not take {method}")
            raise httpanswers.error_of(response.status, subject)

    def _target(self, upload: Upload) -> SitePath:
        return upload.hidden if self._moves else upload.path


class _ParentMissing(ForemountError):
    """A directory of the path is missing."""


def _receipt(version: Version) -> str:
    return f"{version.size} {version.mtime_ns} {version.etag}"
