"""What a copy bears at each site, as the controller reckons with it: `vfs/agent/foresight/bearings.py`."""

from __future__ import annotations

from typing import Any

import pytest

from vfs.agent.foresight.bearings import ASK_S, Bearings
from vfs.clock import FakeClock
from vfs.errors import Unavailable
from vfs.foresight.placing import SiteFacts
from vfs.foresight.stores.memory import Memory
from vfs.model import SiteName, SitePath

NODE, DISK = SiteName("node"), SiteName("disk")
FACTS = {NODE: SiteFacts(root=SitePath("copies"), readers=156), DISK: SiteFacts(root=SitePath("copies"), readers=20)}


class Server:
    """A site that says what it has measured, or can't be asked."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked = 0

    async def readers_borne(self) -> str:
        self.asked += 1
        if self.says == "down":
            raise Unavailable("node", "does not answer")
        return self.says


@pytest.mark.parametrize(("says", "readers"), [("", 156), ("12", 12), (">=12", 156), (">=200", 200), ("rubbish", 156)])
async def test_what_was_measured_is_reckoned_with_and_else_what_was_stated(says: str, readers: int) -> None:
    clock = FakeClock()
    sites: Any = {NODE: Server(says), DISK: object()}
    found = await Bearings(Memory(clock), sites, FACTS, clock).facts()
    assert (found[NODE].readers, found[DISK].readers) == (readers, 20)


async def test_what_was_measured_holds_after_a_restart_and_while_the_server_is_down() -> None:
    clock, server = FakeClock(), Server("12")
    store, sites = Memory(clock), dict[SiteName, Any]({NODE: server})
    first = Bearings(store, sites, FACTS, clock)
    await first.facts()
    server.says = "down"
    assert (await Bearings(store, sites, FACTS, clock).facts())[NODE].readers == 12
    clock.advance(ASK_S)
    assert (await first.facts())[NODE].readers == 12
    assert server.asked == 3


async def test_a_server_is_not_asked_for_each_hint() -> None:
    clock, server = FakeClock(), Server("12")
    found = Bearings(Memory(clock), dict[SiteName, Any]({NODE: server}), FACTS, clock)
    for _ in range(3):
        await found.facts()
    assert server.asked == 1
