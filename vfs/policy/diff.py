"""What differs between two sets of rules, for the audit log and for people.

Pure: no I/O, no clock. Rules are told apart by document and name; a renamed rule is one removed and one added.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from vfs.policy.engine import Breathe, Document, Rule, RuleSet, hold_breath
from vfs.policy.facts import Match
from vfs.policy.values import VALUES, value_text


class Change(msgspec.Struct, frozen=True):
    """One difference.

    Attributes:
        kind: "moved" means that the order among what both sets hold has changed.
        document: its name.
        rule: its name, or "" where the whole document is meant.
        key: "set.prefetch", "match.path", or "" where the whole rule is meant.
        before, after: as people write them, "" for nothing.
    """

    kind: Literal["added", "removed", "changed", "moved"]
    document: str
    rule: str = ""
    key: str = ""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        where = "/".join(part for part in (self.document, self.rule) if part)
        if self.key:
            return f"{self.kind} {where} {self.key}: {self.before or '(not set)'} -> {self.after or '(not set)'}"
        return f"{self.kind} {where}"


def diff(before: RuleSet, after: RuleSet, breathe: Breathe = hold_breath) -> list[Change]:
    """Return the differences, in the order of `after`, what was removed first. Equal rules give none."""
    old = {document.name: document for document in before.documents}
    new = {document.name: document for document in after.documents}
    changes = [Change("removed", name) for name in old if name not in new]
    changes += [Change("moved", name) for name in _moved(list(old), list(new))]
    for name, document in new.items():
        if name in old:
            changes += _diff_rules(name, old[name], document, breathe)
        else:
            changes.append(Change("added", name))
    return changes


def _diff_rules(name: str, before: Document, after: Document, breathe: Breathe) -> list[Change]:
    old = {rule.name: rule for rule in before.rules}
    new = {rule.name: rule for rule in after.rules}
    changes = [Change("removed", name, rule) for rule in old if rule not in new]
    changes += [Change("moved", name, rule) for rule in _moved(list(old), list(new))]
    for rule_name, rule in new.items():
        breathe()
        if rule_name in old:
            changes += _diff_rule(name, old[rule_name], rule)
        else:
            changes.append(Change("added", name, rule_name))
    return changes


def _diff_rule(document: str, before: Rule, after: Rule) -> list[Change]:
    """Return the differences in what a rule does; `why` does nothing."""
    changes = []
    for table, keys in (("match", Match.__struct_fields__), ("set", VALUES)):
        was, now = getattr(before, table), getattr(after, table)
        for key in keys if was != now else ():
            old, new = getattr(was, key), getattr(now, key)
            if old != new:
                changes.append(Change("changed", document, after.name, f"{table}.{key}", _text(old), _text(new)))
    return changes


def _moved(before: list[str], after: list[str]) -> list[str]:
    """Return the names in both whose place among the names in both has changed."""
    names_before, names_after = set(before), set(after)
    kept_before = [name for name in before if name in names_after]
    kept_after = [name for name in after if name in names_before]
    return [new for old, new in zip(kept_before, kept_after, strict=True) if old != new]


def _text(value: object) -> str:
    return "" if value is None else condition_text(value)


def condition_text(value: object) -> str:
    """Return a condition or value as people write it."""
    if isinstance(value, tuple) and any(isinstance(part, tuple) for part in value):
        return ", ".join(f"{start}" if end == start + 1 else f"{start}-{end - 1}" for start, end in value)
    return value_text(value)
