"""What the controller asks of whoever moves the bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from vfs.checkpoints.manifest import ManifestFile
from vfs.foresight.model import FileCopy, ReplicaRecord


class Executor(Protocol):
    """Copies, verifies and drops; decides nothing and keeps no records.

    Cancellation (of all): what was not reported is as if it had never been begun, or lies at the destination where the next
    call for the same replica replaces it and `drop` removes it.
    """

    async def copy(
        self, replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
    ) -> None:
        """Bring files to the replica's site, each verified there against its digest before it is reported.

        Args:
            files: their paths are relative to the replica's path; those that are complete at the origin, in any order.
            done: called for each file, in the order in which they are finished.

        Raises:
            Denied: a rule or the site refuses this copy for good; the reason names the rule.
            ForemountError: it failed and may be tried again; what was reported stays.
        """
        ...

    async def check(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> list[str]:
        """Return the paths of those that are not at the destination as they were reported, cheaply (by version)."""
        ...

    async def drop(self, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> int:
        """Remove all that lies below the replica's root, which belongs to it alone, and never anything outside of it.

        Args:
            copies: that were reported; what a copy that was broken off has left may lie beside them.

        Returns:
            How many files were removed, and then asked for and not found.

        Raises:
            ForemountError: something may be left; to be called again.
        """
        ...
