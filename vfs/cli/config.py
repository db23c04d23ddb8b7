"""`foremount config check FILE`."""

from __future__ import annotations

import os

import click
import msgspec

from vfs import config as configuration
from vfs.cli import output
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
    if as_json:
        document = msgspec.to_builtins(loaded, enc_hook=encode_unit)
        output.print_json({"file": os.path.abspath(file), "valid": True, "config": document})
        return
    click.echo(f"{file}: valid")
    click.echo("\n".join(_summary(loaded)))


def _summary(loaded: configuration.Config) -> list[str]:
    rows = []
    for mount in loaded.mounts:
        kind = type(loaded.sites[mount.site]).__struct_config__.tag
        replicas = f", replicas at {', '.join(mount.replicas)}" if mount.replicas else ""
        rows.append(
            (f"/{configuration.mount_prefix(mount)}", f"{mount.site} ({kind}){replicas}{', writable' * mount.writable}")
        )
    rows.append(("cache", f"{loaded.cache.directory}, at most {format_size(loaded.cache.size)}"))
    return output.columns(rows)
