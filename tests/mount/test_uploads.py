"""What is written to a remote origin through a real mount comes there: durable when promised, whole, in the right order."""

from __future__ import annotations

import errno
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lake import FSYNC_IS_LOCAL, Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.nginx import Nginx
from tests.servers.seaweedfs import REGION, SECRET_KEY, SeaweedFs, credentials

pytestmark = [*MOUNT, pytest.mark.servers]
DAV = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "webdav"
[[mounts]]
prefix = "lake"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
[limits]
listing_ttl = "TTL"
"""
POLICY = (
    FSYNC_IS_LOCAL
    + """
[[rules]]
name = "remote"
match = { access = "write", path = "lake/remote/**" }
set = { write_durability = "remote" }
"""
)
CHANCE = random.Random(11)
BIG = CHANCE.randbytes(5_000_017)


@contextmanager
def dav_lake(server: Nginx, name: str, ttl: str = "60s", more: str = "") -> Iterator[tuple[Lake, Path]]:
    """A mount of a directory of nginx, with more of a configuration, and that directory."""
    root = server.root / name
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        base = Path(made)
        (base / "policy.toml").write_text(POLICY)
        with mounted(DAV.replace("URL", f"{server.url}/dav/{name}/").replace("TTL", ttl) + more, base) as lake:
            yield lake, root


@pytest.fixture(scope="module")
def dav(nginx: Nginx) -> Iterator[tuple[Lake, Path]]:
    """One mount for all tests that don't disturb it; each writes in a directory of its own."""
    leave_checkpoints(nginx.root / "shared/foreign")
    with dav_lake(nginx, "shared") as made:
        yield made


def leave_checkpoints(root: Path) -> None:
    """Have two old checkpoints at an origin, one of them without its marker, as a host that died leaves them."""
    for step in (5, 6):
        left = root / f"checkpoint-{step}"
        left.mkdir(parents=True)
        (left / "model-1.safetensors").write_bytes(b"left by a host that died")
    (root / "checkpoint-6/model.safetensors.index.json").write_text("{}")
    for path in root.rglob("*"):
        os.utime(path, (1, 1))


def write(path: Path, body: bytes, *, sync: bool = False) -> None:
    """Write a file as savers do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(body)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def uploaded(lake: Lake) -> bool:
    """Return whether the origin has everything."""
    return bool(lake.status()["agent_says"]["uploads"]["behind"]["files"] == 0)


def test_fsync_with_remote_durability_returns_when_the_origin_has_the_file(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    write(lake.root / "lake/remote/a.bin", BIG, sync=True)
    assert (origin / "remote/a.bin").read_bytes() == BIG


def test_close_with_remote_durability_returns_when_the_origin_has_the_file(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    write(lake.root / "lake/remote/b.bin", BIG)
    assert (origin / "remote/b.bin").read_bytes() == BIG


def test_close_of_a_forked_child_with_remote_durability_returns_when_the_origin_has_the_file(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    with (lake.root / "lake/remote/c.bin").open("wb", buffering=0) as file:
        file.write(BIG)
        subprocess.run(["true"], pass_fds=[file.fileno()], check=True)
        assert (origin / "remote/c.bin").read_bytes() == BIG


def test_with_local_durability_the_file_comes_to_the_origin_by_itself(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    write(lake.root / "lake/local/a.bin", BIG, sync=True)
    wait_until(lambda: (origin / "local/a.bin").exists(), "the upload")
    assert (origin / "local/a.bin").read_bytes() == BIG
    assert (lake.root / "lake/local/a.bin").read_bytes() == BIG


def test_removed_and_renamed_files_are_so_at_the_origin(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    work = lake.root / "lake/changes"
    for name in ("gone", "kept", "old"):
        write(work / name, name.encode())
    wait_until(lambda: all((origin / "changes" / name).exists() for name in ("gone", "kept", "old")), "uploads")
    (work / "gone").unlink()
    (work / "old").rename(work / "new")
    wait_until(lambda: sorted(os.listdir(origin / "changes")) == ["kept", "new"], "removal and rename")
    assert (origin / "changes/new").read_bytes() == b"old"


def test_a_checkpoint_directory_that_is_renamed_is_whole_at_the_origin(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    work = lake.root / "lake/renamed"
    for index in range(5):
        write(work / f"tmp/part-{index}", BIG[: 100_000 * index])
    (work / "tmp").rename(work / "step_12")
    parts = {origin / f"renamed/step_12/part-{index}": BIG[: 100_000 * index] for index in range(5)}
    wait_until(lambda: all(part.exists() for part in parts), "all files")
    assert {part: part.read_bytes() for part in parts} == parts


def test_status_says_that_the_origins_are_not_behind(dav: tuple[Lake, Path]) -> None:
    lake, _ = dav
    write(lake.root / "lake/local/b.bin", b"x")
    wait_until(lambda: uploaded(lake), "uploads")
    said = lake.status()["agent_says"]["uploads"]
    assert said["behind"] == {"files": 0, "bytes": 0, "seconds": 0.0}
    assert said["uploaded"]["files"] >= 1


@pytest.mark.parametrize("process", ["agent", pytest.param("worker", marks=pytest.mark.slow)])
def test_every_acknowledged_byte_comes_to_the_origin_though_a_process_is_killed(nginx: Nginx, process: str) -> None:
    with dav_lake(nginx, f"killed-{process}") as (lake, origin):
        for index in range(12):
            write(lake.root / f"lake/run/{index}", BIG[: 400_000 + index], sync=True)
            if index % 4 == 1:
                os.kill(lake.pid(process), signal.SIGKILL)
        wait_until(lambda: all((origin / f"run/{index}").exists() for index in range(12)), "uploads")
        for index in range(12):
            assert (origin / f"run/{index}").read_bytes() == BIG[: 400_000 + index]


@pytest.mark.slow
def test_what_is_not_uploaded_at_the_end_of_a_mount_is_by_the_next_one(nginx: Nginx, tmp_path: Path) -> None:
    root = nginx.root / "resumed"
    root.mkdir()
    (tmp_path / "policy.toml").write_text(POLICY)
    config = DAV.replace("URL", f"{nginx.url}/dav/resumed/").replace("TTL", "60s")
    root.chmod(0o500)
    gone = nginx.root / "resumed-away"
    root.rename(gone)
    (nginx.root / "resumed").write_text("a file where the directory was: nothing can be put below it")
    with mounted(config, tmp_path) as lake:
        write(lake.root / "lake/run/a", BIG, sync=True)
        wait_until(lambda: lake.status()["agent_says"]["uploads"]["troubles"], "a failed upload")
    (nginx.root / "resumed").unlink()
    gone.chmod(0o755)
    gone.rename(root)
    with mounted(config, tmp_path) as lake:
        assert (lake.root / "lake/run/a").read_bytes() == BIG
        wait_until(lambda: (root / "run/a").exists(), "the upload")
    assert (root / "run/a").read_bytes() == BIG


@pytest.mark.slow
def test_fsync_fails_where_the_origin_takes_no_more(nginx: Nginx) -> None:
    (nginx.root / "small").mkdir(exist_ok=True)
    config = DAV.replace("URL", f"{nginx.url}/small/small/").replace("TTL", "60s").replace('"webdav"', '"put"')
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        (Path(made) / "policy.toml").write_text(POLICY)
        with mounted(config, Path(made)) as lake:
            with pytest.raises(OSError) as caught:
                write(lake.root / "lake/remote/big", BIG, sync=True)
            assert caught.value.errno == errno.ENOSPC
            write(lake.root / "lake/remote/little", b"fits", sync=True)
            assert (nginx.root / "small/remote/little").read_bytes() == b"fits"


@pytest.mark.slow
def test_s3_gets_a_file_in_parts(seaweedfs: SeaweedFs, tmp_path: Path) -> None:
    keys = tmp_path / "credentials"
    keys.write_text(credentials())
    (tmp_path / "policy.toml").write_text(POLICY)
    config = f"""
policies = ["policy.toml"]
[sites.s3]
kind = "s3"
url = "{seaweedfs.url(tmp_path.name)}"
endpoint = "{seaweedfs.endpoint}"
region = "{REGION}"
credentials_file = "{keys}"
[[mounts]]
prefix = "lake"
site = "s3"
writable = true
[cache]
directory = "{{base}}/cache"
"""
    body = BIG * 8
    with mounted(config, tmp_path) as lake:
        write(lake.root / "lake/remote/big", body, sync=True)
        store = seaweedfs.filesystem()
        with store.open_input_file(f"lake/{tmp_path.name}/remote/big") as stored:
            assert stored.read() == body
        keys.write_text(keys.read_text().replace(SECRET_KEY, "wrong"))
        write(lake.root / "lake/remote/small", b"the keys in memory still hold", sync=True)


INDEX = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.mark.slow
def test_on_two_hosts_a_marker_is_never_there_before_its_shards_can_be_read(nginx: Nginx) -> None:
    """The second host looks all the time, and what it has seen it believes for a second: shards and marker out of step."""
    with dav_lake(nginx, "hosts", "1s") as (first, _), dav_lake(nginx, "hosts", "1s") as (second, _):
        for step in range(5):
            there = second.root / f"lake/step_{step}"
            index = there / "model.safetensors.index.json"
            shards = {there / f"model-{number}.safetensors": BIG[: 300_000 + number] for number in (1, 2)}

            def found(index: Path = index, shards: dict[Path, bytes] = shards) -> bool:
                """Look for the shards first: when the marker is there, that they were not has just been seen."""
                absent = [shard for shard in shards if not shard.exists()]
                if not index.exists():
                    return False
                assert all(shard.read_bytes() == body for shard, body in shards.items()), absent
                return True

            assert not found()
            here = first.root / f"lake/step_{step}"
            write(here / index.name, json.dumps(INDEX).encode())
            for shard, body in shards.items():
                write(here / shard.name, body)
            wait_until(found, "the marker on the second host", 20)


@pytest.mark.slow
def test_what_another_host_adds_to_a_directory_that_was_made_here_is_shown(nginx: Nginx) -> None:
    with dav_lake(nginx, "added", "1s") as (first, origin), dav_lake(nginx, "added", "1s") as (second, _):
        write(first.root / "lake/run/here", b"here")
        wait_until(lambda: (origin / "run/here").exists(), "the upload")
        assert os.listdir(first.root / "lake/run") == ["here"]
        wait_until((second.root / "lake/run/here").exists, "the second host to see it")
        write(second.root / "lake/run/there", b"there")
        wait_until(lambda: sorted(os.listdir(first.root / "lake/run")) == ["here", "there"], "the other host's file")
        assert (first.root / "lake/run/there").read_bytes() == b"there"


def test_a_file_takes_the_name_of_a_directory_whose_removal_is_under_way(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    work = lake.root / "lake/replaced"
    for kind in ("made", "renamed"):
        for index in range(5):
            write(work / kind / str(index), b"old")
    write(work / "new", b"new")
    wait_until(lambda: (origin / "replaced/renamed/4").exists() and uploaded(lake), "the uploads")
    shutil.rmtree(work / "made")
    write(work / "made", b"a file now")
    shutil.rmtree(work / "renamed")
    (work / "new").rename(work / "renamed")
    assert (work / "made").read_bytes() == b"a file now"
    wait_until(lambda: (origin / "replaced/made").is_file() and (origin / "replaced/renamed").is_file(), "the new ones")
    assert (origin / "replaced/renamed").read_bytes() == b"new"
    assert sorted(os.listdir(work)) == sorted(os.listdir(origin / "replaced")) == ["made", "renamed"]


def states(lake: Lake, path: Path) -> dict[int, str]:
    """Return the state of each checkpoint below a path by its step."""
    said = json.loads(lake.command("checkpoints", str(path), "--json").stdout)
    return {each["step"]: each["state"] for each in said["checkpoints"]}


def test_checkpoints_are_listed_with_their_state(dav: tuple[Lake, Path]) -> None:
    lake, _ = dav
    work = lake.root / "lake/saves"
    write(work / "checkpoint-10/model-1.safetensors", BIG[:100_000])
    write(work / "checkpoint-10/model-2.safetensors", BIG[:200_000])
    write(work / "checkpoint-10/model.safetensors.index.json", json.dumps(INDEX).encode())
    write(work / "checkpoint-20/model-1.safetensors", BIG[:100_000])
    write(work / "checkpoint-20/model.safetensors.index.json", json.dumps(INDEX).encode())
    wait_until(lambda: states(lake, work) == {10: "durable", 20: "committed"}, "the states")
    shown = lake.command("checkpoints", str(work), "--ranks", "--png", str(lake.base / "heat.png")).stdout
    assert "checkpoint-20  waits for lake/saves/checkpoint-20/model-2.safetensors" in shown
    assert "other  " in shown  # these names tell no rank
    assert (lake.base / "heat.png").read_bytes().startswith(b"\x89PNG")
    write(work / "checkpoint-20/model-2.safetensors", BIG[:200_000])
    wait_until(lambda: states(lake, work) == {10: "durable", 20: "durable"}, "the second to be durable")


def test_incomplete_checkpoints_are_swept_by_age(dav: tuple[Lake, Path]) -> None:
    lake, origin = dav
    work = lake.root / "lake/foreign"
    assert states(lake, work) == {5: "incomplete", 6: "durable"}
    assert "checkpoint-5" in lake.command("checkpoints", str(work), "--sweep", "1d").stdout
    wait_until(lambda: os.listdir(origin / "foreign") == ["checkpoint-6"], "the removal at the origin")
    assert states(lake, work) == {6: "durable"}


@contextmanager
def hanging_origin() -> Iterator[str]:
    """An origin that holds nothing, says so, and takes uploads without ever answering."""
    released = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            released.wait()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            released.set()
            server.shutdown()


@pytest.mark.slow
def test_a_mount_ends_although_its_origin_hangs_and_the_next_one_uploads_what_it_left(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / "hung").mkdir()
    (tmp_path / "policy.toml").write_text(POLICY)
    with hanging_origin() as url:
        config = DAV.replace("URL", url).replace("TTL", "60s")
        with mounted(config.replace('"webdav"', '"put"'), tmp_path) as lake:
            keeper = lake.pid("keeper")
            staged = lake.root / "lake/a"
            staged.write_bytes(BIG)
            wait_until(lambda: lake.status()["agent_says"]["uploads"]["states"].get("uploading"), "the upload to begin")
            assert lake.command("umount", str(lake.root)).returncode == 0
            wait_until(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper's end")
    config = DAV.replace("URL", f"{nginx.url}/dav/hung/").replace("TTL", "60s")
    with mounted(config, tmp_path):
        wait_until(lambda: (nginx.root / "hung/a").exists(), "the upload")
    assert (nginx.root / "hung/a").read_bytes() == BIG
