"""Writes what is generated of `policies/`: `schema.json` for editors and the tables of `README.md`.

`python -m vfs.policy.schema DIRECTORY` writes both, without a directory it prints the schema. A test compares.
"""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path
from typing import Any

import msgspec

from vfs.checkpoints.formats import FORMATS
from vfs.policy.facts import KNOWN, Accesses, CountRange, Formats, Ids, Match, NameGlobs, OneOf, PathGlobs, SizeRange
from vfs.policy.loader import PolicyFile
from vfs.policy.values import DEFAULTS, VALUES, value_text
from vfs.policy.written import SNAPSHOT_NAME, Allowance, FetchSize, Hedge, Names, Rate, SiteOrder, Staleness
from vfs.units import Bytes, Seconds

_SIZE = r"[0-9]+(\.[0-9]+)? *([KMGTP]i?)?B?"
_TIME = r"[0-9]+(\.[0-9]+)? *(ms|s|m|min|h|d)"
_LIMIT = rf"((size|hourly) *= *{_SIZE}|(share|stop) *= *[0-9]{{1,3}} *%)"
_TEXTS: dict[type, str] = {
    Allowance: rf"^ *(on|off|{_LIMIT}( *, *{_LIMIT})*) *$",
    Staleness: rf"^(immutable|close-to-open|ttl={_TIME}|pinned={SNAPSHOT_NAME})$",
    Hedge: rf"^(off|after *= *({_TIME}|([0-9]+(\.[0-9]+)? *\* *)?p95))$",
    FetchSize: rf"^{_SIZE}( *\.\. *{_SIZE})?$",
    Rate: rf"^(unlimited|{_SIZE} */ *s)$",
}
_QUANTITIES = {Bytes: _SIZE, Seconds: _TIME, SizeRange: rf"((>=|<=|>|<)? *{_SIZE}|({_SIZE})? *\.\. *({_SIZE})?)"}
_QUANTITIES[CountRange] = r"((>=|<=|>|<)? *[0-9]+|([0-9]+)? *\.\. *([0-9]+)?)"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy document. Stricter checks than a schema can state are the loader's."""
    found: dict[str, Any] = _tidy(msgspec.json.schema(PolicyFile, schema_hook=_describe))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Foremount policy document"} | found


def schema_text() -> str:
    """Return `schema.json`."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def values_table() -> str:
    """Return the table of values in Markdown."""
    rows = [
        "| value | written as | default | takes effect | for | what it decides | why this default |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, about in VALUES.items():
        default = value_text(getattr(DEFAULTS, name))
        rows.append(f"| `{name}` | {about.unit} | {default} | {about.effect} | {about.whose} | {about.text} | {about.why} |")
    return "\n".join(rows)


def facts_table() -> str:
    """Return the table of facts in Markdown."""
    hints = typing.get_type_hints(Match, include_extras=True)
    rows = ["| fact | condition | known |", "|---|---|---|"]
    for name in Match.__struct_fields__:
        note = typing.get_args(hints[name])[0].__metadata__[0].description
        rows.append(f"| `{name}` | {note} | {KNOWN[name]} |".replace("\\", ""))
    return "\n".join(rows)


def fill_readme(text: str) -> str:
    """Return the page with its generated tables as they are now."""
    for name, table in (("facts", facts_table()), ("values", values_table())):
        start = text.index(marker := f"<!-- {name}: generated -->") + len(marker)
        text = f"{text[:start]}\n{table}\n{text[text.index('<!-- end -->', start) :]}"
    return text


def _describe(kind: type) -> dict[str, Any]:
    if kind in _TEXTS:
        return {"type": "string", "pattern": _TEXTS[kind]}
    if kind in _QUANTITIES:
        return {"anyOf": [{"type": "string", "pattern": f"^ *{_QUANTITIES[kind]} *$"}, {"type": "number", "minimum": 0}]}
    if kind is Ids:
        one: dict[str, Any] = {
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+(-[0-9]+)?$"}]
        }
    elif kind is Accesses:
        one = {"enum": ["open", "read", "write", "list", "prefetch"]}
    elif kind is Formats:
        one = {"enum": list(FORMATS)}
    elif kind in (Names, SiteOrder, OneOf, NameGlobs, PathGlobs):
        one = {"type": "string", "minLength": 1}
    else:
        raise NotImplementedError(kind)
    least = {} if kind is Names else {"minItems": 1}
    return {"anyOf": [one, {"type": "array", "items": one, **least}]}


def _tidy(node: Any) -> Any:
    """Return the schema without "or null": TOML has no null, None only marks what is not set."""
    if isinstance(node, list):
        return [_tidy(part) for part in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _tidy(part) for key, part in node.items() if not (key == "default" and part is None)}
    if isinstance(kept.get("description"), str):
        kept["description"] = kept["description"].partition("\n\n")[0]  # docstrings: their sections are for programmers
    choices = [part for part in kept.get("anyOf", []) if part != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        kept |= choices[0]
    return kept


def main(arguments: list[str]) -> None:
    """Write or print."""
    if not arguments:
        sys.stdout.write(schema_text())
        return
    directory = Path(arguments[0])
    (directory / "schema.json").write_text(schema_text(), encoding="utf-8")
    readme = directory / "README.md"
    readme.write_text(fill_readme(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
