"""Sealed files of the cache, which the kernel reads alone, that somebody changes while the mount serves.

A handle that is open in passthrough reads such a file as it is: nobody stands between. Every further open is right, whether
or not handles are left, and whatever was killed before.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lake import mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin
from tests.trouble.cachefiles import disk_image, flip, lake_over, replace_with_other_bytes, sealed_files

pytestmark = MOUNT
SIZE = 400_000
AT = 300_000
HELD = ("closed", "held")
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "flipped": lambda data, sums: flip(data, AT),
    "cut short": lambda data, sums: os.truncate(data, 1000),
    "replaced": lambda data, sums: replace_with_other_bytes(data),
    "deleted": lambda data, sums: data.unlink(),
    "both deleted": lambda data, sums: [data.unlink(), sums.unlink()],
    "digests cut short": lambda data, sums: os.truncate(sums, 4100),
}


@pytest.mark.parametrize(
    "killed", [pytest.param("nothing", marks=pytest.mark.slow), "worker", pytest.param("agent", marks=pytest.mark.slow)]
)
def test_every_open_after_a_change_to_a_sealed_file_is_right(wan_origin: WanOrigin, wan_root: Path, killed: str) -> None:
    """D61"""
    names = {f"{held} {damage}": (held, damage) for held, damage in itertools.product(HELD, DAMAGES)}
    contents = {name: random.Random(name).randbytes(SIZE) for name in names}
    for name, content in contents.items():
        (wan_root / name).write_bytes(content)
    with lake_over(wan_origin, wan_root) as lake:
        lake.command("fetch", str(lake.root))
        files = wait_until(lambda: len(found := sealed_files(lake.base / "cache")) == len(names) and found, "seals")
        with ExitStack() as handles:
            open_files = {name: handles.enter_context(open(lake.root / name, "rb", buffering=0)) for name in names}
            for name, file in open_files.items():
                assert os.pread(file.fileno(), 100, AT) == contents[name][AT : AT + 100]
                if names[name][0] == "closed":
                    file.close()
            if killed != "nothing":
                lake.kill(killed, ready=True)
            for name, (_, damage) in names.items():
                DAMAGES[damage](files[name], files[name].with_suffix(".sums"))
            held = open_files["held flipped"].fileno()
            assert os.pread(held, 1, AT)[0] == contents["held flipped"][AT] ^ 1  # the kernel reads the file as it is
            for _ in range(2):
                for name, content in contents.items():
                    assert (lake.root / name).read_bytes() == content, name
                assert os.stat(lake.root / "held flipped").st_ino != os.fstat(held).st_ino
                assert read_fails(Path(f"/proc/self/fd/{held}")) == errno.ESTALE
        for name, content in contents.items():
            assert (lake.root / name).read_bytes() == content, name
        now = lake.state()
        assert (now["worker"]["restarts"], now["agent"]["restarts"]) == (killed == "worker", killed == "agent")


def read_fails(path: Path) -> int | None:
    """Return the errno that opening and reading a file ends with."""
    with pytest.raises(OSError) as failure:
        path.read_bytes()
    return failure.value.errno


@pytest.mark.slow
def test_decay_below_an_unchanged_file_is_found_by_verify_and_not_by_the_read(wan_origin: WanOrigin, wan_root: Path) -> None:
    content = random.Random(4).randbytes(SIZE)
    (wan_root / "f").write_bytes(content)
    with disk_image(64 << 20) as (disk, image), lake_over(wan_origin, wan_root, cache=str(disk / "cache")) as lake:
        lake.command("fetch", str(lake.root))
        data = wait_until(lambda: sealed_files(disk / "cache"), "the seal")["f"]
        at = image.read_bytes().index(content[AT : AT + 64])
        flip(image, at)
        assert (lake.root / "f").read_bytes() == content  # pages that the kernel has
        with open(data, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert (lake.root / "f").read_bytes() == content[:AT] + bytes([content[AT] ^ 1]) + content[AT + 1 :]
        lake.command("verify", str(lake.root))
        assert (lake.root / "f").read_bytes() == content


_BESIDE = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
[sites.near]
kind = "local"
path = "{base}/near"
[[mounts]]
prefix = "/far"
site = "origin"
replicas = ["near"]
[[mounts]]
prefix = "/near"
site = "near"
writable = true
[cache]
directory = "{base}/cache"
"""
_PINNED = """
format = 1
[[rules]]
name = "pinned"
match = { path = "near/**" }
set = { staleness = "pinned=s" }
"""


@pytest.mark.slow
def test_file_of_this_host_that_is_changed_is_no_replica_and_no_pinned_version_at_the_next_open(
    wan_origin: WanOrigin, wan_root: Path, scratch: Path
) -> None:
    content = random.Random(3).randbytes(SIZE)
    (scratch / "near").mkdir()
    for file in (wan_root / "f", scratch / "near/f"):
        file.write_bytes(content)
        os.utime(file, (1_700_000_000, 1_700_000_000))
    (scratch / "policy.toml").write_text(_PINNED)
    with mounted(_BESIDE.replace("URL", f"{wan_origin.url}/{wan_root.name}"), scratch) as lake:
        far, near = lake.root / "far/f", lake.root / "near/f"
        lake.command("snapshot", "create", "s", str(lake.root / "near"))
        for killed in (False, True):
            with open(far, "rb", buffering=0) as replica, open(near, "rb", buffering=0) as pinned:
                assert replica.read(SIZE) == pinned.read(SIZE) == content
                if killed:
                    lake.kill("worker", ready=True)
                flip(scratch / "near/f", AT)
                for held in (replica, pinned):
                    assert os.pread(held.fileno(), 1, AT) != content[AT : AT + 1]  # the kernel reads the file as it is
                assert far.read_bytes() == content
                assert read_fails(near) == errno.ESTALE
            assert far.read_bytes() == content
            assert read_fails(near) == errno.ESTALE
            flip(scratch / "near/f", AT)
            os.utime(scratch / "near/f", (1_700_000_000, 1_700_000_000))
