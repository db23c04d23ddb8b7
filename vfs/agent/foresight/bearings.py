"""How many readers a copy bears at each site: as its server has measured, else as `foremount.toml` states.

What was measured is kept in the controller's store, so that it holds when a server can't be asked, and after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from vfs.clock import Clock
from vfs.errors import ForemountError
from vfs.foresight import bearing, keys
from vfs.foresight.bearing import Bearing
from vfs.foresight.placing import SiteFacts
from vfs.foresight.stores.protocol import Put, Store
from vfs.foresight.stores.records import records_below
from vfs.model import SiteName
from vfs.sites.protocol import Site
from vfs.sites.writing import Measures

log = logging.getLogger(__name__)
ASK_S = 30.0
PATIENCE_S = 2.0


class Bearings:
    """Asks the servers, at most every `ASK_S`.

    Attributes:
        _known: what was measured.
    """

    def __init__(
        self, store: Store, sites: Mapping[SiteName, Site], facts: Mapping[SiteName, SiteFacts], clock: Clock
    ) -> None:
        self._store = store
        self._facts = facts
        self._clock = clock
        self._asked_s: float | None = None
        self._asking = asyncio.Lock()
        self._known: dict[SiteName, Bearing] = {}
        self._servers: dict[SiteName, Measures] = {}
        for name, each in facts.items():
            site = sites.get(name)
            if each.root and isinstance(site, Measures):
                self._servers[name] = site

    async def facts(self) -> dict[SiteName, SiteFacts]:
        """Return the sites, with what their copies bear."""
        async with self._asking:
            now_s = self._clock.monotonic_s()
            if self._asked_s is None or now_s - self._asked_s >= ASK_S:
                await self._ask_all()
                self._asked_s = now_s
        return {
            name: msgspec.structs.replace(each, readers=self._known[name].beside(each.readers))
            if name in self._known
            else each
            for name, each in self._facts.items()
        }

    async def _ask_all(self) -> None:
        if self._asked_s is None:
            kept = await records_below(self._store, keys.BEARS, Bearing)
            self._known.update((SiteName(name), each) for name, each in kept.items())
        await asyncio.gather(*map(self._ask, self._servers))

    async def _ask(self, name: SiteName) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = bearing.read(await self._servers[name].readers_borne())
        except (ForemountError, TimeoutError) as exc:
            log.info("%s does not say what a copy there bears: %s", name, exc)
            return
        if found is not None and found != self._known.get(name):
            log.info("a copy at %s bears %s readers", name, bearing.written(found))
            self._known[name] = found
            await self._store.write([Put(keys.BEARS + name, keys.encode(found))])
