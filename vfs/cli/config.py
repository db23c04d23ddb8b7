"""`foremount config check FILE`."""

from __future__ import annotations

import os

import click
import msgspec

from vfs import config as configuration
from vfs.cli import output
from vfs.policy.inforce import open_store, unheeded
from vfs.units import encode_unit, format_size


@click.group()
def config() -> None:
    """Check a configuration file."""


@config.command()
@click.argument("file")
@output.json_option
def check(file: str, as_json: bool) -> None:
    """Read FILE as `mount` would, and print what it says with all defaults filled in.

    Nothing is mounted and no site is asked.
    """
    loaded = configuration.load(file)
    policies = open_store(loaded, file).current
    notes = [f"{origin}, line {origin.line}: {sentence}" for origin, sentence in unheeded(policies.rules)]
    if as_json:
        document = msgspec.to_builtins(loaded, enc_hook=encode_unit)
        facts = {"version": policies.version, "notes": notes}
        output.print_json({"file": os.path.abspath(file), "valid": True, "config": document, "policies": facts})
        return
    click.echo(f"{file}: valid")
    documents = ", ".join(document.name for document in policies.rules.documents)
    click.echo("\n".join(output.columns([*_rows(loaded), ("policies", f"{documents}, version {policies.version}")])))
    for note in notes:
        click.echo(f"note: {note}")


def _rows(loaded: configuration.Config) -> list[tuple[str, str]]:
    rows = []
    for mount in loaded.mounts:
        kind = type(loaded.sites[mount.site]).__struct_config__.tag
        replicas = f", replicas at {', '.join(mount.replicas)}" if mount.replicas else ""
        rows.append(
            (f"/{configuration.mount_prefix(mount)}", f"{mount.site} ({kind}){replicas}{', writable' * mount.writable}")
        )
    rows.append(("cache", f"{loaded.cache.directory}, at most {format_size(loaded.cache.size)}"))
    return rows
