"""What rules were asked, and why one does or doesn't match, as people read it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from vfs.policy.diff import condition_text
from vfs.policy.engine import RuleSet, explain
from vfs.policy.facts import Facts
from vfs.units import Bytes


def facts_text(facts: Facts) -> dict[str, str]:
    """Return the facts that are known, by name."""
    return {name: text for name in Facts.__struct_fields__ if (text := _text(facts, name)) is not None}


def verdicts_text(rules: RuleSet, facts: Facts) -> Mapping[str, str]:
    """Return what became of each rule, in order, by document/rule."""
    found = {}
    for rule, verdict in zip(rules.rules, explain(rules, facts), strict=True):
        if (name := verdict.mismatch) is not None:
            is_ = "is not known" if (text := _text(facts, name)) is None else f"is {text}"
            text = f"no, {name} {is_}, the rule wants {condition_text(getattr(rule.match, name))}"
        else:
            text = f"gives {', '.join(verdict.wins)}" if verdict.wins else "matches, later rules win"
        found[str(verdict.origin)] = text
    return found


def _text(facts: Facts, name: str) -> str | None:
    known = getattr(facts, name)
    if known is None:
        return None
    return condition_text(Bytes(known)) if name == "size" else str(known)
