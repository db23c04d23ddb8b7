"""Rules that match who asks, or the format of what is asked for, on a real mount: two users, jobs, and one kernel for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.mount.documents import explain, follow, write
from tests.servers.wan_origin import WanOrigin
from vfs.checkpoints.formats import BY_ENDING

pytestmark = MOUNT
CONFIG = """
policies = ["policies"]
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""
DOCUMENT = """
format = 1
[[rules]]
name = "published-once"
match = {}
set = { staleness = "immutable", listing_ttl = "0s" }
[[rules]]
name = "of-a-user"
match = { path = "uid/**", uid = 1001 }
set = { staleness = "close-to-open" }
[[rules]]
name = "of-a-group"
match = { path = "gid/**", gid = 2001 }
set = { staleness = "close-to-open" }
[[rules]]
name = "of-a-job"
match = { path = "job/**", job = ["run7", "slurm:47*"] }
set = { staleness = "close-to-open" }
[[rules]]
name = "of-many-ranks"
match = { path = "world/**", world = ">=8" }
set = { staleness = "close-to-open" }
[[rules]]
name = "of-a-format"
match = { path = "format/**", format = ["torch", "dcp"] }
set = { staleness = "close-to-open" }
[[rules]]
name = "crawlers-get-old-listings"
match = { path = "list/**", uid = 1001, access = "list" }
set = { listing_ttl = "1h" }
[[rules]]
name = "periodic-jobs-wait"
match = { path = "slow/**", job = "periodic-*" }
set = { bandwidth = "1KiB/s", fetch_size = "256KiB", deadline = "5m" }
"""


@pytest.fixture(scope="module")
def lake(wan_origin_server: WanOrigin) -> Iterator[Lake]:
    """A mount that every user of this host can reach."""
    base = Path(tempfile.mkdtemp(prefix="foremount-test-"))
    base.chmod(0o755)
    (base / "policies").mkdir()
    for directory in ("uid", "gid", "job", "world", "format", "list", "slow"):
        (wan_origin_server.root / "callers" / directory).mkdir(parents=True)
    write(base, DOCUMENT)
    try:
        with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/callers"), base) as lake:
            yield lake
    finally:
        shutil.rmtree(base)


@pytest.fixture
def site(wan_origin: WanOrigin) -> Path:
    """The origin's files."""
    return wan_origin.root / "callers"


def run(*words: str, user: int = 1002, group: int = 2002, **variables: str) -> str:
    """Return what a command says that is run as another user, with this environment alone."""
    environ = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(words, user=user, group=group, extra_groups=[], env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("directory", "meant", "other"),
    [
        ("uid", {"user": 1001}, {}),
        ("gid", {"group": 2001}, {}),
        ("job", {"FOREMOUNT_JOB": "run7"}, {"FOREMOUNT_JOB": "run8"}),
        ("job", {"SLURM_JOB_ID": "4711"}, {"SLURM_JOB_ID": "4811"}),
        ("world", {"WORLD_SIZE": "8"}, {"WORLD_SIZE": "7"}),
        ("world", {"SLURM_NTASKS": "1024"}, {"SLURM_NTASKS": "1024", "WORLD_SIZE": "7"}),
    ],
    ids=["uid", "gid", "job by its name", "job of slurm", "world", "world by the ranks, not their launchers"],
)
def test_rule_holds_for_those_whom_it_means_and_for_nobody_else(
    lake: Lake, site: Path, directory: str, meant: dict[str, Any], other: dict[str, Any]
) -> None:
    name = f"{directory}/{'-'.join(map(str, meant.values()))}"
    (site / name).write_text("old")
    assert run("cat", f"{lake.root}/{name}", **other) == "old"
    (site / name).write_text("newer")
    assert run("cat", f"{lake.root}/{name}", **other) == "old"  # immutable: nobody looks
    assert run("cat", f"{lake.root}/{name}", **meant) == "newer"  # close to open, though the other has just opened it
    (site / name).write_text("and once more")
    assert run("cat", f"{lake.root}/{name}", **other) == "newer"
    assert run("cat", f"{lake.root}/{name}", **meant) == "and once more"


def test_program_that_a_process_becomes_may_belong_to_another_job(lake: Lake, site: Path) -> None:
    (site / "job/become").write_text("old\n")
    path = f"{lake.root}/job/become"
    assert run("cat", path) == "old\n"
    (site / "job/become").write_text("newer\n")
    script = f"read line < {path}; echo $line; exec env FOREMOUNT_JOB=run7 cat {path}"
    assert run("sh", "-c", script, FOREMOUNT_JOB="run8") == "old\nnewer\n"


def test_format_is_known_by_the_name_before_anybody_has_opened_the_file(lake: Lake, site: Path) -> None:
    endings = [*BY_ENDING, ".txt"]
    for text in ("old", "newer"):
        for ending in endings:
            (site / f"format/x{ending}").write_text(text)
        seen = {ending for ending in endings if (lake.root / f"format/x{ending}").read_text() == text}
        if text == "old":
            assert seen == set(endings)
    assert seen == {".pt", ".pth", ".bin", ".ckpt", ".distcp"}


def test_listing_is_as_old_as_each_user_may_see_it(lake: Lake, site: Path) -> None:
    (site / "list/one").write_text("1")
    assert run("ls", f"{lake.root}/list", user=1001) == "one\n"
    (site / "list/two").write_text("2")
    assert run("ls", f"{lake.root}/list", user=1001) == "one\n"
    assert run("ls", f"{lake.root}/list", user=1002) == "one\ntwo\n"


def test_one_who_may_go_faster_takes_along_who_waits_for_the_same_bytes(lake: Lake, site: Path) -> None:
    content = os.urandom(1 << 20).hex()
    (site / "slow/model").write_text(content)
    found: list[str] = []
    path = f"{lake.root}/slow/model"
    waiting = threading.Thread(target=lambda: found.append(run("cat", path, FOREMOUNT_JOB="periodic-1")))
    waiting.start()
    wait_until(lambda: "budget" in lake.command("why", "--mountpoint", str(lake.root)).stdout, "a job that waits")
    assert run("cat", path, FOREMOUNT_JOB="urgent-1") == content
    waiting.join(20)  # it would have taken half an hour
    assert found == [content]


@pytest.mark.slow
def test_rule_that_comes_while_a_process_runs_holds_for_its_next_open(lake: Lake, site: Path) -> None:
    (site / "uid/later").write_text("old\n")
    script = f"cat {lake.root}/uid/later; read line; cat {lake.root}/uid/later"
    environ = {"PATH": os.environ["PATH"], "FOREMOUNT_JOB": "late"}
    command = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True)
    with command as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "old\n"
        (site / "uid/later").write_text("newer\n")
        write(lake.base, DOCUMENT.replace("uid = 1001 }", 'job = "late" }', 1))
        try:
            follow(lake)
            assert reader.communicate("on\n")[0] == "newer\n"
        finally:
            write(lake.base, DOCUMENT)
            follow(lake)


@pytest.mark.slow
def test_explain_says_what_a_process_gets_and_why_a_rule_does_not_hold(lake: Lake, site: Path) -> None:
    (site / "job/any.pt").write_text("x")
    rule = "site/of-a-job"
    nobody = explain(lake, "job/any.pt", "--rules")
    assert nobody["rules"][rule] == "no, job is not known, the rule wants run7, slurm:47*"
    assert (nobody["facts"]["format"], nobody["values"]["staleness"]["value"]) == ("torch", "immutable")
    stated = explain(lake, "job/any.pt", "--job", "run8", "--uid", "7", "--rules")
    assert stated["rules"][rule] == "no, job is run8, the rule wants run7, slurm:47*"
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4711", "WORLD_SIZE": "16"}
    with subprocess.Popen(["sleep", "60"], user=1002, group=2002, extra_groups=[], env=environ) as process:
        try:
            asked = explain(lake, "job/any.pt", "--pid", str(process.pid), "--rules")
        finally:
            process.kill()
    assert {name: asked["facts"][name] for name in ("uid", "gid", "job", "world")} == {
        "uid": "1002",
        "gid": "2002",
        "job": "slurm:4711",
        "world": "16",
    }
    assert asked["rules"][rule] == "gives staleness"
    assert asked["values"]["staleness"]["from"] == rule
