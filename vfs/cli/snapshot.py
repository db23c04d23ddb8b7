"""`foremount snapshot`: what a prefix holds, and in which versions, kept for rules to pin it to."""

from __future__ import annotations

import sys
from typing import Any

import click

from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.cli.paths import SILENCE_S
from vfs.units import format_size

_mountpoint = click.option("--mountpoint", help="Which mount; without it the one that PATH lies in, or that is running.")


@click.group()
def snapshot() -> None:
    """Take, list and drop snapshots that rules pin prefixes to (`staleness = "pinned=NAME"`)."""


@snapshot.command()
@click.argument("name")
@click.argument("path")
@_mountpoint
@output.json_option
def create(name: str, path: str, mountpoint: str | None, as_json: bool) -> None:
    """List all below PATH at its origins, with sizes and versions, as the snapshot NAME.

    No bytes are copied, and nothing changes until a rule names it. Take it when nobody publishes below PATH. `foremount fetch
    PATH` with the rule in force makes its bytes local, so that they outlive their origin's.
    """
    located, (prefix,) = locate.lake_paths((path,), mountpoint)
    agent = AdminClient(located.run_dir.admin_socket, SILENCE_S)
    done: dict[str, Any] = {}
    for record in agent.stream("/v1/snapshots/take", {"name": name, "prefix": prefix}):
        if record.get("done"):
            done = record
        elif not as_json and sys.stderr.isatty():
            click.echo(f"\r{record['directories']} directories, {record['files']} files", nl=False, err=True)
    if as_json:
        output.print_json(done)
        return
    click.echo(f"{name}: {done['files']} files, {format_size(done['bytes'])} of {done['prefix']}")
    click.echo(f"the rule that pins it:\n\n{rule_text(name, prefix)}")


@snapshot.command("list")
@_mountpoint
@output.json_option
def list_(mountpoint: str | None, as_json: bool) -> None:
    """List the snapshots of a mount, and those that rules name although they are not here."""
    located, _ = locate.lake_paths((".",), mountpoint)
    found = AdminClient(located.run_dir.admin_socket, SILENCE_S).get("/v1/snapshots")["snapshots"]
    if as_json:
        output.print_json({"snapshots": found})
        return
    rows = [("NAME", "STATE", "TAKEN", "FILES", "SIZE", "PREFIX", "PINNED BY")]
    for each in found:
        size = format_size(each["bytes"])
        rows.append(
            (
                each["name"],
                each["state"],
                each["taken"] or "-",
                str(each["files"]),
                size,
                each["prefix"],
                each["pinned_by"] or "-",
            )
        )
    output.print_table(rows, "no snapshots")


@snapshot.command()
@click.argument("name")
@_mountpoint
@output.json_option
def drop(name: str, mountpoint: str | None, as_json: bool) -> None:
    """Forget the snapshot NAME. Refused while a rule in force names it."""
    located, _ = locate.lake_paths((".",), mountpoint)
    dropped = AdminClient(located.run_dir.admin_socket, SILENCE_S).post("/v1/snapshots/drop", {"name": name})
    if as_json:
        output.print_json(dropped)
    else:
        click.echo(f"dropped {name}: {dropped['files']} files of {dropped['prefix']}")


def rule_text(name: str, prefix: str) -> str:
    """Return the rule that pins a prefix to its snapshot, as a document states it. Pure."""
    path = f"{prefix}/**" if prefix else "**"
    return f'[[rules]]\nname = "pin-{name}"\nmatch = {{ path = "{path}" }}\nset = {{ staleness = "pinned={name}" }}'
