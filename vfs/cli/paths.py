"""`foremount explain`, `fetch`, `evict` and `verify`: questions and orders about paths, put to the agent.

PATH is a path inside a mount or a lake path; it is told apart by its text alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from vfs import processes
from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.errors import NotFound, failure_from
from vfs.units import format_size

QUESTION_S = 30.0
"""Longer than it takes the agent to ask an origin over a WAN; `limits.origin_deadline` cuts the asking itself."""
SILENCE_S = 120.0
"""Between two lines of progress."""

_mountpoint_option = click.option("--mountpoint", help="Which mount lake paths belong to.")


@click.command()
@click.argument("path")
@_mountpoint_option
@click.option(
    "--pid", type=click.IntRange(1), help="As this process gets it: its uid, gid, job and ranks, if we may see them."
)
@click.option("--uid", type=click.IntRange(0), help="User id of the process.")
@click.option("--gid", type=click.IntRange(0), help="Group id of the process.")
@click.option("--job", help="Name of its job, as `foremount top` has it.")
@click.option("--world", type=click.IntRange(1), help="Ranks of the job.")
@click.option("--rules", is_flag=True, help="Say of every rule whether it matches, and if not, why.")
@output.json_option
def explain(path: str, mountpoint: str | None, pid: int | None, rules: bool, as_json: bool, **stated: Any) -> None:
    """Say which site, replica, version, cache state and policy rule serve PATH, and why.

    Rules that match by uid, gid, job or world need to be told whose question it is: a process's, or that of one like this.
    """
    located, (lake_path,) = locate.lake_paths((path,), mountpoint)
    caller = _caller(pid) | {name: value for name, value in stated.items() if value is not None}
    query = {name: str(value) for name, value in caller.items()} | ({"rules": "true"} if rules else {})
    facts = AdminClient(located.run_dir.admin_socket, QUESTION_S).get("/v1/explain", path=lake_path, **query)
    if as_json:
        output.print_json(facts)
    else:
        values = facts.pop("values", {})
        click.echo("\n".join([f"/{lake_path}", *_tree(facts, 1), *_policy_lines(values)]))


def _caller(pid: int | None) -> dict[str, Any]:
    if pid is None:
        return {}
    found = processes.look(pid)
    if found is None:
        raise NotFound(f"process {pid}", "is not running")
    return {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}


@click.command()
@click.argument("paths", nargs=-1, required=True)
@_mountpoint_option
@output.json_option
def fetch(paths: tuple[str, ...], mountpoint: str | None, as_json: bool) -> None:
    """Make PATHS local: files, or whole trees. From then on they are read at the speed of the local disk."""
    _stream("/v1/fetch", paths, mountpoint, as_json=as_json, verb="fetched")


@click.command()
@click.argument("paths", nargs=-1, required=True)
@_mountpoint_option
@output.json_option
def evict(paths: tuple[str, ...], mountpoint: str | None, as_json: bool) -> None:
    """Drop the local copies of PATHS. Origins and open files are not touched."""
    located, lake_paths = locate.lake_paths(paths, mountpoint)
    dropped = AdminClient(located.run_dir.admin_socket, SILENCE_S).post("/v1/evict", {"paths": lake_paths})
    if as_json:
        output.print_json(dropped)
    else:
        click.echo(f"evicted {dropped.get('objects', 0)} objects, {format_size(dropped.get('bytes', 0))}")


@click.command()
@click.argument("paths", nargs=-1)
@_mountpoint_option
@output.json_option
def verify(paths: tuple[str, ...], mountpoint: str | None, as_json: bool) -> None:
    """Read what the cache holds of PATHS, or all of it, against its digests. Broken blocks are dropped and fetched anew."""
    _stream("/v1/verify", paths or (".",), mountpoint, as_json=as_json, verb="verified")


def _stream(resource: str, paths: tuple[str, ...], mountpoint: str | None, *, as_json: bool, verb: str) -> None:
    """Put the order, show its progress, and exit with 1 if any path failed."""
    located, lake_paths = locate.lake_paths(paths, mountpoint)
    records = AdminClient(located.run_dir.admin_socket, SILENCE_S).stream(resource, {"paths": lake_paths})
    show = _as_json_lines if as_json else _as_bars if sys.stderr.isatty() else _as_lines
    last: dict[str, Any] = {}
    final: dict[str, Any] = {}
    for record in show(records):
        if record.get("done"):
            final = record
        else:
            last = record
    failed = final.get("failed", [])
    if not as_json:
        _conclude(last, final, failed, verb)
    if failed:
        click.get_current_context().exit(1)


def _as_json_lines(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        output.print_json_line(record)
        yield record


def _as_lines(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Print one line for each path and state, not for each block."""
    seen: set[tuple[str, str]] = set()
    for record in records:
        key = (str(record.get("path", "")), str(record.get("state", "")))
        if not record.get("done") and key not in seen:
            seen.add(key)
            click.echo(f"{key[1] or 'working'}: /{key[0]} ({_amount(record)})")
        yield record


def _as_bars(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*parts, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        for record in records:
            if not record.get("done"):
                what = f"/{record.get('path', '')} {record.get('files_done', 0)}/{record.get('files_total', '?')}"
                progress.update(
                    task, description=what, completed=record.get("bytes_done", 0), total=record.get("bytes_total")
                )  # fmt: skip
            yield record


def _conclude(last: dict[str, Any], final: dict[str, Any], failed: list[dict[str, Any]], verb: str) -> None:
    broken = final.get("broken_blocks", last.get("broken_blocks"))
    remark = "" if broken is None else f", {broken} broken blocks dropped"
    click.echo(f"{verb} {_amount({**last, **final})}{remark}")
    for each in failed:
        error = failure_from(each.get("error", {}))
        click.echo(f"failed: /{each.get('path', '')}: {error.reason}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)


def _amount(record: dict[str, Any]) -> str:
    files, size = record.get("files_done", 0), format_size(record.get("bytes_done", 0))
    return f"{files} of {record.get('files_total', '?')} files, {size} of {format_size(record.get('bytes_total') or 0)}"


def _policy_lines(values: dict[str, Any]) -> list[str]:
    """Return each policy value, and the rule that gave it, as lines. Pure."""
    rows = []
    for name, fact in values.items():
        line = f", line {fact['line']}" if fact.get("line") else ""
        rows.append((name, str(fact.get("value")), f"{fact.get('from')}{line}"))
    return ["  values:", *output.columns(rows, "    ")] if rows else []


def _tree(value: Any, depth: int) -> list[str]:
    """Return nested facts as indented lines. Pure."""
    indent = "  " * depth
    if isinstance(value, list):
        return [line for item in value for line in (_tree(item, depth) if isinstance(item, dict) else [f"{indent}- {item}"])]
    lines = []
    for key, inner in value.items():
        if isinstance(inner, (dict, list)) and inner:
            lines += [f"{indent}{key}:", *_tree(inner, depth + 1)]
        else:
            lines.append(f"{indent}{key}: {inner if inner not in (None, [], {}, '') else '-'}")
    return lines
