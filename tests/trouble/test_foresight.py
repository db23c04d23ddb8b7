"""Controllers as processes: they share an etcd or a directory, die by SIGKILL, and what they were told is done once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import wait_until
from tests.private import private
from tests.servers.etcd import EtcdServer
from tests.servers.lifecycle import end, free_port, running
from tests.servers.skewed import environ
from tests.servers.wan_origin import Fault, WanOrigin
from tests.stated import stated
from vfs.checkpoints.manifest import ManifestFile
from vfs.errors import Denied, ForemountError
from vfs.foresight.model import Committed, FileClosed
from vfs.foresight.predictor import TTL_S
from vfs.model import LakePath, SitePath, Version
from vfs.training import Training

CONFIG = """
[sites.origin]
{origin}
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
[[mounts]]
prefix = "/"
site = "origin"
[foresight]
store = "{store}"
address = "127.0.0.1:{port}"
tokens = "{base}/tokens"
[cache]
directory = "{base}/cache-{port}"
"""
SECRET = "trainer 0123456789abcdef0123\n"


class Controllers:
    """Controllers that share a store, and the line of a job to all of them."""

    def __init__(self, base: Path, store: str, origin: str = "") -> None:
        self.base = base
        self.origin = origin or f'kind = "local"\npath = "{base}/origin"'
        self.store = store
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: list[int] = []
        for name in ("origin", "eval"):
            (base / name).mkdir()
        private(base / "tokens", SECRET)
        self._stack = contextlib.ExitStack()

    def start(self, name: str, ahead_s: int = 0) -> None:
        """Start a controller whose clock is ahead by so much."""
        port = free_port()
        self.ports.append(port)
        config = self.base / f"{name}.toml"
        config.write_text(CONFIG.format(base=self.base, store=self.store, port=port, origin=self.origin))
        argv = [sys.executable, "-m", "vfs.foresight.controller", "--config", str(config), "--name", name]
        env = environ(self.base / f"clock-{name}", ahead_s) if ahead_s else None
        self.processes[name] = self._stack.enter_context(running(argv, self.base / f"{name}.log", env=env))

    def training(self, tokens: str = "") -> Training:
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        return Training("run7", urls, tokens=tokens or str(self.base / "tokens"))

    def state(self) -> dict[str, Any]:
        """Return what the first controller that answers knows; nothing while none does."""
        try:
            return self.training().ask("/v1/state")
        except ForemountError:
            return {"leader": "", "replicas": [], "hints": []}

    def leader(self, other_than: str = "") -> str:
        """Wait until one leads, and return its name."""

        def leads() -> str:
            leader: str = self.state()["leader"]
            return leader if leader != other_than else ""

        found: str = wait_until(leads, "a leader")
        return found

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def write_checkpoint(self, step: int, count: int) -> tuple[ManifestFile, ...]:
        """Write files at the origin, as a trainer on a shared file system does, and return what they are."""
        directory = self.base / "origin" / f"ckpt/run7/step_{step}"
        directory.mkdir(parents=True)
        found = []
        for index in range(count):
            path = directory / f"{index}.bin"
            path.write_bytes(os.urandom(100_000))
            stat = path.stat()
            etag = f"{stat.st_dev:x}-{stat.st_ino:x}"
            version = Version(stat.st_size, stat.st_mtime_ns, etag)
            at = SitePath(f"ckpt/run7/step_{step}/{index}.bin")
            found.append(ManifestFile(f"{index}.bin", stat.st_size, "", at, version))
        return tuple(found)

    def close(self) -> None:
        for process in self.processes.values():
            end(process)
        self._stack.close()


@pytest.fixture(params=["etcd", "directory"])
def controllers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Controllers]:
    if request.param == "etcd":
        server: EtcdServer = request.getfixturevalue("etcd")
        store = server.url
        _forget_all(server)
    else:
        store = str(tmp_path / "store")
    found = Controllers(tmp_path, store)
    yield found
    found.close()


def _forget_all(server: EtcdServer) -> None:
    """Controllers use the keys below foremount/: another test of this run may have left some."""
    import urllib.request

    body = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
    urllib.request.urlopen(f"{server.endpoint}/v3/kv/deleterange", data=body, timeout=5).read()


def published(state: dict[str, Any]) -> list[str]:
    return [replica["path"] for replica in state["replicas"] if replica["phase"] == "published"]


@pytest.mark.slow
@pytest.mark.servers
def test_another_controller_goes_on_where_the_leader_was_killed(controllers: Controllers) -> None:
    controllers.start("one")
    controllers.leader()
    controllers.start("two")
    told = controllers.training()
    told.evaluation_scheduled("mmlu", 1000, "eval")
    told.save_begun(1000, "ckpt/run7/step_1000")
    files = controllers.write_checkpoint(1000, 20)
    path = LakePath("ckpt/run7/step_1000")
    for file in files[:10]:
        told.tell(FileClosed(path=path, file=file))
    wait_until(lambda: [each for each in controllers.state()["replicas"] if each["files"]], "the first copied file")
    controllers.kill("one")
    for file in files[10:]:
        wait_until(
            lambda file=file: _tells(controllers.training(), FileClosed(path=path, file=file)), "a controller that hears"
        )
    what = Committed(step=1000, path=path, save_id="s1", marker="19.bin", files=files)
    assert _tells(controllers.training(), what)
    assert controllers.leader(other_than="one") == "two"
    state = wait_until(lambda: (found := controllers.state()) and published(found) and found, "a published copy")
    (replica,) = state["replicas"]
    assert (replica["files"], replica["bytes"], replica["save_id"]) == (20, 2_000_000, "s1")
    for file in files:
        (copy,) = (controllers.base / "eval").rglob(file.path)
        assert copy.read_bytes() == (controllers.base / "origin" / file.at).read_bytes()
    again = controllers.training()
    again.evaluation_started("mmlu", 1000, "eval")
    again.evaluation_result("mmlu", 1000, "eval")
    wait_until(lambda: not controllers.state()["replicas"], "the copy dropped after the result")
    assert not list((controllers.base / "eval").rglob("*.bin"))
    ledger = controllers.training().ask("/v1/ledger")
    (entry,) = ledger["entries"]
    assert (entry["outcome"], entry["bytes_prepared"]) == ("hit", 2_000_000), "nothing was lost or counted twice"


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("ahead_s", [3600, -3600], ids=["the second is an hour ahead", "the second is an hour behind"])
@pytest.mark.parametrize("controllers", ["etcd"], indirect=True)
def test_controllers_whose_clocks_are_an_hour_apart_end_nothing_early_and_nothing_late(
    controllers: Controllers, ahead_s: int
) -> None:
    controllers.start("one")
    controllers.leader()
    told = controllers.training()
    told.evaluation_scheduled("mmlu", 1000, "eval")
    told.save_begun(1000, "ckpt/run7/step_1000")
    files = controllers.write_checkpoint(1000, 3)
    told.tell(Committed(step=1000, path=LakePath("ckpt/run7/step_1000"), save_id="s1", marker="2.bin", files=files))
    state = wait_until(lambda: (found := controllers.state()) and published(found) and found, "a published copy")
    (replica,) = state["replicas"]
    assert replica["expires_in_s"] == TTL_S
    controllers.start("two", ahead_s)
    controllers.kill("one")
    assert controllers.leader(other_than="one") == "two"
    again = controllers.training()
    again.evaluation_started("mmlu", 1000, "eval")
    again.evaluation_scheduled("mmlu-2", 2000, "eval")
    again.save_begun(2000, "ckpt/run7/step_2000")
    hints = wait_until(lambda: len(found := controllers.state()["hints"]) == 2 and found, "a hint for the next step")
    assert [hint["ttl_s"] for hint in hints] == [TTL_S, TTL_S], "an hour between two clocks is no time to expect"
    assert published(controllers.state()) == ["ckpt/run7/step_1000"]
    again.evaluation_result("mmlu", 1000, "eval")
    wait_until(lambda: not published(controllers.state()), "the copy dropped after the result")


def _tells(line: Training, what: Any) -> bool:
    try:
        line.tell(what)
    except ForemountError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize(
    "contradict",
    [
        lambda told: told.evaluation_cancelled("mmlu", 1000, "eval"),
        lambda told: told.restarted(500),
        lambda told: told.restarted(1000, data_mix="other"),
    ],
    ids=["cancelled", "restarted from another checkpoint", "other data"],
)
def test_what_contradicts_a_hint_stops_its_transfer(
    tmp_path: Path, wan_origin: WanOrigin, contradict: Callable[[Training], None]
) -> None:
    below = tmp_path.name
    (wan_origin.root / below).mkdir()
    (wan_origin.root / below / "0.bin").write_bytes(os.urandom(4 << 20))
    url = f"{wan_origin.url}/{below}/"
    controllers = Controllers(tmp_path, str(tmp_path / "store"), f'kind = "http"\nurl = "{url}"')
    try:
        controllers.start("one")
        controllers.leader()
        told = controllers.training()
        told.job_submitted(8, evaluate_every=1000, evaluation_sites=["eval"], data_mix="first")
        told.save_begun(1000, "ckpt/run7/step_1000")
        wan_origin.inject(Fault("stall", path=f"/{below}/*", after=1 << 20))
        file = asyncio.run(stated(url, "0.bin"))
        told.tell(FileClosed(path=LakePath("ckpt/run7/step_1000"), file=file))
        wait_until(lambda: wan_origin.stats()["bytes"] >= 1 << 20, "a transfer that is under way")
        assert [each["phase"] for each in controllers.state()["replicas"]] == ["copying"]
        contradict(told)
        wait_until(lambda: not controllers.state()["replicas"], "no copy")
        assert controllers.state()["hints"] == []
        assert not [each for each in (tmp_path / "eval").rglob("*") if each.is_file()]
        wan_origin.heal()
        assert wan_origin.stats()["bytes"] < 4 << 20
        (entry,) = told.ask("/v1/ledger")["entries"]
        assert (entry["outcome"], entry["bytes_prepared"]) == ("withdrawn", 0)
    finally:
        controllers.close()


def test_controller_believes_nobody_who_does_not_sign(tmp_path: Path) -> None:
    controllers = Controllers(tmp_path, str(tmp_path / "store"))
    try:
        controllers.start("one")
        controllers.leader()
        forged = tmp_path / "forged"
        forged.write_text("trainer ffffffffffffffffffff\n")
        with pytest.raises(Denied):
            controllers.training(str(forged)).save_begun(1, "ckpt/run7/step_1")
        url = f"http://127.0.0.1:{controllers.ports[0]}"
        with pytest.raises(Denied):
            Training("run7", [url]).ask("/v1/state")
        assert controllers.state()["hints"] == []
    finally:
        controllers.close()
