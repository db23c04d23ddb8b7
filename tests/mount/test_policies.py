"""Policy documents that change while a mount is up: what follows, what is refused, and that no call notices."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.mount.documents import FOLLOWS_S, explain, follow, write
from tests.servers.wan_origin import Fault, WanOrigin

pytestmark = MOUNT
CONFIG = """
policies = ["policies", "pretraining"]
[sites.origin]
kind = "http"
url = "URL"
[sites.here]
kind = "local"
path = "{base}/here"
[[mounts]]
prefix = "/"
site = "origin"
[[mounts]]
prefix = "/local"
site = "here"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""
DIRECTORIES = ("rewritten", "added", "held", "own", "kept", "steady")
"""Each of one test: names there are believed from its first look on."""
BELIEVED = 'staleness = "immutable", listing_ttl = "1h"'
ASKED = 'staleness = "close-to-open", listing_ttl = "0s"'
BROKEN = 'format = 1\n\n[[rules]]\nname = "all"\nmatch = {}\nset = { stalenes = "immutable" }\n'


@pytest.fixture(scope="module")
def lake(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A mount with a document of its own beside a shipped one."""
    base = tmp_path_factory.mktemp("policies")
    origin = wan_origin_server.root / "policies"
    for directory in (*(origin / "data" / name for name in DIRECTORIES), origin / "slow", base / "here", base / "policies"):
        directory.mkdir(parents=True)
    (origin / "slow/file").write_bytes(b"slow")
    (base / "here/file").write_bytes(b"here")
    write_rule(base, BELIEVED)
    with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/policies"), base) as lake:
        yield lake


@pytest.fixture
def site(lake: Lake, wan_origin: WanOrigin) -> Path:
    """The origin's files; its document believes everything and is in force when the test begins."""
    put_in_force(lake, BELIEVED)
    return wan_origin.root / "policies"


def put_in_force(lake: Lake, values: str, match: str = "") -> None:
    """Return once agent and worker follow a document with this rule alone."""
    write_rule(lake.base, values, match)
    follow(lake)


def write_rule(base: Path, values: str, match: str = "") -> None:
    """Replace the admin's document by one with a single rule, in one step."""
    write(base, f'format = 1\n\n[[rules]]\nname = "all"\nmatch = {{ {match} }}\nset = {{ {values} }}\n')


def audit(lake: Lake) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(lake.run_dir.audit).read_text().splitlines()]


def test_rewritten_file_is_seen_once_a_changed_document_asks_for_it(lake: Lake, site: Path) -> None:
    (site / "data/rewritten/file").write_bytes(b"old")
    assert (lake.root / "data/rewritten/file").read_bytes() == b"old"
    (site / "data/rewritten/file").write_bytes(b"newer")
    assert (lake.root / "data/rewritten/file").read_bytes() == b"old"  # immutable: nobody looks
    write_rule(lake.base, ASKED)
    wait_until(lambda: (lake.root / "data/rewritten/file").read_bytes() == b"newer", "the new version", FOLLOWS_S)
    (site / "data/rewritten/file").write_bytes(b"and once more")
    assert (lake.root / "data/rewritten/file").read_bytes() == b"and once more"  # close-to-open: the very next open


@pytest.mark.slow
def test_new_name_is_seen_once_a_changed_document_asks_for_it(lake: Lake, site: Path) -> None:
    assert os.listdir(lake.root / "data/added") == []
    (site / "data/added/one").write_bytes(b"x")
    assert os.listdir(lake.root / "data/added") == []
    write_rule(lake.base, ASKED)
    wait_until(lambda: os.listdir(lake.root / "data/added") == ["one"], "the new name", FOLLOWS_S)


def test_rewritten_local_file_is_seen_once_a_changed_document_asks_for_it(lake: Lake, site: Path) -> None:
    (lake.base / "here/file").write_bytes(b"old")
    write_rule(lake.base, ASKED)
    wait_until(lambda: (lake.root / "local/file").read_bytes() == b"old", "the local file", FOLLOWS_S)
    (lake.base / "here/file").write_bytes(b"newer")
    assert (lake.root / "local/file").read_bytes() == b"newer"


def test_working_directory_and_open_file_survive_names_that_expire(lake: Lake, site: Path) -> None:
    (site / "data/held/held").write_bytes(b"held")
    script = (
        "import os, sys\nos.chdir(sys.argv[1])\nheld = open('held', 'rb')\nprint('in', flush=True)\n"
        "sys.stdin.readline()\nprint(os.getcwd(), held.read().decode())"
    )
    command = [sys.executable, "-c", script, str(lake.root / "data/held")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "in\n"
        before = lake.log("worker").count("names of the kernel expired")
        write_rule(lake.base, ASKED)
        wait_until(lambda: lake.log("worker").count("names of the kernel expired") > before, "names that expire")
        assert reader.communicate("on\n")[0] == f"{lake.root}/data/held held\n"


@pytest.mark.slow
def test_own_document_wins_over_the_shipped_one_named_after_it(lake: Lake, site: Path) -> None:
    put_in_force(lake, 'staleness = "ttl=7s", listing_ttl = "9s"', 'path = "data/**"')
    (site / "data/own/any").write_bytes(b"x")
    values = explain(lake, "data/own/any")["values"]
    assert {name: (values[name]["value"], values[name]["from"]) for name in ("staleness", "listing_ttl", "cache")} == {
        "staleness": ("ttl=7s", "site/all"),
        "listing_ttl": ("9s", "site/all"),
        "cache": ("stream", "pretraining/data-is-read-once"),
    }
    assert "site/all, line 3" in lake.command("explain", "data/own/any", "--mountpoint", str(lake.root)).stdout


@pytest.mark.slow
def test_broken_document_is_refused_whole_and_the_set_before_outlives_its_processes(lake: Lake, site: Path) -> None:
    (site / "data/kept/file").write_bytes(b"old")
    assert (lake.root / "data/kept/file").read_bytes() == b"old"
    version = lake.status()["agent_says"]["policies"]["version"]
    write(lake.base, BROKEN)
    wait_until(lambda: lake.status()["agent_says"]["policies"]["error"], "the complaint", FOLLOWS_S)
    where = f"{lake.base}/policies/site.toml:6: rules[0].set.stalenes"
    assert trouble(lake, version, where)
    assert explain(lake, "data/kept/file")["policies"]["error"]["subject"] == where
    refused = lake.command("policy", "reload", "--mountpoint", str(lake.root), check=False)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"foremount: {where}: unknown key\n  hint: did you mean 'staleness'?\n",
    )
    assert audit(lake)[-1]["who"] == 0
    assert audit(lake)[-1]["error"].startswith(where)
    for process in ("agent", "worker"):
        lake.kill(process)
    (site / "data/kept/file").write_bytes(b"newer")
    assert (lake.root / "data/kept/file").read_bytes() == b"old"  # immutable still
    wait_until(lambda: trouble(lake, version, where), "the complaint of the next agent")
    write_rule(lake.base, ASKED)
    wait_until(lambda: (lake.root / "data/kept/file").read_bytes() == b"newer", "the mended document", FOLLOWS_S)
    wait_until(lambda: lake.status()["agent_says"]["policies"]["error"] is None, "the end of the complaint", FOLLOWS_S)


def trouble(lake: Lake, version: str, where: str) -> bool:
    """Return whether status says which document is broken, what stays in force and what to write."""
    return {
        "what": f"the policy documents can't be used, version {version} stays in force: {where}: unknown key",
        "advice": "did you mean 'staleness'?; it is read again once it has changed",
    } in lake.status()["troubles"]


def test_reload_by_command_says_what_changed_and_is_written_down(lake: Lake, site: Path) -> None:
    version = lake.status()["agent_says"]["policies"]["version"]
    lines = len(audit(lake))
    write_rule(lake.base, 'staleness = "ttl=3s"')
    stale = lake.command("policy", "reload", "--mountpoint", str(lake.root), "--if-match", "another", check=False)
    assert stale.returncode == 1
    assert "in force, not another" in stale.stderr
    done = json.loads(lake.command("policy", "reload", "--mountpoint", str(lake.root), "--json").stdout)
    assert lake.status()["agent_says"]["policies"]["version"] == done["after"] != version
    changes = ["changed site/all set.staleness: immutable -> ttl=3s", "changed site/all set.listing_ttl: 1h -> (not set)"]
    written = [line for line in audit(lake)[lines:] if line["changes"]]
    assert [(line["before"], line["after"], line["changes"]) for line in written] == [(version, done["after"], changes)]
    assert written[0]["who"] in (0, "file change")  # whoever was first


@pytest.mark.slow
def test_deadline_of_a_path_ends_its_calls_and_no_others(lake: Lake, site: Path, wan_origin: WanOrigin) -> None:
    put_in_force(lake, 'deadline = "1s"', 'path = "slow/**"')
    assert os.stat(lake.root / "slow/file").st_size == 4
    wan_origin.inject(Fault("stall", path="*/slow/file"))
    begun = time.monotonic()
    with open(lake.root / "slow/file", "rb", buffering=0) as file, pytest.raises(OSError) as failure:
        file.read()
    assert failure.value.errno == errno.EIO
    assert 1 <= time.monotonic() - begun < 20  # elsewhere it would have been a minute
    wan_origin.heal()
    assert (lake.root / "slow/file").read_bytes() == b"slow"


@pytest.mark.slow
def test_kept_files_outlive_streamed_ones_in_a_full_cache(tmp_path: Path, wan_origin: WanOrigin) -> None:
    root = wan_origin.root / tmp_path.name
    for directory in ("kept", "streamed"):
        (root / directory).mkdir(parents=True)
    for number in range(3):
        (root / f"kept/{number}").write_bytes(os.urandom(1 << 20))
    for number in range(12):
        (root / f"streamed/{number}").write_bytes(os.urandom(1 << 20))
    (tmp_path / "policies").mkdir()
    rules = "".join(
        f'[[rules]]\nname = "{value}"\nmatch = {{ path = "{path}/**" }}\nset = {{ cache = "{value}" }}\n'
        for path, value in (("kept", "keep"), ("streamed", "stream"))
    )
    write(tmp_path, f"format = 1\n{rules}")
    config = CONFIG.replace("URL", f"{wan_origin.url}/{tmp_path.name}").replace('size = "1GiB"', 'size = "6MiB"')
    (tmp_path / "here").mkdir()
    with mounted(config, tmp_path) as lake:
        for directory, count in (("kept", 3), ("streamed", 12)):
            for number in range(count):
                name = f"{directory}/{number}"
                assert (lake.root / name).read_bytes() == (root / name).read_bytes()
        here = {f"kept/{number}": explain(lake, f"kept/{number}")["bytes_present"] for number in range(3)}
        assert here == dict.fromkeys(here, 1 << 20)


def test_bandwidth_holds_and_a_raised_one_lets_what_waits_through_at_once(
    lake: Lake, site: Path, wan_origin: WanOrigin
) -> None:
    content = os.urandom(4 << 20)
    (site / "slow/much").write_bytes(content)
    slow = 'staleness = "immutable", bandwidth = "1KiB/s", fetch_size = "256KiB", deadline = "5m"'
    put_in_force(lake, slow, 'path = "slow/**"')
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((lake.root / "slow/much").read_bytes()))
    reader.start()
    wait_until(lambda: "budget" in lake.command("why", "--mountpoint", str(lake.root)).stdout, "a read that waits")
    assert found == []
    put_in_force(lake, slow.replace("1KiB/s", "unlimited"), 'path = "slow/**"')
    reader.join(20)  # it would have taken an hour
    assert found == [content]


def test_reloads_under_reading_processes_fail_no_call(lake: Lake, site: Path) -> None:
    for index in range(50):
        (site / f"data/steady/{index}").write_bytes(b"%d" % index * 1000)
    failed: list[str] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            for index in range(50):
                try:
                    if (lake.root / f"data/steady/{index}").read_bytes() != b"%d" % index * 1000:
                        failed.append(f"{index}: other bytes")
                except OSError as exc:
                    failed.append(f"{index}: {exc}")

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for round_number in range(6):
        put_in_force(lake, f'staleness = "ttl={round_number + 1}s", listing_ttl = "{round_number}s"')
    ended.set()
    for reader in readers:
        reader.join()
    assert failed == []


def test_bad_documents_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "mnt").mkdir()
    write(tmp_path, BROKEN)
    config = tmp_path / "foremount.toml"
    text = CONFIG.replace("URL", "http://127.0.0.1:9").replace("{base}", str(tmp_path))
    config.write_text(text)
    for words in (("config", "check", str(config)), ("mount", str(config), str(tmp_path / "mnt"))):
        refused = foremount(*words, check=False)
        assert refused.returncode == 1
        assert f"{tmp_path}/policies/site.toml:6: rules[0].set.stalenes: unknown key" in refused.stderr
    assert not os.path.ismount(tmp_path / "mnt")


def test_reload_without_a_mount_says_so(tmp_path: Path) -> None:
    refused = foremount("policy", "reload", "--mountpoint", str(tmp_path), check=False)
    assert refused.returncode == 1
    assert "agent: is not running" in refused.stderr
