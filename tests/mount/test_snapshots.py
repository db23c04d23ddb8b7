"""Prefixes that the policy pins to a snapshot: one version of a data set, whatever is published meanwhile."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.seaweedfs import SeaweedFs, credentials
from tests.servers.wan_origin import Fault, WanOrigin

pytestmark = MOUNT
BIG = random.Random(1).randbytes(1_000_001)
_SETS = ("published", "killed", "told", "moved", "broken", "written")
"""Directories, each of one test, that a rule pins to the snapshot of this name from the start."""
_CONFIG = """
policies = ["policies"]
SITE
[[mounts]]
prefix = "/"
site = "origin"
writable = WRITABLE
[cache]
directory = "{base}/cache"
size = "1GiB"
[staging]
directory = "{base}/staging"
"""
_S3 = 'kind = "s3"\nurl = "{url}"\nendpoint = "{endpoint}"\nregion = "us-east-1"\ncredentials_file = "{{base}}/keys"'


@dataclass(frozen=True)
class Origin:
    """A mounted lake, and how somebody else publishes to what it shows."""

    lake: Lake
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]
    is_local: bool

    def publish(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            self.put(name, content)

    def take(self, name: str, prefix: str | None = None) -> dict[str, Any]:
        words = ("snapshot", "create", name, str(self.lake.root / (prefix or name)), "--json")
        taken: dict[str, Any] = json.loads(self.lake.command(*words).stdout)
        return taken


@pytest.fixture(scope="module", params=["http", "disk", "s3"])
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """A read-only HTTP origin; a directory of this host and an S3 bucket that may be written."""
    base = tmp_path_factory.mktemp(request.param)
    (base / "policies").mkdir()
    pin(base, {name: name for name in _SETS})
    if request.param == "s3":
        yield from on_s3(request.getfixturevalue("seaweedfs"), base)
        return
    root = base / "origin"
    site = f'kind = "local"\npath = "{root}"'
    if request.param == "http":
        server: WanOrigin = request.getfixturevalue("wan_origin_server")
        root = server.root / base.name
        site = f'kind = "http"\nurl = "{server.url}/{base.name}"'
    root.mkdir()

    def put(name: str, content: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        fresh = base / "fresh"
        fresh.write_bytes(content)
        fresh.replace(root / name)

    with mounted(config(site, writable=request.param == "disk"), base) as lake:
        yield Origin(lake, put, lambda name: (root / name).unlink(), is_local=request.param == "disk")


def on_s3(server: SeaweedFs, base: Path) -> Iterator[Origin]:
    (base / "keys").write_text(credentials())
    (base / "keys").chmod(0o600)
    site = _S3.format(url=server.url(base.name), endpoint=server.endpoint)
    store = server.filesystem()

    def put(name: str, content: bytes) -> None:
        with store.open_output_stream(f"lake/{base.name}/{name}") as file:
            file.write(content)

    with mounted(config(site, writable=True), base) as lake:
        yield Origin(lake, put, lambda name: store.delete_file(f"lake/{base.name}/{name}"), is_local=False)


def config(site: str, *, writable: bool) -> str:
    return _CONFIG.replace("SITE", f"[sites.origin]\n{site}").replace("WRITABLE", str(writable).lower())


def pin(base: Path, snapshots: dict[str, str]) -> None:
    """Replace the admin's document by one that pins each directory to a snapshot, in one step."""
    rules = [
        f'[[rules]]\nname = "{path}"\nmatch = {{ path = "{path}/**" }}\nset = {{ staleness = "pinned={name}" }}'
        for path, name in snapshots.items()
    ]
    rules.append('[[rules]]\nname = "short"\nmatch = {}\nset = { listing_ttl = "0s" }')
    (base / "site.new").write_text("\n".join(["format = 1", *rules]) + "\n")
    (base / "site.new").replace(base / "policies/site.toml")


def seen(root: Path) -> dict[str, int]:
    """Return what a walk through the mount shows below a directory, with sizes."""
    return {
        str(Path(directory, name).relative_to(root)): os.stat(os.path.join(directory, name)).st_size
        for directory, _, names in os.walk(root)
        for name in names
    }


def read_fails(path: Path) -> int:
    """Return the errno that opening and reading a file ends with."""
    with pytest.raises(OSError) as failure:
        path.read_bytes()
    assert failure.value.errno is not None
    return failure.value.errno


def test_a_run_sees_one_version_whatever_is_published_meanwhile(origin: Origin) -> None:
    before = {
        "published/kept": b"kept",
        "published/deep/er/big": BIG,
        "published/deep/replaced": BIG[::-1],
        "published/removed": b"removed",
    }
    origin.publish({**before, "beside": b"old"})
    taken = origin.take("published")
    assert (taken["files"], taken["bytes"]) == (4, sum(map(len, before.values())))
    root = origin.lake.root
    if not origin.is_local:
        origin.lake.command("fetch", str(root / "published/deep/er"), str(root / "published/removed"))
    origin.publish({"published/deep/replaced": BIG, "published/new": b"new", "published/fresh/x": b"x", "beside": b"newer"})
    origin.delete("published/removed")
    if not origin.is_local:
        origin.delete("published/deep/er/big")
    sizes = {name.partition("/")[2]: len(content) for name, content in before.items()}
    assert seen(root / "published") == sizes
    assert (root / "published/kept").read_bytes() == b"kept"
    assert (root / "published/deep/er/big").read_bytes() == BIG
    assert read_fails(root / "published/deep/replaced") == errno.ESTALE
    assert read_fails(root / "published/new") == errno.ENOENT
    assert read_fails(root / "published/fresh/x") == errno.ENOENT
    if origin.is_local:  # nobody keeps bytes of a disk
        assert read_fails(root / "published/removed") == errno.ESTALE
    else:
        assert (root / "published/removed").read_bytes() == b"removed"
    assert (root / "beside").read_bytes() == b"newer"  # what is not pinned goes on
    told = "published/deep/replaced: is pinned to the snapshot 'published', whose version of it is neither at its origin"
    assert told in origin.lake.log("worker")


def test_pinned_paths_can_not_be_changed(origin: Origin) -> None:
    origin.publish({"written/a": b"a"})
    origin.take("written")
    root = origin.lake.root / "written"
    for change in (
        lambda: (root / "b").write_bytes(b"b"),
        lambda: (root / "a").write_bytes(b"b"),
        lambda: (root / "a").unlink(),
        lambda: (root / "c").mkdir(),
        lambda: (root / "a").rename(origin.lake.root / "elsewhere"),
    ):
        with pytest.raises(OSError) as failure:
            change()
        assert failure.value.errno == errno.EROFS
    assert (root / "a").read_bytes() == b"a"


@pytest.mark.slow
def test_snapshot_outlives_agent_and_worker(origin: Origin) -> None:
    origin.publish({f"killed/{index}": b"%d" % index * 100 for index in range(20)})
    origin.take("killed")
    root = origin.lake.root / "killed"
    before = seen(root)
    with open(root / "7", "rb", buffering=0) as held:
        origin.publish({"killed/7": b"another", "killed/new": b"new"})
        for process in ("agent", "worker"):
            origin.lake.kill(process, ready=True)
        assert seen(root) == before
        assert len(before) == 20
        assert (root / "9").read_bytes() == b"9" * 100
        if origin.is_local:
            assert held.read() == b"7" * 100  # passthrough: the kernel has the file that was opened
        else:
            with pytest.raises(OSError) as failure:
                held.read()
            assert failure.value.errno == errno.ESTALE


def test_rule_whose_snapshot_is_not_here_shows_nothing_in_its_place(origin: Origin) -> None:
    origin.publish({"told/a": b"a"})
    lake = origin.lake
    for ask in (lambda: os.stat(lake.root / "told/a"), lambda: os.listdir(lake.root / "told")):
        with pytest.raises(OSError) as failure:
            ask()
        assert failure.value.errno == errno.ESTALE
    troubles = {each["what"]: each["advice"] for each in lake.status()["troubles"]}
    advice = troubles["site/told pins to the snapshot told, which is not on this host: ESTALE"]
    assert advice == "foremount snapshot create told PREFIX, or name another in the rule"
    origin.take("told")
    assert (lake.root / "told/a").read_bytes() == b"a"
    wait_until(lambda: "site/told pins" not in json.dumps(lake.status()["troubles"]), "the end of the complaint")
    mountpoint = ("--mountpoint", str(lake.root))
    refused = lake.command("snapshot", "drop", "told", *mountpoint, check=False)
    assert (refused.returncode, "is named by the rule site/told" in refused.stderr) == (1, True)
    again = lake.command("snapshot", "create", "told", str(lake.root / "told"), check=False)
    assert (again.returncode, "is the name of a snapshot" in again.stderr) == (1, True)
    explained = json.loads(lake.command("explain", str(lake.root / "told/a"), "--json").stdout)
    assert (explained["snapshot"]["name"], explained["snapshot"]["origin"]) == ("told", "has it as it was")
    origin.put("told/a", b"other")
    assert json.loads(lake.command("explain", str(lake.root / "told/a"), "--json").stdout)["snapshot"]["origin"] == (
        "has another version"
    )


@pytest.mark.slow
def test_another_snapshot_is_seen_by_the_next_open_once_the_rule_names_it(origin: Origin) -> None:
    lake, path = origin.lake, origin.lake.root / "moved/big"
    origin.publish({"moved/big": BIG, "moved/old": b"old"})
    origin.take("moved")
    with open(path, "rb", buffering=0) as held:
        assert held.read(100) == BIG[:100]
        if not origin.is_local:
            lake.command("fetch", str(path))
        origin.publish({"moved/big": BIG[::-1], "moved/new": b"new"})
        origin.delete("moved/old")
        origin.take("later", "moved")
        assert path.stat().st_size == len(BIG)
        assert sorted(os.listdir(path.parent)) == ["big", "old"]
        pin(lake.base, {name: name for name in _SETS} | {"moved": "later"})
        lake.command("policy", "reload", "--mountpoint", str(lake.root))
        wait_until(lambda: sorted(os.listdir(path.parent)) == ["big", "new"], "the other snapshot", 10)
        assert path.read_bytes() == BIG[::-1]
        assert os.pread(held.fileno(), len(BIG), 0) == BIG  # an open file never changes its version
    lake.command("snapshot", "drop", "moved", "--mountpoint", str(lake.root))
    listed = json.loads(lake.command("snapshot", "list", "--mountpoint", str(lake.root), "--json").stdout)["snapshots"]
    assert {each["name"]: each["pinned_by"] for each in listed if each["name"] in ("moved", "later")} == {
        "later": "site/moved"
    }


@pytest.mark.slow
def test_agent_that_is_killed_while_it_takes_a_snapshot_leaves_none(tmp_path: Path, wan_origin: WanOrigin) -> None:
    root = wan_origin.root / tmp_path.name
    for index in range(5):
        (root / f"broken/{index}").mkdir(parents=True)
        (root / f"broken/{index}/file").write_bytes(b"x")
    (tmp_path / "policies").mkdir()
    pin(tmp_path, {"broken": "broken"})
    with mounted(config(f'kind = "http"\nurl = "{wan_origin.url}/{tmp_path.name}"', writable=False), tmp_path) as lake:
        origin = Origin(lake, lambda name, content: None, lambda name: None, is_local=False)
        wan_origin.inject(Fault("stall", path="*/broken/3*"))
        words = ("snapshot", "create", "broken", str(lake.root / "broken"))
        taking = subprocess.Popen([sys.executable, "-m", "vfs.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: states(lake) == {"broken": "unfinished"}, "a snapshot that is being taken")
        lake.kill("agent", ready=True)
        assert taking.wait() == 1
        wait_until(lambda: states(lake) == {"broken": "missing"}, "the unfinished snapshot to go")
        wan_origin.heal()
        assert origin.take("broken")["files"] == 5
        assert seen(lake.root / "broken") == {f"{index}/file": 1 for index in range(5)}


def states(lake: Lake) -> dict[str, str]:
    listed = json.loads(
        lake.command("snapshot", "list", "--mountpoint", str(lake.root), "--json", check=False).stdout or "{}"
    )
    return {each["name"]: each["state"] for each in listed.get("snapshots", [])}
