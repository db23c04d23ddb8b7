"""Decision tables: facts and the values that must come out, kept beside the documents that they test.

Pure but for `check_file`, which reads files.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from vfs.checkpoints.formats import format_of
from vfs.errors import InvalidPolicy
from vfs.policy.diff import condition_text
from vfs.policy.engine import DEFAULT, RuleSet, decide
from vfs.policy.facts import Facts
from vfs.policy.loader import decode_document_value, load
from vfs.policy.values import Settings, settings_of
from vfs.units import Bytes, decode_unit


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row.

    Attributes:
        name: what it shows, as a sentence.
        facts: as in `Facts`; the size may have a unit.
        expect: values that must come out; others are not looked at.
        rule: by the name of a value: which rule must give it, "document/rule" or "default".
    """

    name: str
    facts: dict[str, Any]
    expect: Settings
    rule: dict[str, str] = {}


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table.

    Attributes:
        policies: documents under test, as in `foremount.toml`; paths start from the table's directory.
        cases: the rows.
    """

    policies: list[str]
    cases: list[Case]


class Result(msgspec.Struct, frozen=True):
    """What came of one row.

    Attributes:
        wrong: one sentence for each thing that is not as expected; empty: passed.
    """

    file: str
    case: str
    wrong: tuple[str, ...]


def check_file(path: str | os.PathLike[str]) -> list[Result]:
    """Return what comes of every row of a table.

    Raises:
        InvalidPolicy: the table or one of its documents can't be used.
    """
    name = os.fspath(path)
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        stated = msgspec.convert(table, CaseFile, dec_hook=decode_document_value)
        facts = [_facts(case) for case in stated.cases]
    except OSError as exc:
        raise InvalidPolicy(name, f"can't be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise InvalidPolicy(name, f"is no TOML: {exc}") from exc
    except (msgspec.ValidationError, ValueError) as exc:
        raise InvalidPolicy(name, str(exc)) from exc
    rules = load(stated.policies, base=os.path.dirname(name))
    return [
        Result(name, case.name, tuple(_wrong(rules, case, known))) for case, known in zip(stated.cases, facts, strict=True)
    ]


def _facts(case: Case) -> Facts:
    stated = dict(case.facts)
    if "path" in stated:
        stated.setdefault("format", format_of(str(stated["path"])))
    if "size" in stated:
        stated["size"] = int(decode_unit(Bytes, stated["size"]))
    try:
        return msgspec.convert(stated, Facts)
    except msgspec.ValidationError as exc:
        raise ValueError(f"facts of {case.name!r}: {exc}") from exc


def _wrong(rules: RuleSet, case: Case, facts: Facts) -> list[str]:
    decision = decide(rules, facts)
    found = []
    for name, wanted in settings_of(case.expect).items():
        got = getattr(decision.values, name)
        if got != wanted:
            said = f"{name} is {condition_text(got)} (from {decision.origins[name]}), expected {condition_text(wanted)}"
            found.append(said)
    for name, wanted in case.rule.items():
        origin = str(decision.origins.get(name, DEFAULT))
        if origin != wanted:
            found.append(f"{name} comes from {origin}, expected from {wanted}")
    return found
