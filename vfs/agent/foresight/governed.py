"""What the policy says of copies, for the controller: switches, quotas, duties, each with the rule that states it.

Pure but for the set in force, which is replaced while this works: each answer holds for the moment that it is given in. Rules
are asked with the access "prefetch" and the site of the path's mount.
"""

from __future__ import annotations

from collections.abc import Mapping

from vfs.agent.rules import PathRules
from vfs.foresight.model import Labels, Mechanism, ReplicaRecord
from vfs.foresight.placing import Rules, SiteFacts, room
from vfs.model import LakePath, SiteName
from vfs.policy.facts import Access
from vfs.policy.inforce import Documents
from vfs.policy.values import Values
from vfs.policy.written import UNLIMITED, Allowance

VALUE_OF: Mapping[Mechanism, str] = {
    Mechanism.CHECKPOINTS: "eval_copies",
    Mechanism.HOT_FILES: "hot_copies",
    Mechanism.SAMPLES: "samples_ahead",
}
_DUTIES = {"residency": "residency", "encryption": "copy_encryption", "retention": "copy_retention"}


class Governed:
    """An `Oversight` over policy documents, and the rules for places."""

    def __init__(self, rules: PathRules, documents: Documents, facts: Mapping[SiteName, SiteFacts]) -> None:
        self._rules = rules
        self._documents = documents
        self._facts = facts

    @property
    def version(self) -> str:
        return self._documents.current.version

    def allowance(self, mechanism: Mechanism, path: LakePath) -> Allowance:
        """Return what a mechanism may take for a path."""
        found: Allowance = getattr(self._rules.decision(path, Access.PREFETCH).values, VALUE_OF[mechanism])
        return found

    def rules(self, mechanism: Mechanism, path: LakePath) -> Rules:
        """Return what holds for copies of a path by a mechanism."""
        decision = self._rules.decision(path, Access.PREFETCH)
        allowance: Allowance = getattr(decision.values, VALUE_OF[mechanism])
        names = {rule: str(decision.origins[value]) for rule, value in _DUTIES.items()}
        names["on"] = names["size"] = names["hourly"] = str(decision.origins[VALUE_OF[mechanism]])
        return Rules(on=allowance.on, size=allowance.size, duties=duties_of(decision.values), names=names)

    def forbids(self, replica: ReplicaRecord) -> str:
        rules = self.rules(replica.mechanism, replica.path)
        place = self._facts.get(replica.site, SiteFacts()).place
        return rules.switched_off(replica.mechanism) or rules.refusal(replica.labels, place)

    def room(self, replica: ReplicaRecord, used: Mapping[tuple[SiteName, Mechanism], int], spent: int) -> tuple[int, str]:
        allowance, rules = self.allowance(replica.mechanism, replica.path), self.rules(replica.mechanism, replica.path)
        facts = self._facts.get(replica.site, SiteFacts())
        left, why = room(facts, rules, replica.site, replica.mechanism, used)
        if allowance.hourly < UNLIMITED and allowance.hourly - spent < left:
            by = rules.names["hourly"]
            why = f"quota: {replica.mechanism} copied {spent} of {allowance.hourly} bytes within an hour (rule {by})"
            left = allowance.hourly - spent
        return left, why

    def share(self, replica: ReplicaRecord) -> float:
        """Return the share of a line that a copy's mechanism may hold."""
        return self.allowance(replica.mechanism, replica.path).share

    def stop_below(self, mechanism: Mechanism, path: LakePath) -> float:
        return self.allowance(mechanism, path).stop


def duties_of(values: Values) -> Labels:
    """Return the duties that a policy lays on copies."""
    return Labels(
        residency=tuple(values.residency),
        encrypted=values.copy_encryption == "required",
        retain_s=float(values.copy_retention),
        with_origin=values.copy_deletion == "with-origin",
    )


def stated_duties(rules: PathRules, path: LakePath) -> Labels | None:
    """Return the duties that go along with a checkpoint that is committed here; None where this host's policy has none."""
    found = duties_of(rules.decision(path, Access.PREFETCH).values)
    return None if found == Labels(with_origin=True) else found
