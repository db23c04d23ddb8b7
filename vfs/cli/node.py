"""`foremount node`: transforms samples beside a site, in the foreground until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import click

from vfs import config as configuration
from vfs.errors import InvalidConfig
from vfs.keeper.secrecy import forbid_core_dumps
from vfs.logs import Damped


@click.command()
@click.option("--config", "config", required=True, help="Configuration with sites, mounts and a [node] table.")
def node(config: str) -> None:
    """Transform samples next to the data, from the schedules that jobs publish.

    Says its address on standard output once it answers, and logs to standard error.
    """
    loaded = configuration.load(config)
    if not loaded.node.address:
        raise InvalidConfig(f"{config}: node.address", "is missing", 'add [node] with address = "host:port"')
    forbid_core_dumps()
    handler = logging.StreamHandler()
    handler.addFilter(Damped())
    level = os.environ.get("FOREMOUNT_LOG", "INFO")
    logging.basicConfig(level=level, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(loaded))


async def _serve(loaded: configuration.Config) -> None:
    from vfs.samples.node.service import serve

    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await serve(loaded, lambda address: click.echo(f"serving on {address}"), ended)
