"""The controller's main: `python -m vfs.foresight.controller`, started by `foremount controller`.

Needs no mount: it reads and writes the sites of its configuration. Of several with one etcd, one leads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys

from vfs import config
from vfs.agent.foresight.rooms import controlling
from vfs.clock import SystemClock
from vfs.errors import ForemountError, InvalidConfig, InvalidPolicy
from vfs.extents.budget import Budget
from vfs.extents.directory import spill_of_process, sweep_spills
from vfs.extents.fetch import Fetcher
from vfs.extents.limits import FetchLimits
from vfs.extents.store import Store
from vfs.keeper.secrecy import forbid_core_dumps
from vfs.model import SiteName
from vfs.namespace.mounts import build_mount_table
from vfs.policy.inforce import open_store
from vfs.policy.store import PolicyStore
from vfs.policy.watch import watch
from vfs.sites.build import open_sites

log = logging.getLogger("vfs.foresight.controller")
_STORE_BYTES = 64 << 20


def main() -> int:
    """Serve until SIGTERM; return the exit status."""
    parser = argparse.ArgumentParser("vfs.foresight.controller")
    parser.add_argument("--config", required=True)
    parser.add_argument("--socket", default="")
    parser.add_argument("--name", default=f"{socket.gethostname()}:{os.getpid()}")
    args = parser.parse_args()
    forbid_core_dumps()
    logging.basicConfig(level=os.environ.get("FOREMOUNT_LOG", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    try:
        loaded = config.load(args.config)
        if loaded.foresight is None:
            raise InvalidConfig(args.config, "has no [foresight] table", "docs/foresight.md shows one")
        documents = open_store(loaded, args.config)
        asyncio.run(_serve(loaded, documents, name=args.name, socket_path=args.socket))
    except ForemountError as exc:
        log.error("controller ends: %s", exc)  # noqa: TRY400  # an expected failure: its sentence says it all
        return 1
    return 0


async def _follow(documents: PolicyStore) -> None:
    """Put changed documents in force until it is cancelled."""
    if not documents.directories():
        return
    async for outcome in watch(documents, in_thread=asyncio.to_thread):
        if isinstance(outcome, InvalidPolicy):
            log.warning("policy %s stays in force: %s", documents.current.version, outcome)


async def _serve(loaded: config.Config, documents: PolicyStore, *, name: str, socket_path: str) -> None:
    clock, mounts, ended = SystemClock(), build_mount_table(loaded), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        sites = open_sites(loaded.sites, stack)
        # what is copied goes past the fetcher's stores: they only have to be there
        sweep_spills("controller")
        store = Store.open(spill_of_process("controller"), _STORE_BYTES)
        stack.callback(store.close_and_remove)
        local = frozenset(SiteName(each) for each, site in loaded.sites.items() if isinstance(site, config.LocalSite))
        memory = Budget(loaded.limits.memory)
        fetcher = await stack.enter_async_context(
            Fetcher(store, store, sites, local=local, memory=memory, clock=clock, limits=FetchLimits())
        )
        following = asyncio.ensure_future(_follow(documents))
        stack.callback(following.cancel)
        opening = asyncio.ensure_future(
            stack.enter_async_context(
                controlling(loaded, mounts, sites, fetcher, clock, documents, name=name, socket_path=socket_path, wait=True)
            )
        )
        stopping = asyncio.ensure_future(ended.wait())
        await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            await stopping
        else:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
