"""The agent's fetch service by itself: for benchmarks that need no mount."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from vfs import config
from vfs.clock import SystemClock
from vfs.extents.budget import Budget
from vfs.extents.fetch import Fetcher
from vfs.extents.limits import FetchLimits
from vfs.extents.store import Store
from vfs.model import SiteName
from vfs.sites.build import build_site


@contextlib.asynccontextmanager
async def fetching(
    loaded: config.Config, cache: Path | None, limits: FetchLimits | None = None
) -> AsyncIterator[tuple[Fetcher, dict[SiteName, Any]]]:
    """The agent's fetch service over all sites, with a cache in this directory; None: in one of its own in memory."""
    async with contextlib.AsyncExitStack() as stack:
        directory = cache or Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        store = stack.enter_context(contextlib.closing(Store.open(str(directory / "cache"), 256 << 20)))
        spill = stack.enter_context(contextlib.closing(Store.open(str(directory / "spill"), 64 << 20)))
        sites = {SiteName(name): build_site(SiteName(name), site) for name, site in loaded.sites.items()}
        for site in sites.values():
            stack.push_async_callback(site.close)
        fetcher = await stack.enter_async_context(
            Fetcher(store, spill, sites, memory=Budget(64 << 20), clock=SystemClock(), limits=limits or FetchLimits())
        )
        yield fetcher, sites
