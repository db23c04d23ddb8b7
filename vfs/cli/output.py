"""How commands print: facts on standard output, as text or JSON; complaints on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from vfs.errors import ForemountError, to_failure

AS_JSON = "vfs.cli.as_json"
"""Key in the click context: whether this call asked for JSON."""


def _remember(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[AS_JSON] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_remember, is_eager=True, help="Print one JSON document."
)  # fmt: skip


def print_json(value: Any) -> None:
    """Print a value of ours (structs, lists, dicts) as one indented JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_json_line(value: Any) -> None:
    """Print a value as one line: progress of a command that runs for long."""
    click.echo(msgspec.json.encode(value).decode())


def complain(error: ForemountError, *, as_json: bool) -> None:
    """Print an expected failure: for people on standard error, as JSON where facts would have been."""
    if as_json:
        print_json({"error": failure_fields(error)})
        return
    subject = f"{error.subject}: " if error.subject else ""
    click.echo(f"foremount: {subject}{error.reason}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def failure_fields(error: ForemountError) -> dict[str, str]:
    """Return the error as the admin API writes it: kind, subject, reason, hint."""
    failure = to_failure(error)
    return {"kind": failure.kind, "subject": failure.subject, "reason": failure.reason, "hint": failure.hint}


def columns(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return the rows as lines with aligned columns; the last one is left as it is. Pure."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    return [
        (indent + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])).rstrip()
        for row in rows
    ]


def print_table(rows: Sequence[tuple[str, ...]], nothing: str) -> None:
    """Print rows below the first one, which names the columns; a sentence where there are none."""
    click.echo("\n".join(columns(rows, indent="")) if len(rows) > 1 else nothing)
