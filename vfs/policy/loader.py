"""Reads policy documents: all of them or none, and says where and how a faulty one is to be mended.

Pure but for `read`, which reads files. tomllib gives no line for a key that is well-formed but unknown or of a wrong value,
so `_Lines` finds it by a scan of the text for table headers and keys. What the scan may miss (keys inside multi-line strings)
costs the line in a message, nothing else; that is not worth a second TOML parser that keeps positions.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.resources
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import msgspec

import vfs
from vfs.errors import InvalidPolicy
from vfs.policy.engine import Breathe, Document, Rule, RuleSet, hold_breath, snapshot_of
from vfs.policy.facts import CountRange, Match, SizeRange
from vfs.policy.values import DEFAULTS, Settings, Values, settings_of
from vfs.policy.written import NEAREST, ORIGIN
from vfs.units import Bytes, Seconds, decode_unit

ALWAYS = "defaults"
"""The shipped document that is in force beneath all others."""


class PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy document as it is written.

    Attributes:
        format: of the language; there is one so far.
        about: for people.
        rules: in order; later ones win.
    """

    format: Literal[1]
    rules: list[Rule]
    about: str = ""


class Text(msgspec.Struct, frozen=True):
    """A document that was read but not parsed.

    Attributes:
        source: a path, or "shipped:NAME".
    """

    source: str
    shipped: bool
    text: str


def shipped_directory() -> Traversable:
    """Return where the documents that came with the package lie: package data, or `policies/` of a checkout."""
    try:
        return importlib.resources.files("vfs.shipped_policies")
    except ModuleNotFoundError:
        return Path(vfs.__file__).resolve().parent.parent / "policies"


@functools.cache  # an upgrade starts new processes; listing them costs 400 us, too much for every look at the stamps
def shipped_names() -> tuple[str, ...]:
    """Return the names of the shipped documents, sorted."""
    names = (entry.name for entry in shipped_directory().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def expand(sources: Iterable[str], base: str = "") -> list[str]:
    """Return the documents that `sources` stand for, in order: paths as they are opened, and "shipped:NAME".

    Args:
        sources: each the name of a shipped document, a file, or a directory, which stands for its *.toml by name.
        base: directory that relative paths start from; "" is the current one.
    Raises:
        InvalidPolicy: a source is none of these.
    """
    found: list[str] = []
    for source in sources:
        path = os.path.join(base, source)
        shipped = source.removeprefix("shipped:")
        if shipped in shipped_names() and (shipped != source or not os.path.exists(path)):
            found.append(f"shipped:{shipped}")
        elif os.path.isdir(path):
            found += [os.path.join(path, name) for name in sorted(os.listdir(path)) if _is_document(name)]
        elif os.path.isfile(path):
            found.append(path)
        else:
            hint = f"write a file, a directory, or one of: {', '.join(shipped_names())}"
            raise InvalidPolicy(source, "is no policy document", hint)
    return found


def read(sources: Iterable[str], base: str = "") -> list[Text]:
    """Return the texts of the documents that `sources` stand for, beginning with the shipped defaults.

    Raises:
        InvalidPolicy: one is missing or can't be read.
    """
    names = [f"shipped:{ALWAYS}", *expand(sources, base)]
    return [_read_one(name) for name in dict.fromkeys(names)]


def parse(text: Text, breathe: Breathe = hold_breath) -> Document:
    """Return the document that the text states.

    Raises:
        InvalidPolicy: with file, line, and the nearest known key where an unknown one was written.
    """
    stated, lines = _by_rule(text.text, breathe), _Lines(text.text)
    if stated is None:
        stated = _whole(text, lines)
    _check(text, lines, stated, breathe)
    return Document(
        name=os.path.basename(text.source).removeprefix("shipped:").removesuffix(".toml"),
        source=text.source,
        shipped=text.shipped,
        rules=tuple(stated.rules),
        lines=tuple(lines.rule(index) for index in range(len(stated.rules))),
        about=stated.about,
        digest=hashlib.sha256(text.text.encode()).hexdigest()[:16],
    )


def _whole(text: Text, lines: _Lines) -> PolicyFile:
    """Return what the text states, in one go."""
    try:
        table = tomllib.loads(text.text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidPolicy(_at(text, _line_of_syntax_error(exc, text.text)), f"is no TOML: {exc}") from exc
    try:
        return msgspec.convert(table, PolicyFile, dec_hook=_decode)
    except msgspec.ValidationError as exc:
        raise _explain(text, lines, exc) from exc


def _by_rule(text: str, breathe: Breathe) -> PolicyFile | None:
    """Return what the text states, read rule by rule; None: it is faulty, or has to be read in one go.

    A piece that ends inside a string or an array is no TOML, so what can be read in pieces says the same as a whole.
    """
    head, *pieces = re.split(r"^(?=[ \t]*\[\[[ \t]*rules[ \t]*\]\])", text, flags=re.MULTILINE)
    try:
        table: dict[str, Any] = tomllib.loads(head)
        if not pieces or "rules" in table:
            return None
        rules = []
        for piece in pieces:
            found = tomllib.loads(piece)
            if list(found) != ["rules"] or len(found["rules"]) != 1:
                return None
            rules.append(msgspec.convert(found["rules"][0], Rule, dec_hook=_decode))
            breathe()
        stated = msgspec.convert({**table, "rules": []}, PolicyFile, dec_hook=_decode)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError):
        return None
    return msgspec.structs.replace(stated, rules=rules)


def compile_rules(
    texts: Sequence[Text],
    sites: Collection[str] | None = None,
    defaults: Values = DEFAULTS,
    breathe: Breathe = hold_breath,
) -> RuleSet:
    """Return the rules of all documents, in force order.

    Args:
        sites: names in the configuration, to refuse rules for others; None: not checked.
        defaults: what holds where no rule says otherwise.
    Raises:
        InvalidPolicy: one document can't be used, or two have the same name.
    """
    documents = [parse(text, breathe) for text in texts]
    by_name: dict[str, Document] = {}
    for document in documents:
        if (other := by_name.setdefault(document.name, document)) is not document:
            hint = "rename one: explain and the audit log tell documents apart by name"
            raise InvalidPolicy(document.source, f"has the same name as {other.source}", hint)
    if sites is not None:
        for text, document in zip(texts, documents, strict=True):
            _check_sites(text, document, sites)
    return RuleSet(documents, defaults, breathe)


def load(
    sources: Iterable[str], *, base: str = "", sites: Collection[str] | None = None, defaults: Values = DEFAULTS
) -> RuleSet:
    """Return the rules of the documents that `sources` stand for (`expand`), above the shipped defaults.

    Raises:
        InvalidPolicy: one of them can't be used; nothing is taken from the others.
    """
    return compile_rules(read(sources, base), sites, defaults)


def decode_document_value(wanted: type, value: Any) -> Any:
    """Turn a document's value into one of the types of `written.py`, `facts.py` and `units.py`.

    Raises:
        ValueError: with what to write instead.
    """
    if wanted in (Bytes, Seconds):
        if isinstance(value, bool) or not isinstance(value, str | int | float) or (not isinstance(value, str) and value < 0):
            raise ValueError(f"{value!r} is no quantity: write for example 64MiB or 30s")
        return decode_unit(wanted, value)
    if issubclass(wanted, SizeRange | CountRange) and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if issubclass(wanted, str | float) and not isinstance(value, str):
        raise ValueError(f"{value!r} is no text: write it in quotes")  # noqa: TRY004 one kind for all that is ill-written
    return wanted(value)


_decode = decode_document_value


def _is_document(name: str) -> bool:
    return name.endswith(".toml") and not name.startswith(".")


def _read_one(source: str) -> Text:
    shipped = source.startswith("shipped:")
    try:
        if shipped:
            file = shipped_directory() / f"{source.removeprefix('shipped:')}.toml"
            return Text(source, True, file.read_text(encoding="utf-8"))
        return Text(source, False, Path(source).read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidPolicy(source, f"can't be read: {exc.strerror}", "name an existing file") from exc
    except UnicodeDecodeError as exc:
        raise InvalidPolicy(source, "is not UTF-8 text") from exc


def _at(text: Text, line: int, key: str = "") -> str:
    """Return the subject of an error: file, line, key."""
    where = f"{text.source}:{line}" if line else text.source
    return f"{where}: {key}" if key else where


def _explain(text: Text, lines: _Lines, error: msgspec.ValidationError) -> InvalidPolicy:
    """Return msgspec's complaint with line and, for an unknown key, the nearest that its table may hold."""
    sentence, _, at = str(error).partition(" - at `")
    key = at.rstrip("`").removeprefix("$").removeprefix(".")
    hint = ""
    if unknown := re.search(r"unknown field `(.+?)`", sentence):
        table = key.rpartition(".")[2].partition("[")[0]
        key = f"{key}.{unknown[1]}" if key else unknown[1]
        sentence, hint = "unknown key", _nearest(unknown[1], table)
    elif missing := re.search(r"missing required field `(.+?)`", sentence):
        sentence, hint = f"{missing[1]!r} is missing", _MISSING.get(missing[1], "")
    return InvalidPolicy(_at(text, lines.find(key), key), sentence, hint)


_MISSING = {
    "format": "begin the document with: format = 1",
    "name": "give each rule a name of its own",
    "match": "write match = {} for a rule that holds everywhere",
    "set": "say which values the rule sets",
    "rules": "add a [[rules]] table",
}
_TABLES: dict[str, type[msgspec.Struct]] = {"": PolicyFile, "rules": Rule, "match": Match, "set": Settings}


def _nearest(key: str, table: str) -> str:
    known = _TABLES[table].__struct_fields__
    if close := difflib.get_close_matches(key, known, n=1):
        return f"did you mean {close[0]!r}?"
    for other, kind in _TABLES.items():
        if key in kind.__struct_fields__ and other:
            return f"{key!r} belongs into {other!r}"
    return f"known here: {', '.join(known)}"


def _check(text: Text, lines: _Lines, stated: PolicyFile, breathe: Breathe) -> None:
    """Refuse what is well typed but can't be meant."""
    seen: set[str] = set()
    for index, rule in enumerate(stated.rules):
        breathe()
        where = f"rules[{index}]"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", rule.name):
            hint = "use letters, digits, '.', '_' and '-'"
            raise InvalidPolicy(_at(text, lines.find(f"{where}.name"), where), f"{rule.name!r} is no name", hint)
        if rule.name in seen:
            raise InvalidPolicy(
                _at(text, lines.find(f"{where}.name"), where), f"the name {rule.name!r} is taken", "rename it"
            )
        seen.add(rule.name)
        settings = settings_of(rule.set)
        if not settings:
            raise InvalidPolicy(_at(text, lines.find(f"{where}.set"), where), "sets nothing", "set a value, or drop the rule")
        if snapshot_of(rule.set):
            _check_pin(text, lines, where, rule.match)
        if settings.get("deadline") == 0:
            key = f"{where}.set.deadline"
            raise InvalidPolicy(_at(text, lines.find(key), key), "0 would fail every access", "write a larger one")


_PIN_FACTS = ("path", "site", "host")


def _check_pin(text: Text, lines: _Lines, where: str, match: Match) -> None:
    """Refuse a rule that would pin some names of a tree and leave others."""
    for name in Match.__struct_fields__:
        if name not in _PIN_FACTS and getattr(match, name) is not None:
            key = f"{where}.match.{name}"
            hint = f"match {', '.join(_PIN_FACTS)} alone: what a path is must not depend on who asks, or for what"
            raise InvalidPolicy(_at(text, lines.find(key), key), "can't decide whether a path is pinned", hint)
    for pattern in match.path or ():
        if pattern != "**" and not pattern.endswith("/**"):
            key = f"{where}.match.path"
            hint = f"write {pattern.rstrip('/*') or 'data'}/**"
            raise InvalidPolicy(_at(text, lines.find(key), key), "does not pin a whole tree", hint)


def _check_sites(text: Text, document: Document, sites: Collection[str]) -> None:
    """Refuse rules that name sites which the configuration does not know."""
    for index, rule in enumerate(document.rules):
        for key, names in (("match.site", rule.match.site or ()), ("set.sites", settings_of(rule.set).get("sites", ()))):
            for name in names:
                if name not in sites and not (key == "set.sites" and name in (ORIGIN, NEAREST)):
                    where = f"rules[{index}].{key}"
                    hint = f"known sites: {', '.join(sorted(sites)) or 'none'}"
                    line = _Lines(text.text).find(where)
                    raise InvalidPolicy(_at(text, line, where), f"names the unknown site {name!r}", hint)


def _line_of_syntax_error(error: tomllib.TOMLDecodeError, text: str) -> int:
    """Return the line, from 1. Python 3.14 has it as an attribute; before, the message alone says it."""
    line = getattr(error, "lineno", None)
    if isinstance(line, int):
        return line
    stated = re.search(r"at line (\d+)", str(error))
    return int(stated[1]) if stated else text.count("\n") + 1


class _Lines:
    """Finds the line of a key in a document's text."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._rules = [n for n, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)]

    def rule(self, index: int) -> int:
        """Return the line, from 1, where the rule begins; 0 where it was not found."""
        return self._rules[index] + 1 if index < len(self._rules) else 0

    def find(self, key: str) -> int:
        """Return the line, from 1, of a key path as "rules[2].set.prefetch", or of the nearest table around it; else 0."""
        within = re.match(r"rules\[(\d+)\]", key)
        if not within:
            return self._search(range(min([*self._rules, len(self._lines)])), key)
        index = int(within[1])
        if index >= len(self._rules):
            return 0
        start = self._rules[index]
        end = self._rules[index + 1] if index + 1 < len(self._rules) else len(self._lines)
        line = start + 1
        for part in re.findall(r"[^.\[\]]+", key[within.end() :]):
            if found := self._search(range(line - 1, end), part):
                line = found
        return line

    def _search(self, lines: range, name: str) -> int:
        """Return the first of `lines` that assigns `name` or opens its table, from 1; else 0."""
        assigns = re.compile(rf'(?:^|[\s{{,.])"?{re.escape(name)}"?\s*=|^\s*\[(?:[\w.-]+\.)?{re.escape(name)}\]')
        return next((n + 1 for n in lines if assigns.search(self._lines[n].partition("#")[0])), 0)
