"""`foremount policy`: check, show, compare and explain policy documents, from the files; reload, by the agent of a mount."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from vfs import config
from vfs.checkpoints.formats import FORMATS, format_of
from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.errors import InvalidPolicy
from vfs.policy.cases import Result, check_file
from vfs.policy.diff import Change, condition_text, diff
from vfs.policy.engine import Decision, Origin, Rule, RuleSet, decide, explain
from vfs.policy.explain import facts_text, verdicts_text
from vfs.policy.facts import Access, Facts, Match, conditions_of
from vfs.policy.inforce import defaults_of, unheeded
from vfs.policy.loader import ALWAYS, Text, compile_rules, load, parse, read, shipped_directory, shipped_names
from vfs.policy.values import DEFAULTS, VALUES, settings_of, value_text
from vfs.units import parse_size

RELOAD_S = 30.0
"""1,000 rules take 0.2 s; documents may lie on a slow disk."""
_policies = click.option(
    "--policy", "sources", multiple=True, metavar="SOURCE", help="Shipped document, file or directory; may be repeated."
)
_config = click.option(
    "--config", "config_path", metavar="FILE", help="Take the documents, and the names of sites, from foremount.toml."
)


@click.group()
def policy() -> None:
    """Check, show, compare and explain policy documents."""


@policy.command()
@click.argument("paths", nargs=-1)
@_config
@output.json_option
def check(paths: tuple[str, ...], config_path: str | None, as_json: bool) -> None:
    """Check documents and run the decision tables beside them.

    PATHS are documents, directories with a cases/ directory in them, decision tables, or names of shipped documents; without
    any, and without --config, all that is shipped is checked. Exit status 1 when something is wrong.
    """
    sources, base, sites = _from_config(paths, config_path)
    tables = [path for path in sources if _is_table(os.path.join(base, path))]
    documents = [path for path in sources if path not in tables]
    if not sources and config_path is None:
        documents = [f"shipped:{name}" for name in shipped_names()]
    errors, notes, read_count = _check_documents(documents, base, sites)
    results: list[Result] = []
    for table in [*(os.path.join(base, table) for table in tables), *_tables_of(documents, base)]:
        try:
            results += check_file(table)
        except InvalidPolicy as exc:
            errors.append(exc)
    wrong = [result for result in results if result.wrong]
    if as_json:
        _print_check_json(errors, notes, results, read_count)
    else:
        for error in errors:
            click.echo(f"error  {error}", err=True)
        for note in notes:
            click.echo(f"note   {note}")
        for result in wrong:
            click.echo(f"wrong  {result.file}: {result.case}: {'; '.join(result.wrong)}")
        click.echo(f"{read_count} documents, {len(results)} cases: {len(errors)} errors, {len(wrong)} wrong decisions")
    click.get_current_context().exit(1 if errors or wrong else 0)


@policy.command()
@_policies
@_config
@output.json_option
def show(sources: tuple[str, ...], config_path: str | None, as_json: bool) -> None:
    """Show all rules in the order in which they apply."""
    rules = _load(sources, config_path)
    if as_json:
        output.print_json({"rules": [_rule_fact(rule, origin) for rule, origin in _numbered(rules)]})
        return
    for document in rules.documents:
        click.echo(f"{document.name} ({document.source})" + (f": {document.about}" if document.about else ""))
        for rule in document.rules:
            click.echo(f"  {rule.name}: {_match_text(rule.match)}\n      {_settings_text(rule)}")


@policy.command("diff")
@click.argument("before")
@click.argument("after")
@output.json_option
def diff_(before: str, after: str, as_json: bool) -> None:
    """Show what the rules of AFTER do differently from those of BEFORE.

    Each is a document, a directory, or the name of a shipped document.
    """
    changes = diff(*_named_alike(load([before]), load([after])))
    if as_json:
        output.print_json({"changes": changes})
        return
    for change in changes:
        click.echo(str(change))
    if not changes:
        click.echo("no differences")


@policy.command("explain")
@click.argument("path")
@_policies
@_config
@click.option("--size", help="Size of the file: 4KiB, 2GB.")
@click.option("--uid", type=click.IntRange(0), help="User id of the process.")
@click.option("--gid", type=click.IntRange(0), help="Group id of the process.")
@click.option("--job", help="Name of its job.")
@click.option("--site", help="Name of the site that is asked.")
@click.option("--access", type=click.Choice([str(kind) for kind in Access]), help="Kind of access.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="Format of the file, if not by its name.")
@click.option("--world", type=click.IntRange(1), help="Ranks of the job.")
@click.option("--host", help="Name of the host.")
@click.option("--rules", "with_rules", is_flag=True, help="Say of every rule whether it matches, and if not, why.")
@output.json_option
def explain_(
    path: str,
    sources: tuple[str, ...],
    config_path: str | None,
    with_rules: bool,
    as_json: bool,
    **stated: Any,
) -> None:
    """Show the values that hold for PATH (below the mount point) and the rule that gave each.

    What is not stated is not known, but for the format, which follows from the name. `foremount explain` asks a mount.
    """
    rules = _load(sources, config_path)
    facts = _facts(path, **stated)
    decision = decide(rules, facts)
    if as_json:
        output.print_json(_decision_fact(rules, facts, decision))
        return
    width = max(map(len, VALUES))
    for name, origin in decision.origins.items():
        value = getattr(decision.values, name)
        click.echo(f"{name:<{width}}  {value_text(value):<22}  {_origin_text(origin)}")
    if with_rules:
        click.echo("\n" + ", ".join(f"{name} {text}" for name, text in facts_text(facts).items()))
        for rule, text in verdicts_text(rules, facts).items():
            click.echo(f"{rule}: {text}")


@policy.command()
@click.option("--mountpoint", help="Which mount; without it the one that is running.")
@click.option("--if-match", "expected", metavar="VERSION", help="Only if this version is in force still.")
@output.json_option
def reload(mountpoint: str | None, expected: str | None, as_json: bool) -> None:
    """Have a mount read its policy documents now, and say what changed.

    If they can't be used, the set before stays in force and the exit status is 1.
    """
    located, _ = locate.lake_paths((".",), mountpoint)
    agent = AdminClient(located.run_dir.admin_socket, RELOAD_S)
    done = agent.post("/v1/policies/reload", {}, {"If-Match": f'"{expected}"'} if expected else {})
    if as_json:
        output.print_json(done)
        return
    for change in done.get("changes", []):
        click.echo(str(msgspec.convert(change, Change)))
    click.echo(f"version {done.get('after')} is in force" + (", as before" * (done.get("before") == done.get("after"))))


def _from_config(sources: tuple[str, ...], config_path: str | None) -> tuple[list[str], str, list[str] | None]:
    """Return the sources, the directory that relative ones start from, and the names of sites where they are known."""
    if config_path is None:
        return list(sources), "", None
    found = config.load(config_path)
    if sources:
        return list(sources), "", list(found.sites)
    return found.policies, os.path.dirname(config_path), list(found.sites)


def _load(sources: tuple[str, ...], config_path: str | None) -> RuleSet:
    names, base, sites = _from_config(sources, config_path)
    defaults = DEFAULTS if config_path is None else defaults_of(config.load(config_path).limits)
    return load(names, base=base, sites=sites, defaults=defaults)


def _named_alike(before: RuleSet, after: RuleSet) -> tuple[RuleSet, RuleSet]:
    """Return the sets; two single documents are compared rule by rule, however their files are called."""
    own = [[document for document in rules.documents if document.name != ALWAYS] for rules in (before, after)]
    if [len(documents) for documents in own] != [1, 1]:
        return before, after
    name = own[1][0].name
    documents = [msgspec.structs.replace(one, name=name) if one is own[0][0] else one for one in before.documents]
    return RuleSet(documents), after


def _is_table(path: str) -> bool:
    return path.endswith(".toml") and os.path.basename(os.path.dirname(os.path.abspath(path))) == "cases"


def _check_documents(
    documents: Iterable[str], base: str, sites: list[str] | None
) -> tuple[list[InvalidPolicy], list[str], int]:
    """Return every document's first error or what is wrong with them together, what has no effect yet, and their number."""
    errors: list[InvalidPolicy] = []
    notes: list[str] = []
    texts: dict[str, Text] = {}
    for source in [f"shipped:{ALWAYS}", *documents]:
        try:
            texts |= {text.source: text for text in read([source], base)}
        except InvalidPolicy as exc:
            errors.append(exc)
    for text in texts.values():
        try:
            parse(text)
        except InvalidPolicy as exc:
            errors.append(exc)
    if not errors:
        try:
            found = unheeded(compile_rules(list(texts.values()), sites))
            notes = [f"{_origin_text(origin)}: {sentence}" for origin, sentence in found]
        except InvalidPolicy as exc:
            errors.append(exc)
    return errors, notes, len(texts)


def _tables_of(documents: list[str], base: str) -> list[str]:
    """Return the decision tables in the cases/ directories of directories, and those of shipped documents."""
    found: list[str] = []
    for source in documents:
        directory = os.path.join(base, source)
        if os.path.isdir(directory):
            found += sorted(str(table) for table in Path(directory, "cases").glob("*.toml"))
        elif (name := source.removeprefix("shipped:")) in shipped_names():
            table = shipped_directory() / "cases" / f"{name}.toml"
            found += [str(table)] if table.is_file() else []
    return found


def _facts(path: str, *, size: str | None, file_format: str | None, access: str | None, **others: Any) -> Facts:
    try:
        size_bytes = parse_size(size) if size is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--size") from exc
    kind = Access(access) if access else None
    return Facts(path.strip("/"), size=size_bytes, access=kind, format=file_format or format_of(path), **others)


def _numbered(rules: RuleSet) -> Iterable[tuple[Rule, Origin]]:
    return zip(rules.rules, rules.origins, strict=True)


def _origin_text(origin: Origin) -> str:
    line = f", line {origin.line}" if origin.line else ""
    return f"{origin}{line}"


def _match_text(match: Match) -> str:
    return ", ".join(f"{key} {condition_text(value)}" for key, value in conditions_of(match).items()) or "everything"


def _settings_text(rule: Rule) -> str:
    return ", ".join(f"{name} = {value_text(value)}" for name, value in settings_of(rule.set).items())


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: sizes in bytes, durations in seconds, what has a text form as text."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float):
        return None if math.isinf(value) else float(value)
    return int(value) if isinstance(value, int) else str(value)


def _origin_fact(origin: Origin) -> dict[str, Any]:
    return {"document": origin.document, "index": origin.index, "rule": origin.rule, "line": origin.line}


def _rule_fact(rule: Rule, origin: Origin) -> dict[str, Any]:
    match = {key: condition_text(value) for key, value in conditions_of(rule.match).items()}
    settings = {name: _plain(value) for name, value in settings_of(rule.set).items()}
    return _origin_fact(origin) | {"why": rule.why, "match": match, "set": settings}


def _decision_fact(rules: RuleSet, facts: Facts, decision: Decision) -> dict[str, Any]:
    values = {
        name: {
            "value": _plain(getattr(decision.values, name)),
            "from": _origin_fact(origin),
        }
        for name, origin in decision.origins.items()
    }
    verdicts = [
        {"rule": str(verdict.origin), "mismatch": verdict.mismatch, "wins": list(verdict.wins)}
        for verdict in explain(rules, facts)
    ]
    return {"path": facts.path, "facts": facts_text(facts), "values": values, "rules": verdicts}


def _print_check_json(errors: list[InvalidPolicy], notes: list[str], results: list[Result], documents: int) -> None:
    output.print_json(
        {
            "documents": documents,
            "errors": [output.failure_fields(error) for error in errors],
            "notes": notes,
            "cases": results,
        }
    )
