"""The files beside one that is open, for whoever looks ahead."""

from __future__ import annotations

from collections.abc import Sequence

from vfs.agent.reading.holding import Holding
from vfs.agent.reading.metadata import Metadata
from vfs.extents.layout import Identity
from vfs.model import Entry, LakePath, ObjectKey, Version


class FilesBeside:
    """Names them as the origin lists them, and holds them as the policy says."""

    def __init__(self, metadata: Metadata, holding: Holding) -> None:
        self._metadata = metadata
        self._holding = holding

    async def files(self, directory: LakePath) -> Sequence[Entry]:
        """Return what a directory holds; of a huge one nothing."""
        return await self._metadata.files(directory)

    async def hold(self, path: LakePath, version: Version) -> tuple[Identity, ObjectKey, str]:
        """Hold a version of a file until `release`."""
        return await self._holding.hold(path, version)

    def is_here(self, path: LakePath, identity: Identity) -> bool:
        """Return whether it would be read from a copy on this host."""
        return self._holding.is_here(path, identity)

    def release(self, key: ObjectKey) -> None:
        """Undo one `hold`."""
        self._holding.release(key)
