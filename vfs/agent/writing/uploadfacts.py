"""How far the origins are behind this host, for `status`, `explain` and the attribute `user.foremount.durability`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vfs.agent.writing.uploads import Uploads
from vfs.clock import Clock
from vfs.errors import from_failure

TROUBLES_MAX = 20


class UploadFacts:
    """Collects facts; keeps none."""

    def __init__(self, uploads: Uploads, clock: Clock) -> None:
        self._uploads = uploads
        self._clock = clock

    def facts(self) -> dict[str, Any]:
        """Return what `status` shows: files and bytes that the origins lack, the age of the oldest, and what is wrong."""
        states: Counter[str] = Counter()
        troubles: list[dict[str, Any]] = []
        size, oldest_ns = 0, 0
        for node, record in self._uploads.pending():
            state = "writing" if node.writing else str(record.state) if record is not None else "queued"
            states[state] += 1
            size += node.size
            if node.written_ns and not node.writing:
                oldest_ns = min(oldest_ns or node.written_ns, node.written_ns)
            if record is not None and record.failure is not None and len(troubles) < TROUBLES_MAX:
                why = str(from_failure(record.failure))
                troubles.append({"path": self._uploads.nodes.path(node), "state": state, "why": why})
        behind_s = (self._clock.wall_ns() - oldest_ns) / 1e9 if oldest_ns else 0.0
        return {
            "behind": {"files": states.total(), "bytes": size, "seconds": round(behind_s, 1)},
            "states": dict(states),
            "troubles": troubles,
            "uploaded": dict(self._uploads.counters),
        }
