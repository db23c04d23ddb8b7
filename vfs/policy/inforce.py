"""What holds for a path under the set in force, for the fs worker and the agent.

Each question is one decision of 3 to 6 us (the shipped documents, 2 busy cores, 2026-11), so nothing is remembered here and
a new set holds from the next question on. Known of an access today: path, size, site, host and kind of access.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol

import msgspec

from vfs.config import Config, Limits
from vfs.model import LakePath, SiteName
from vfs.policy.engine import Decision, Origin, RuleSet, decide, snapshot_of
from vfs.policy.facts import KNOWN, Access, Facts, Match
from vfs.policy.store import PolicySet, PolicyStore
from vfs.policy.values import DEFAULTS, Values
from vfs.policy.written import Staleness, duration_text

KERNEL_TTL_S_MAX = 3600.0
"""How long the kernel is told to believe what never changes: an hour costs nothing, and bounds the life of a mistake."""


def defaults_of(limits: Limits) -> Values:
    """Return what holds where no rule says otherwise: the limits of `foremount.toml` (docs/adr/0003)."""
    return msgspec.structs.replace(
        DEFAULTS,
        staleness=Staleness(f"ttl={duration_text(limits.listing_ttl)}"),
        listing_ttl=limits.listing_ttl,
        deadline=limits.origin_deadline,
    )


def open_store(loaded: Config, config_path: str, *, last_good: str | None = None) -> PolicyStore:
    """Return the documents that a configuration names, in force.

    Args:
        config_path: of `foremount.toml`; relative names start from its directory.
        last_good: as in `PolicyStore`.
    Raises:
        InvalidPolicy: they can't be used, and there is no last good set.
    """
    return PolicyStore(
        loaded.policies,
        base=os.path.dirname(os.path.abspath(config_path)),
        sites=frozenset(loaded.sites),
        defaults=defaults_of(loaded.limits),
        last_good=last_good,
    )


class Documents(Protocol):
    """Where the set in force is found: a `PolicyStore`, or one set for good."""

    @property
    def current(self) -> PolicySet: ...


class InForce:
    """Answers by path.

    Args:
        host: name of this host, for rules that match one.
    """

    def __init__(self, store: Documents, host: str | None = None) -> None:
        self._store = store
        self._host = socket.gethostname() if host is None else host

    def decision(self, path: LakePath, access: Access, site: SiteName, size: int | None = None) -> Decision:
        """Return all values that hold for this access, and the rule that gave each."""
        facts = Facts(path, size=size, site=site, access=access, host=self._host)
        return decide(self._store.current.rules, facts)

    def version_ttl_s(self, path: LakePath, site: SiteName, size: int | None) -> float:
        """Return how long it is believed that the file at a path is still this version; 0: asked anew at each open."""
        return self.decision(path, Access.OPEN, site, size).values.staleness.ttl_s

    def snapshot(self, path: LakePath, site: SiteName) -> str:
        """Return the snapshot that a path is pinned to, "" where it is not.

        What a path is must not depend on how it is asked for: rules that pin match path, site and host alone, and others
        unpin by these alone too.
        """
        if not self._store.current.rules.pinning:
            return ""
        return self.decision(path, Access.OPEN, site).values.staleness.snapshot

    def listing_ttl_s(self, path: LakePath, site: SiteName) -> float:
        """Return how long the names in directory `path` are believed."""
        return self.decision(path, Access.LIST, site).values.listing_ttl

    def deadline_s(self, path: LakePath, access: Access, site: SiteName, size: int | None = None) -> float:
        """Return after how long a system call that waits for the site fails."""
        return self.decision(path, access, site, size).values.deadline

    def waits_for_origin(self, path: LakePath, site: SiteName) -> bool:
        """Return whether fsync and close of a file that is being written wait for its origin."""
        return self.decision(path, Access.WRITE, site).values.write_durability == "remote"


def snapshots_named(rules: RuleSet) -> dict[str, Origin]:
    """Return the snapshots that rules name, each with the first rule that does."""
    named: dict[str, Origin] = {}
    for index in rules.pinning:
        named.setdefault(snapshot_of(rules.rules[index].set), rules.origins[index])
    return named


def unheeded(rules: RuleSet) -> list[tuple[Origin, str]]:
    """Return what documents of the admin's own state to no effect so far: the rule, and a sentence."""
    shipped = {document.name for document in rules.documents if document.shipped}
    found: list[tuple[Origin, str]] = []
    for rule, origin in zip(rules.rules, rules.origins, strict=True):
        if origin.document in shipped:
            continue
        unknown = [name for name in Match.__struct_fields__ if name not in KNOWN and getattr(rule.match, name) is not None]
        found += [(origin, f"never matches so far: {name} is not known yet") for name in unknown]
    return found
