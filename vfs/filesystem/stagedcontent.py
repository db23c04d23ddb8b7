"""Brings what the origin has to this host, as the content of a staged file, so that it can be changed in place."""

from __future__ import annotations

import os

from msgspec.structs import replace

from vfs.errors import NotFound, Stale, Unsupported
from vfs.filesystem.remote import RemoteTree
from vfs.filesystem.stagednames import StagedNames
from vfs.filesystem.staging import StagingArea
from vfs.filesystem.tree import Source
from vfs.model import LakePath, Version, split
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import At, Staged, StagedKind
from vfs.oserrors import Translated

COPY_UP_BYTES_MAX = 64 << 20
"""Of an object that is changed in place: what is brought here while its opener waits. Larger ones are refused."""
_COPY_BYTES = 1 << 20


class StagedContent:
    """Copies of the origin's objects."""

    def __init__(
        self, point: MountPoint, remote: RemoteTree, area: StagingArea, names: StagedNames, *, owner: tuple[int, int]
    ) -> None:
        self._point = point
        self._remote = remote
        self._area = area
        self._names = names
        self._owner = owner

    async def open_at(self, at: At) -> Source:
        """Open an object of the origin."""
        path = self._point.lake_path(at.path)
        assert path is not None, "a node of this mount point lies below its root"
        return await self._remote.open(path, "", at.version, write=False)

    async def copy_up(self, path: LakePath, version: Version, *, size: int | None) -> Staged:
        """Bring an object of the origin here, its first `size` bytes: as a node in its place, which is returned."""
        content = await self._fetch(path, At(self._point.site_path(path), version), size)
        place = self._names.walk(path)
        if place.node is not None or place.gone:  # somebody else was faster
            if place.shown is None:
                raise NotFound(path)
            return place.shown
        parent, changes = self._names.directory(LakePath(split(path)[0]))
        whole = size is None or size == version.size
        node = Staged(
            id=self._area.next_id(), parent=parent.id, name=split(path)[1], kind=StagedKind.FILE, mode=0o644,
            uid=self._owner[0], gid=self._owner[1], seq=1, content=content, size=version.size if size is None else size,
            mtime_ns=version.mtime_ns if whole else self._area.now_ns(), written_ns=self._area.now_ns(),
            at=At(self._point.site_path(path), version), settled_seq=1 if whole else 0,
        )  # fmt: skip
        os.utime(self._area.path(content), ns=(node.mtime_ns, node.mtime_ns))
        self._area.commit([*changes, node])
        return node

    async def bring_back(self, path: LakePath, node: Staged, *, truncate: bool) -> Staged:
        """Give a node content again."""
        assert node.at is not None
        content = await self._fetch(path, node.at, 0 if truncate else None)
        now = self._area.nodes.get(node.id)
        if now is None or now.content or now.seq != node.seq:
            raise Stale(path, "was changed by somebody else")
        os.utime(self._area.path(content), ns=(now.mtime_ns, now.mtime_ns))
        self._area.commit([filled := replace(now, content=content)])
        return filled

    async def _fetch(self, path: LakePath, at: At, size: int | None) -> int:
        """Return the number of a staging file with the first bytes of an object."""
        length = at.version.size if size is None else min(size, at.version.size)
        if length > COPY_UP_BYTES_MAX:
            raise Unsupported(path, "is too large to be changed in place", "write a new file and rename it over this one")
        source = await self.open_at(at) if length else None
        content = self._area.new_content(path)
        try:
            fd = os.open(self._area.path(content), os.O_RDWR | os.O_CLOEXEC)
            try:
                offset = 0
                while source is not None and offset < length:
                    piece = await source.read(offset, min(_COPY_BYTES, length - offset))
                    with Translated(path):
                        offset += os.pwrite(fd, piece, offset)
                with Translated(path):
                    os.truncate(fd, length if size is None else size)
            finally:
                os.close(fd)
        finally:
            if source is not None:
                source.close()
        return content
