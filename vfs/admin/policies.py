"""The policy of a running mount: followed as its documents change, reloaded by command, and written down who did it.

Task: `follow`, for the agent's life.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from vfs.clock import Clock
from vfs.errors import InvalidPolicy, Stale, to_failure
from vfs.policy.engine import Decision
from vfs.policy.explain import verdicts_text
from vfs.policy.facts import Facts
from vfs.policy.store import PolicyStore, Reload
from vfs.policy.values import value_text
from vfs.policy.watch import watch

log = logging.getLogger(__name__)
FILE_CHANGE = "file change"
AUDIT_BYTES_MAX = 1 << 20
"""Of the audit log, before it becomes `audit.log.1`: some 5,000 reloads."""


class Record(msgspec.Struct, frozen=True):
    """One line of the audit log.

    Attributes:
        at: when, UTC.
        who: the user id or token that asked for it, or "file change".
        before, after: versions; equal where nothing was put in force.
        changes: in what the rules do, as people read them.
        error: why the documents were refused, or "".
    """

    at: str
    who: int | str
    before: str
    after: str
    changes: list[str] = []
    error: str = ""


class AuditLog:
    """JSON lines in a file that is rotated once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writing = threading.Lock()

    def note(self, record: Record) -> None:
        """Append a line. A disk that refuses it costs the line and a warning, not the reload."""
        try:
            with self._writing, open(self._path, "ab") as file:
                if file.tell() >= AUDIT_BYTES_MAX:
                    os.replace(self._path, f"{self._path}.1")
                    with open(self._path, "ab") as fresh:
                        fresh.write(msgspec.json.encode(record) + b"\n")
                else:
                    file.write(msgspec.json.encode(record) + b"\n")
        except OSError as exc:
            log.warning("%s: can't be written: %s", self._path, exc.strerror)


class Policies:
    """The set in force, for the admin API.

    Attributes:
        on_record: called with each line of the audit log.
    """

    def __init__(self, store: PolicyStore, audit: AuditLog, clock: Clock) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock
        self.on_record: Callable[[Record], None] = lambda record: None

    @property
    def version(self) -> str:
        """Return the version in force, the API's ETag."""
        return self._store.current.version

    async def follow(self) -> None:
        """Put changed documents in force until the agent ends; log and write down what came of it."""
        log.info("policy %s in force", self.version)
        if self._store.error is not None:
            log.warning("policy %s of the last start stays in force: %s", self.version, self._store.error)
        if not self._store.directories():
            return  # shipped documents only: they change with the package
        async for outcome in watch(self._store, in_thread=asyncio.to_thread):
            await self._note(FILE_CHANGE, outcome)

    async def reload(self, who: int | str, expected: str | None) -> Reload:
        """Read the documents now.

        Args:
            who: the user id that asks, or the name of its token.
            expected: version that the caller has seen; None: any.
        Raises:
            Stale: another version is in force than the caller has seen.
            InvalidPolicy: the documents can't be used; the set before stays in force.
        """
        if expected is not None and expected != self.version:
            hint = "look at what is in force and ask again"
            raise Stale("policies", f"version {self.version} is in force, not {expected}", hint)
        try:
            reload = await asyncio.to_thread(self._store.reload)
        except InvalidPolicy as exc:
            await self._note(who, exc)
            raise
        await self._note(who, reload)
        return reload

    async def _note(self, who: int | str, outcome: Reload | InvalidPolicy) -> None:
        at = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC).isoformat(timespec="milliseconds")
        asked = who if isinstance(who, str) else f"uid {who}"
        if isinstance(outcome, InvalidPolicy):
            log.warning("policy %s stays in force (%s): %s", self.version, asked, outcome)
            record = Record(at, who, self.version, self.version, error=str(outcome))
        else:
            changes = [str(change) for change in outcome.changes]
            log.info("policy %s in force (%s), was %s: %s", outcome.after, asked, outcome.before, "; ".join(changes))
            record = Record(at, who, outcome.before, outcome.after, changes)
        self.on_record(record)
        await asyncio.to_thread(self._audit.note, record)

    def summary(self) -> dict[str, Any]:
        """Return version, names and trouble, for `status`."""
        error = self._store.error
        return {
            "version": self.version,
            "documents": [document.name for document in self._store.current.rules.documents],
            "error": None if error is None else msgspec.structs.asdict(to_failure(error)),
        }

    def verdicts(self, facts: Facts) -> Mapping[str, str]:
        """Return what becomes of each rule in force for an access, for people."""
        return verdicts_text(self._store.current.rules, facts)

    def facts(self) -> dict[str, Any]:
        """Return what is in force, rule by rule as far as names and places go."""
        documents = [
            {
                "name": document.name,
                "source": document.source,
                "shipped": document.shipped,
                "about": document.about,
                "digest": document.digest,
                "rules": [rule.name for rule in document.rules],
            }
            for document in self._store.current.rules.documents
        ]
        return self.summary() | {"documents": documents}


def decision_facts(decision: Decision) -> dict[str, Any]:
    """Return each value as people write it, and the rule that gave it. Pure."""
    found = {}
    for name, origin in decision.origins.items():
        value = getattr(decision.values, name)
        found[name] = {
            "value": value_text(value),
            "from": str(origin),
            "line": origin.line,
        }
    return found
