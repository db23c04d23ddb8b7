"""What holds for a path under the set in force, for the fs worker and the agent.

Each question is one decision of 3 to 6 us (the shipped documents, 2 busy cores, 2026-11), so nothing is remembered here and
a new set holds from the next question on. What costs a look (the format, who asks) is found out where a rule asks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Protocol

import msgspec

from vfs.checkpoints.formats import format_of
from vfs.config import Config, Limits
from vfs.model import LakePath, SiteName
from vfs.policy.engine import Decision, Origin, RuleSet, decide, snapshot_of
from vfs.policy.facts import OF_CALLERS, Access, Facts, conditions_of
from vfs.policy.store import PolicySet, PolicyStore
from vfs.policy.values import DEFAULTS, VALUES, Values, Whose, settings_of
from vfs.policy.written import Staleness, duration_text
from vfs.usage import NOBODY, CallerFacts

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
    """Answers by path, for the process that asks.

    Args:
        host: name of this host, for rules that match one.
        caller: tells which process that is; it is asked where a rule wants to know.
    """

    def __init__(
        self, store: Documents, host: str | None = None, caller: Callable[[], CallerFacts] = lambda: NOBODY
    ) -> None:  # fmt: skip
        self._store = store
        self._host = socket.gethostname() if host is None else host
        self._caller = caller

    def facts(
        self, path: LakePath, access: Access, site: SiteName, size: int | None = None, caller: CallerFacts | None = None
    ) -> Facts:
        """Return what rules can match of an access.

        Args:
            caller: who asks; None: whoever asks now.
        """
        rules = self._store.current.rules
        format_ = format_of(path) if "format" in rules.asks else None
        if not rules.asks_of_callers:
            return Facts(path, size=size, site=site, access=access, host=self._host, format=format_)
        who = self._caller() if caller is None else caller
        return Facts(path, size, who.uid, who.gid, who.job, site, access, format_, who.world, self._host)

    def decision(
        self, path: LakePath, access: Access, site: SiteName, size: int | None = None, caller: CallerFacts | None = None
    ) -> Decision:
        """Return all values that hold for this access, and the rule that gave each; arguments as `facts`."""
        return decide(self._store.current.rules, self.facts(path, access, site, size, caller))

    def version_ttl_s(self, path: LakePath, site: SiteName, size: int | None) -> float:
        """Return how long it is believed that the file at a path is still this version; 0: asked anew at each open."""
        return self.decision(path, Access.OPEN, site, size).values.staleness.ttl_s

    def kernel_version_ttl_s(self, path: LakePath, site: SiteName, size: int | None) -> float:
        """Return the shortest `version_ttl_s` that any process may have: the kernel asks for all of them alike."""
        facts = self.facts(path, Access.OPEN, site, size, NOBODY)
        found: list[Staleness] = self._store.current.rules.for_anybody(facts, "staleness")
        return min(each.ttl_s for each in found)

    def snapshot(self, path: LakePath, site: SiteName) -> str:
        """Return the snapshot that a path is pinned to, "" where it is not.

        What a path is must not depend on how it is asked for: rules that pin match path, site and host alone, and others
        unpin by these alone too.
        """
        rules = self._store.current.rules
        if not rules.pinning:
            return ""
        facts = Facts(path, site=site, access=Access.OPEN, host=self._host)
        return decide(rules, facts).values.staleness.snapshot

    def listing_ttl_s(self, path: LakePath, site: SiteName) -> float:
        """Return how long the names in directory `path` are believed."""
        return self.decision(path, Access.LIST, site).values.listing_ttl

    def kernel_listing_ttl_s(self, path: LakePath, site: SiteName) -> float:
        """Return the shortest `listing_ttl_s` that any process may have: the kernel asks for all of them alike."""
        facts = self.facts(path, Access.LIST, site, caller=NOBODY)
        found: list[float] = self._store.current.rules.for_anybody(facts, "listing_ttl")
        return min(found)

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
    """Return what documents of the admin's own state to no effect: the rule, and a sentence."""
    shipped = {document.name for document in rules.documents if document.shipped}
    found: list[tuple[Origin, str]] = []
    for rule, origin in zip(rules.rules, rules.origins, strict=True):
        of_callers = [name for name in conditions_of(rule.match) if name in OF_CALLERS]
        if origin.document in shipped or not of_callers:
            continue
        nobodys = [name for name in settings_of(rule.set) if VALUES[name].whose is Whose.NOBODY]
        found += [(origin, f"never sets {name}: it is decided for nobody, who has no {of_callers[0]}") for name in nobodys]
    return found
