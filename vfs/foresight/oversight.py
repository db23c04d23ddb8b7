"""What a controller asks of the policy, each time anew: rules change while it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vfs.foresight.gate import OFF_BELOW
from vfs.foresight.model import Mechanism, ReplicaRecord
from vfs.model import LakePath, SiteName


class Oversight(Protocol):
    """Answers without waiting."""

    @property
    def version(self) -> str:
        """Return a name of the rules in force: another one, and everything is asked again."""
        ...

    def forbids(self, replica: ReplicaRecord) -> str:
        """Return why a copy may not be, or be no longer, and whose rule that is; "" where it may."""
        ...

    def room(self, replica: ReplicaRecord, used: Mapping[tuple[SiteName, Mechanism], int], spent: int) -> tuple[int, str]:
        """Return how many bytes more may be copied now, and what limits that.

        Args:
            used: bytes that copies take, by site and mechanism.
            spent: bytes that the mechanism has copied within the last hour.
        """
        ...

    def stop_below(self, mechanism: Mechanism, path: LakePath) -> float:
        """Return the hit rate below which predictions bring no copies."""
        ...


class Free:
    """Without any rules."""

    version = ""

    def forbids(self, replica: ReplicaRecord) -> str:
        return ""

    def room(self, replica: ReplicaRecord, used: Mapping[tuple[SiteName, Mechanism], int], spent: int) -> tuple[int, str]:
        return 1 << 60, ""

    def stop_below(self, mechanism: Mechanism, path: LakePath) -> float:
        return OFF_BELOW
