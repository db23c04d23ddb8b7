"""The worker's line to a real agent process, and to peers that misbehave."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.servers.wan_origin import Fault, WanOrigin
from tests.worker import Agent, agent
from vfs import wire
from vfs.errors import DeadlineExceeded, NotFound
from vfs.filesystem.agent import AgentClient
from vfs.frames import FrameBuffer
from vfs.model import LakePath

CONFIG = """
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
"""


@pytest.fixture
def running(tmp_path: Path, wan_origin: WanOrigin, wan_root: Path) -> Iterator[Agent]:
    (wan_root / "f").write_bytes(b"content")
    with agent(tmp_path / "agent", CONFIG.replace("URL", f"{wan_origin.url}/{wan_root.name}")) as started:
        yield started


def client_of(path: str, deadline_s: float = 20.0) -> AgentClient:
    return AgentClient(path, lambda: wire.Hello(os.getpid(), passthrough=False, why_not="test"), deadline_s=deadline_s)


def run(client: AgentClient, body: Callable[[trio.Nursery], object]) -> None:
    """Run an async body beside the client's own task."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await body(nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_calls_are_answered_in_any_number_at_a_time(running: Agent) -> None:
    client = client_of(str(running.base / "agent.sock"))
    sizes = []

    async def body(nursery: trio.Nursery) -> None:
        async def ask() -> None:
            found = await client.call(wire.Stat(LakePath("f")), wire.Found, "f")
            assert found.entry is not None
            sizes.append(found.entry.version.size)

        async with trio.open_nursery() as inner:
            for _ in range(50):
                inner.start_soon(ask)

    run(client, body)
    assert sizes == [7] * 50
    assert client.connections == 1


def test_failure_of_the_agent_is_the_callers(running: Agent) -> None:
    client = client_of(str(running.base / "agent.sock"))

    async def body(nursery: trio.Nursery) -> None:
        with pytest.raises(NotFound):
            await client.call(wire.List(LakePath("nothing"), 0, 0), wire.Listed, "nothing")

    run(client, body)


def test_call_without_any_agent_ends_at_its_deadline(tmp_path: Path) -> None:
    client = client_of(str(tmp_path / "none.sock"), deadline_s=0.2)

    async def body(nursery: trio.Nursery) -> None:
        with pytest.raises(DeadlineExceeded, match="agent is not running"):
            await client.call(wire.Stat(LakePath("f")), wire.Found, "f")
        assert not client.connected

    run(client, body)


def test_call_that_a_killed_agent_did_not_answer_is_answered_by_the_next_one(running: Agent, wan_origin: WanOrigin) -> None:
    client = client_of(str(running.base / "agent.sock"))
    wan_origin.inject(Fault(kind="stall", path="*/f"))
    found = []

    async def body(nursery: trio.Nursery) -> None:
        async def ask() -> None:
            found.append(await client.call(wire.Stat(LakePath("f")), wire.Found, "f"))

        async with trio.open_nursery() as inner:
            inner.start_soon(ask)
            while not client.connected:
                await trio.sleep(0.01)
            while not wan_origin.stats()["requests"]:
                await trio.sleep(0.01)
            running.kill()
            while client.connected:
                await trio.sleep(0.01)
            wan_origin.heal()
            await trio.to_thread.run_sync(running.start)

    run(client, body)
    assert found[0].entry.version.size == 7
    assert client.connections == 2


def test_call_made_while_no_agent_lives_waits_for_the_next_one(running: Agent) -> None:
    client = client_of(str(running.base / "agent.sock"))
    running.kill()
    found = []

    async def body(nursery: trio.Nursery) -> None:
        async def ask() -> None:
            found.append(await client.call(wire.Stat(LakePath("f")), wire.Found, "f"))

        async with trio.open_nursery() as inner:
            inner.start_soon(ask)
            await trio.to_thread.run_sync(running.start)

    run(client, body)
    assert found[0].entry.version.size == 7


class Peer:
    """A socket that answers each connection with fixed bytes, then closes it with what it received unread."""

    def __init__(self, path: str, says: list[bytes]) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(path)
        self.listening.listen()
        self._says = says
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for said in self._says:
            connection, _ = self.listening.accept()
            with connection:
                connection.recv(1)  # and leave the rest: closing then resets the connection
                connection.sendall(said)
        connection, _ = self.listening.accept()
        frames = FrameBuffer()
        with connection:
            while received := connection.recv(4096):
                for body in frames.feed(received):
                    request = wire.DIALECT.decode_request(body)
                    if request.id:
                        connection.sendall(wire.DIALECT.response(request.id, wire.Found(None)))


@pytest.mark.parametrize(
    "said",
    [b"", b"\xff\xff\xff\xff", b"\1\0\0\0\xc1", b"\5\0", wire.DIALECT.response(999, wire.Welcome(1))],
    ids=["nothing", "a frame too large", "no message", "half a frame", "an answer to nobody"],
)
def test_peer_that_breaks_off_or_talks_nonsense_is_left_and_the_call_repeated(tmp_path: Path, said: bytes) -> None:
    path = str(tmp_path / "peer.sock")
    peer = Peer(path, [said] * 3)
    client = client_of(path)

    async def body(nursery: trio.Nursery) -> None:
        assert await client.call(wire.Stat(LakePath("f")), wire.Found, "f") == wire.Found(None)
        assert client.connections == 4

    run(client, body)
    peer.listening.close()


def test_given_up_call_is_not_repeated(tmp_path: Path) -> None:
    path = str(tmp_path / "peer.sock")
    client = client_of(path)

    async def body(nursery: trio.Nursery) -> None:
        with pytest.raises(DeadlineExceeded):
            await client.call(wire.Stat(LakePath("old")), wire.Found, "old", 0.1)
        peer = Peer(path, [])
        assert await client.call(wire.Stat(LakePath("new")), wire.Found, "new") == wire.Found(None)
        assert client._waiting == {}
        peer.listening.close()

    run(client, body)


def test_messages_without_an_answer_are_lost_without_an_agent(tmp_path: Path) -> None:
    client = client_of(str(tmp_path / "none.sock"))

    async def body(nursery: trio.Nursery) -> None:
        for _ in range(20_000):
            client.tell_nowait(wire.Counters({}))

    run(client, body)
