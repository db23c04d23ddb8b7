"""An HTTP origin through a real mount: bytes, versions, local copies, and what happens without passthrough."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lake import Lake, http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin
from vfs.extents.layout import PASSTHROUGH_BYTES_MIN

pytestmark = MOUNT
BIG = random.Random(3).randbytes(5_000_001)


def fill(root: Path) -> None:
    """Put files of every interesting size at the origin, and some that single tests change."""
    chance = random.Random(4)
    sizes = [0, 1, 4095, 4096, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1]
    files = {f"sizes/{size}": chance.randbytes(size) for size in sizes} | {"a b/ü%20#?": b"odd name"}
    files |= dict.fromkeys(["big", "many/once", "gone/evicted", "new/replaced", "new/held", "new/deleted"], BIG)
    files |= {f"class{directory}/{index}.jpg": b"x" * index for directory in range(5) for index in range(30)}
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def lake(request: pytest.FixtureRequest, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    """A mount for all tests that don't change the origin: each reads files of its own where it counts requests."""
    yield from mount_origin(request, wan_origin_server, "60s")


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def brief(request: pytest.FixtureRequest, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    """A mount that believes the origin's names for half a second only."""
    yield from mount_origin(request, wan_origin_server, "500ms")


def mount_origin(request: pytest.FixtureRequest, origin: WanOrigin, ttl: str) -> Iterator[Lake]:
    options = [] if request.param == "passthrough" else ["--no-passthrough"]
    root = origin.root / f"remote-{ttl}-{request.param_index}"
    root.mkdir()
    fill(root)
    with mounted(http_lake(f"{origin.url}/{root.name}", ttl=ttl), None, *options) as lake:
        yield lake


def origin_root(lake: Lake, origin: WanOrigin) -> Path:
    """Return the directory at the origin that the mount shows."""
    return origin.root / lake.config.read_text().split('url = "')[1].split('"')[0].rpartition("/")[2]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold a process still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def explain(lake: Lake, name: str) -> dict[str, object]:
    said: dict[str, object] = json.loads(lake.command("explain", str(lake.root / name), "--json").stdout)
    return said


def test_every_file_has_the_bytes_of_the_origin(lake: Lake, wan_origin: WanOrigin) -> None:
    origin = origin_root(lake, wan_origin)
    files = {str(path.relative_to(origin)) for path in origin.rglob("*") if path.is_file()}
    assert {str(path.relative_to(lake.root)) for path in lake.root.rglob("*") if path.is_file()} == files | {
        ".foremount/status.json"
    }
    for name in files - {"many/once", "gone/evicted"}:  # other tests read these for the first time
        assert (lake.root / name).read_bytes() == (origin / name).read_bytes()
        assert (lake.root / name).stat().st_size == (origin / name).stat().st_size


@pytest.mark.slow
def test_small_file_that_was_read_before_costs_an_open_and_a_release(lake: Lake) -> None:
    path = lake.root / "class1/29.jpg"
    assert path.read_bytes() == b"x" * 29
    before = lake.requests_by_kind()
    for _ in range(20):
        assert path.read_bytes() == b"x" * 29
    after = lake.requests_by_kind()
    asked = {name: after.get(name, 0) - before.get(name, 0) for name in ("open", "read", "flush", "lookup", "getattr")}
    assert asked == {"open": 20, "read": 0, "flush": 0, "lookup": 0, "getattr": 0}


def test_random_reads_by_many_threads_give_the_right_bytes(lake: Lake) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        with open(lake.root / "big", "rb", buffering=0) as file:
            for _ in range(60):
                offset, length = chance.randrange(len(BIG)), chance.randrange(1, 300_000)
                if os.pread(file.fileno(), length, offset) != BIG[offset : offset + length]:
                    wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("access", [mmap.MAP_SHARED, mmap.MAP_PRIVATE], ids=["shared", "private"])
def test_remote_file_can_be_mapped(lake: Lake, access: int) -> None:
    """D31"""
    with open(lake.root / "big", "rb") as file, mmap.mmap(file.fileno(), 0, access, mmap.PROT_READ) as mapped:
        assert mapped[:] == BIG


def test_direct_io_on_a_remote_file_reads_to_its_unaligned_end(lake: Lake) -> None:
    """D47"""
    fd = os.open(lake.root / "big", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 8 << 20) as buffer:
        got = 0
        while count := os.preadv(fd, [memoryview(buffer)[got : got + (4 << 20)]], got):
            got += count
            if got % 4096:
                break
        assert buffer[:got] == BIG
    os.close(fd)


def test_one_cold_file_read_by_many_is_fetched_once(lake: Lake, wan_origin: WanOrigin) -> None:
    """D32, D34"""
    origin = origin_root(lake, wan_origin)
    wan_origin.reset_stats()
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(hashlib.sha256((lake.root / "many/once").read_bytes()).digest()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {hashlib.sha256(BIG).digest()}
    assert len(results) == 8
    assert wan_origin.stats()["by_path"][f"/{origin.name}/many/once"]["bytes"] <= len(BIG) * 1.05


def test_evicted_tree_is_fetched_again(lake: Lake, wan_origin: WanOrigin) -> None:
    origin = origin_root(lake, wan_origin)
    lake.command("fetch", str(lake.root / "gone"))
    lake.command("evict", str(lake.root / "gone"))
    assert explain(lake, "gone/evicted")["served_from"] == "origin origin"
    wan_origin.reset_stats()
    with open(lake.root / "gone/evicted", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == BIG
    assert wan_origin.stats()["by_path"][f"/{origin.name}/gone/evicted"]["bytes"] == len(BIG)


@pytest.mark.slow
def test_fetched_tree_is_read_without_agent_and_origin(lake: Lake, wan_origin: WanOrigin) -> None:
    origin = origin_root(lake, wan_origin)
    lake.command("fetch", str(lake.root))
    wan_origin.reset_stats()
    passthrough = lake.status()["passthrough"]
    files = sorted((path for path in origin.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    small = [path for path in files if path.stat().st_size < PASSTHROUGH_BYTES_MIN]
    for some in (small, files[len(small) :]):
        before = lake.requests("read")
        with stopped(lake.pid("agent")):
            for path in some:
                assert (lake.root / path.relative_to(origin)).read_bytes() == path.read_bytes()
        if passthrough and some is not small:
            assert lake.requests("read") == before
    assert wan_origin.stats()["requests"] == 0
    for name, way in (("big", "kernel passthrough" if passthrough else "page cache"), ("sizes/4096", "page cache")):
        assert explain(lake, name)["served_from"] == "complete verified copy"
        assert str(explain(lake, name)["mode"]).startswith(way)


def test_verify_finds_nothing_wrong_with_a_fetched_tree(lake: Lake) -> None:
    lake.command("fetch", str(lake.root))
    assert lake.command("verify", str(lake.root)).returncode == 0


def test_scan_with_attributes_asks_for_listings_only(lake: Lake, wan_origin: WanOrigin) -> None:
    """D41"""
    wan_origin.reset_stats()
    sizes = [os.stat(os.path.join(top, name)).st_size for top, _, names in os.walk(lake.root) for name in names]
    assert len(sizes) >= 150
    by_path = wan_origin.stats()["by_path"]
    assert not [path for path in by_path if path.endswith(".jpg")]
    assert wan_origin.stats()["requests"] <= 16


def test_remote_mount_refuses_writes(lake: Lake) -> None:
    for call in (
        lambda: os.open(lake.root / "big", os.O_RDWR),
        lambda: os.open(lake.root / "newer", os.O_CREAT | os.O_WRONLY),
        lambda: os.unlink(lake.root / "big"),
    ):
        with pytest.raises(OSError) as refusal:
            call()
        assert refusal.value.errno == errno.EROFS


def test_name_that_is_no_utf8_is_absent(lake: Lake) -> None:
    with pytest.raises(FileNotFoundError):
        os.stat(os.fsencode(lake.root) + b"/\xff\xfe")


def test_missing_file_is_not_found_and_costs_one_request_at_most(lake: Lake, wan_origin: WanOrigin) -> None:
    os.listdir(lake.root)
    wan_origin.reset_stats()
    for _ in range(20):
        assert not (lake.root / "nothing").exists()
    assert wan_origin.stats()["requests"] <= 1


def test_replaced_object_is_read_whole_in_the_old_or_the_new_version(brief: Lake, wan_origin: WanOrigin) -> None:
    """D49"""
    origin = origin_root(brief, wan_origin)
    new = BIG[::-1]
    os.stat(brief.root / "new/replaced")
    replace(origin / "new/replaced", new)
    first = None
    try:
        first = (brief.root / "new/replaced").read_bytes()
    except OSError as exc:
        assert exc.errno == errno.ESTALE
    assert first in (None, BIG, new)
    wait_until(lambda: content(brief.root / "new/replaced") == new, "the new version", 10)


def test_held_version_keeps_its_bytes_while_the_new_one_is_read(brief: Lake, wan_origin: WanOrigin) -> None:
    """D50"""
    origin = origin_root(brief, wan_origin)
    path = brief.root / "new/held"
    assert path.read_bytes() == BIG
    with open(path, "rb") as held, mmap.mmap(held.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        digest = hashlib.sha256(mapped).digest()
        replace(origin / "new/held", BIG[::-1])
        wait_until(lambda: content(path) == BIG[::-1], "the new version", 10)
        for _ in range(20):
            assert path.read_bytes() == BIG[::-1]
            assert hashlib.sha256(mapped).digest() == digest
        assert held.read() == BIG
        assert os.fstat(held.fileno()).st_ino != path.stat().st_ino


@pytest.mark.slow
def test_rewrite_of_the_same_size_is_noticed(brief: Lake, wan_origin: WanOrigin) -> None:
    """D51"""
    origin = origin_root(brief, wan_origin)
    path = brief.root / "sizes/4096"
    for round_number in range(4):
        new = bytes([round_number]) * 4096
        (origin / "sizes/4096").write_bytes(new)
        wait_until(lambda: os.listdir(brief.root / "sizes") and content(path) == new, "the new content", 10)  # noqa: B023


def test_deleted_object_is_not_found_and_held_bytes_stay(brief: Lake, wan_origin: WanOrigin) -> None:
    origin = origin_root(brief, wan_origin)
    path = brief.root / "new/deleted"
    assert path.read_bytes() == BIG
    with open(path, "rb") as held:
        (origin / "new/deleted").unlink()
        wait_until(lambda: not path.exists(), "its end", 10)
        assert held.read() == BIG
    assert "deleted" not in os.listdir(brief.root / "new")


def test_new_object_appears(brief: Lake, wan_origin: WanOrigin) -> None:
    origin = origin_root(brief, wan_origin)
    assert not (brief.root / "late").exists()
    (origin / "late").write_bytes(b"late")
    wait_until((brief.root / "late").exists, "the new object", 10)
    assert (brief.root / "late").read_bytes() == b"late"


def content(path: Path) -> bytes | None:
    """Return what is read now; None where the version changed in between."""
    try:
        return path.read_bytes()
    except OSError as exc:
        if exc.errno == errno.ESTALE:
            return None
        raise


def replace(path: Path, new: bytes) -> None:
    """Replace a file in one step."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(new)
    os.replace(beside, path)
