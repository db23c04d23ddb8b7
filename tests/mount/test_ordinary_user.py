"""The whole product as an ordinary user, through fusermount3: no passthrough, the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.marks import MOUNT
from tests.schedules import BATCH, arrow
from tests.servers.wan_origin import WanOrigin
from vfs.keeper.code import child_environ

pytestmark = [*MOUNT, pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3 (package fuse3)")]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""May read everything, as the interpreter may lie in a home directory, and is an ordinary user in all else."""
CONFIG = """
[sites.disk]
kind = "local"
path = "BASE/disk"
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "disk"
writable = true
[[mounts]]
prefix = "/remote"
site = "origin"
[cache]
directory = "BASE/cache"
[samples]
declarations = ["jobs"]
"""
BIG = random.Random(14).randbytes(3_000_001)
PROGRAM = """
import json, mmap, os, subprocess, sys
base = sys.argv[1]
def foremount(*words):
    done = subprocess.run([sys.executable, "-m", "vfs.cli", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
root = base + "/mnt"
foremount("mount", base + "/foremount.toml", root)
try:
    facts = {"uid": os.getuid(), "passthrough": json.loads(foremount("status", root, "--json"))["passthrough"]}
    big = open(base + "/disk/big", "rb").read()
    facts["same"] = [open(root + "/" + name, "rb").read() == big for name in ("big", "remote/big", "remote/big")]
    with open(root + "/big", "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        facts["same"].append(mapped[:] == big)
    with open(root + "/.tmp", "xb") as file:
        file.write(big)
        os.fsync(file.fileno())
    os.rename(root + "/.tmp", root + "/written")
    facts["same"].append(open(base + "/disk/written", "rb").read() == big)
    foremount("fetch", root + "/remote")
    facts["served"] = json.loads(foremount("explain", root + "/remote/big", "--json"))["served_from"]
    facts["names"] = sorted(os.listdir(root))
    facts["link"] = os.readlink(root + "/.jobs")
    samples = root + "/.jobs/run/step_0000001/rank_0001"
    facts["samples"] = [open(samples + "/" + name, "rb").read().hex() for name in sorted(os.listdir(samples))]
finally:
    foremount("umount", root)
facts["mounted"] = [os.path.ismount(path) for path in (root, facts["link"])]
print(json.dumps(facts))
"""


@pytest.mark.slow
def test_ordinary_user_mounts_reads_writes_and_fetches(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "big").write_bytes(BIG)
    with tempfile.TemporaryDirectory(prefix="foremount-user-") as made:
        base = Path(made)
        for name in ("disk", "mnt"):
            (base / name).mkdir()
        (base / "disk/big").write_bytes(BIG)
        schedule = arrow(base / "disk")
        (base / "disk/jobs/run.toml").write_text(schedule.text)
        text = CONFIG.replace("BASE", made).replace("URL", f"{wan_origin.url}/{wan_root.name}")
        (base / "foremount.toml").write_text(text)
        for path in (base, *base.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        said = run_as_nobody(base)
    assert said["uid"] == NOBODY
    assert said["passthrough"] is False
    assert said["same"] == [True] * 5
    assert said["served"] == "complete verified copy"
    assert said["names"] == [".foremount", ".jobs", "big", "data", "jobs", "remote", "written"]
    assert said["samples"] == [schedule.slots[1, 1, slot].hex() for slot in range(BATCH)]
    assert said["mounted"] == [False, False]


def run_as_nobody(base: Path) -> dict[str, object]:
    """Run the program in a mount namespace whose /dev/fuse every user may open, as udev makes it."""
    node = base / "fuse"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(10, 229))
    node.chmod(0o666)
    enter = f'mount --bind {node} /dev/fuse && exec "$@"'
    environ = {name: value for name, value in child_environ().items() if name != "XDG_RUNTIME_DIR"}
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", enter, "sh", *AS_NOBODY, sys.executable, "-c", PROGRAM, str(base)],
        capture_output=True, text=True, timeout=100, env=environ, cwd="/", check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said: dict[str, object] = json.loads(ran.stdout)
    return said
