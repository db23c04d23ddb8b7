"""Processes that are killed or stopped while verifying readers work."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lake import DISK, Lake, foremount, http_lake, is_running, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import Fault, WanOrigin
from tests.trouble.readers import Readers
from vfs.keeper import mountinfo
from vfs.keeper.supervise import Limits

pytestmark = MOUNT
KILLS = 20
LONGEST_WAIT_S = 30.0
PAUSE_S = 0.002  # of each reader between its passes: the process that starts anew shares two cores with them
"""For a whole pass on a loaded machine; the figure of `python -m tests.bench crash` is the honest one."""


def contents() -> dict[str, bytes]:
    chance = random.Random(5)
    files = {f"dir/{index}": chance.randbytes(chance.randrange(1, 300_000)) for index in range(12)}
    return files | {"big": chance.randbytes(4_000_001)} | {f"many/{index:04d}": b"%d" % index for index in range(400)}


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def held(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that readers hold open: enough, and few enough for their descriptors."""
    return {name: content for name, content in files.items() if not name.startswith("many/1")}


@contextmanager
def local_lake(scratch: Path, *options: str) -> Iterator[tuple[Lake, dict[str, bytes]]]:
    files = contents()
    write(scratch / "disk", files)
    with mounted(DISK, scratch, *options) as lake:
        yield lake, files


@contextmanager
def remote_lake(
    origin: WanOrigin, root: Path, *options: str, deadline: str = "20s"
) -> Iterator[tuple[Lake, dict[str, bytes]]]:
    files = contents()
    write(root, files)
    with mounted(http_lake(f"{origin.url}/{root.name}", deadline=deadline), None, *options) as lake:
        yield lake, files


def verify_over_kills(lake: Lake, files: dict[str, bytes], process: str) -> None:
    with Readers(lake.root, files, pause_s=PAUSE_S) as readers:
        for _ in range(KILLS):
            lake.kill(process, ready=True)
            readers.wait_rounds(at_least_s=Limits().quick_life_s)  # what dies sooner is started after longer and longer rests
    readers.check()
    assert readers.longest_s < LONGEST_WAIT_S
    assert lake.state()[process]["restarts"] >= KILLS


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--passthrough", "--no-passthrough"])
def test_no_reader_of_local_files_notices_twenty_killed_workers(scratch: Path, option: str) -> None:
    """D1: kill -9 of the fs worker"""
    with local_lake(scratch, *([option] if option == "--no-passthrough" else [])) as (lake, files):
        verify_over_kills(lake, held(files), "worker")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["cold", "fetched"])
def test_no_reader_of_remote_files_notices_twenty_killed_workers(wan_origin: WanOrigin, wan_root: Path, state: str) -> None:
    """D1: kill -9 of the fs worker"""
    options = ["--no-passthrough"] if state == "cold" else []
    with remote_lake(wan_origin, wan_root, *options) as (lake, files):
        if state == "fetched":
            lake.command("fetch", str(lake.root))
        verify_over_kills(lake, held(files), "worker")


@pytest.mark.slow
def test_no_reader_notices_twenty_killed_agents_once_the_files_are_here(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D1: kill -9 of the agent"""
    with remote_lake(wan_origin, wan_root) as (lake, files):
        lake.command("fetch", str(lake.root))
        verify_over_kills(lake, held(files), "agent")


def test_one_killed_worker_is_not_noticed_by_readers_of_local_files(scratch: Path) -> None:
    with local_lake(scratch) as (lake, files), Readers(lake.root, held(files)) as readers:
        lake.kill("worker", ready=True)
        readers.wait_rounds()
    readers.check()


def test_one_killed_worker_is_not_noticed_by_readers_of_remote_files(wan_origin: WanOrigin, wan_root: Path) -> None:
    with (
        remote_lake(wan_origin, wan_root, "--no-passthrough") as (lake, files),
        Readers(lake.root, held(files)) as readers,
    ):
        lake.kill("worker", ready=True)
        readers.wait_rounds()
    readers.check()


@pytest.mark.slow
def test_worker_and_agent_killed_together_are_not_noticed(wan_origin: WanOrigin, wan_root: Path) -> None:
    with remote_lake(wan_origin, wan_root) as (lake, files), Readers(lake.root, held(files)) as readers:
        for _ in range(3):
            agent = lake.pid("agent")
            os.kill(agent, signal.SIGKILL)
            lake.kill("worker", ready=True)
            wait_until(lambda: lake.state()["agent"]["pid"] not in (0, agent), "a new agent")  # noqa: B023
            readers.wait_rounds()
    readers.check()


@pytest.mark.slow
def test_directory_stream_goes_on_over_a_killed_worker(scratch: Path) -> None:
    (scratch / "disk").mkdir()
    names = {f"{index:05d}" for index in range(3000)}
    for name in names:
        (scratch / "disk" / name).touch()
    with mounted(DISK, scratch) as lake, os.scandir(lake.root) as entries:
        found = [next(entries).name for _ in range(50)]
        lake.kill("worker", ready=True)
        found += [entry.name for entry in entries]
    assert sorted(found) == sorted(names | {".foremount"})


@pytest.mark.slow
def test_remote_directory_stream_goes_on_over_a_killed_worker(wan_origin: WanOrigin, wan_root: Path) -> None:
    names = {f"{index:05d}" for index in range(3000)}
    write(wan_root, {f"d/{name}": b"" for name in names})
    text = http_lake(f"{wan_origin.url}/{wan_root.name}")
    with mounted(text) as lake, os.scandir(lake.root / "d") as entries:
        found = [next(entries).name for _ in range(50)]
        lake.kill("worker", ready=True)
        found += [entry.name for entry in entries]
    assert sorted(found) == sorted(names)


@pytest.mark.slow
def test_file_being_written_is_complete_though_the_worker_was_killed(scratch: Path) -> None:
    (scratch / "disk").mkdir()
    block = random.Random(6).randbytes(1 << 20)
    with mounted(DISK, scratch) as lake:
        with open(lake.root / "checkpoint", "wb", buffering=0) as file:
            for index in range(12):
                assert file.write(block) == len(block)
                if index % 4 == 1:
                    lake.kill("worker", ready=True)
            os.fsync(file.fileno())
            assert os.fstat(file.fileno()).st_size == 12 << 20
        assert (lake.root / "checkpoint").read_bytes() == block * 12
        os.rename(lake.root / "checkpoint", lake.root / "final")
    assert (scratch / "disk/final").read_bytes() == block * 12


@pytest.mark.slow
def test_held_replaced_file_survives_the_worker_in_passthrough(scratch: Path) -> None:
    with local_lake(scratch) as (lake, files), open(lake.root / "big", "rb") as old:
        assert os.pread(old.fileno(), 10, 0) == files["big"][:10]
        (lake.root / "new").write_bytes(b"new")
        os.rename(lake.root / "new", lake.root / "big")
        lake.kill("worker", ready=True)
        assert old.read() == files["big"]
        assert (lake.root / "big").read_bytes() == b"new"
        with pytest.raises(OSError, match="Stale"):
            os.fchmod(old.fileno(), 0o600)
        assert (lake.root / "big").stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
def test_uncached_read_waits_for_the_next_agent(wan_origin: WanOrigin, wan_root: Path) -> None:
    with remote_lake(wan_origin, wan_root) as (lake, files):
        os.stat(lake.root / "big")
        os.stat(lake.root / "dir/3")
        wan_origin.inject(Fault(kind="stall", path="*/big", after=0, times=1))
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append((lake.root / "big").read_bytes()))
        reader.start()
        counts = f"/{wan_root.name}/big"
        wait_until(lambda: wan_origin.stats()["by_path"].get(counts, {}).get("gets"), "the read at the origin")
        lake.kill("agent", ready=True)
        reader.join(30)
        assert got == [files["big"]]
        assert (lake.root / "dir/3").read_bytes() == files["dir/3"]


@pytest.mark.slow
def test_stopped_agent_does_not_stop_local_and_cached_reads(wan_origin: WanOrigin, wan_root: Path) -> None:
    with remote_lake(wan_origin, wan_root, deadline="2s") as (lake, files):
        lake.command("fetch", str(lake.root / "dir"))
        os.stat(lake.root / "big")
        agent = lake.pid("agent")
        os.kill(agent, signal.SIGSTOP)
        try:
            for index in range(12):
                assert (lake.root / f"dir/{index}").read_bytes() == files[f"dir/{index}"]
            begun = time.monotonic()
            with pytest.raises(OSError, match="Input/output"):
                (lake.root / "big").read_bytes()
            assert time.monotonic() - begun < 10
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: reads(lake.root / "big") == files["big"], "an agent that answers")


@pytest.mark.slow
@pytest.mark.parametrize("process", ["worker", "agent", "keeper"])
def test_status_answers_in_two_seconds_and_says_so_while_a_process_stands_still(scratch: Path, process: str) -> None:
    """D04"""
    with local_lake(scratch) as (lake, _):
        pid = lake.pid(process)
        os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            said = foremount("status", str(lake.root), "--json", check=False)
            assert time.monotonic() - begun < 4  # half of it is Python's start on a loaded machine
            facts = json.loads(said.stdout)
            assert facts["verdict"] != "serving"
            assert facts["troubles"]
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_stopped_worker_is_replaced_or_goes_on(scratch: Path) -> None:
    with local_lake(scratch) as (lake, files):
        pid = lake.pid("worker")
        os.kill(pid, signal.SIGSTOP)
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append((lake.root / "dir/1").read_bytes()))
        reader.start()
        reader.join(1)
        os.kill(pid, signal.SIGCONT)
        reader.join(30)
        assert got == [files["dir/1"]]


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_keeper_that_was_killed_leaves_one_mount_for_the_next_one(scratch: Path, rounds: int) -> None:
    """D02"""
    write(scratch / "disk", {"f": b"content"})
    with mounted(DISK, scratch) as lake:
        for _ in range(rounds):
            keeper = lake.pid("keeper")
            os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: not is_running(keeper), "the keeper's end")  # noqa: B023
            foremount("mount", str(lake.config), str(lake.root))
            assert (lake.root / "f").read_bytes() == b"content"
            assert len([entry for entry in mountinfo.read() if entry.mountpoint == str(lake.root)]) == 1


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_sigterm_twice_in_150_ms_ends_the_mount_cleanly(scratch: Path, rounds: int) -> None:
    """D14"""
    write(scratch / "disk", {"f": b"content"})
    with mounted(DISK, scratch) as lake:
        for _ in range(rounds):
            keeper, children = lake.pid("keeper"), [lake.pid("worker"), lake.pid("agent")]
            os.kill(keeper, signal.SIGTERM)
            time.sleep(0.15)
            if is_running(keeper):
                os.kill(keeper, signal.SIGTERM)
            wait_until(lambda: not any(map(is_running, [keeper, *children])), "the end of all three", 20)  # noqa: B023
            assert not os.path.ismount(lake.root)
            foremount("mount", str(lake.config), str(lake.root))


def test_lazy_unmount_with_an_open_descriptor_ends_in_bounded_time(scratch: Path) -> None:
    """D13"""
    with local_lake(scratch) as (lake, _):
        keeper = lake.pid("keeper")
        with open(lake.root / "big", "rb"):
            subprocess.run(["umount", "-l", str(lake.root)], check=True)
            os.kill(keeper, signal.SIGTERM)
            wait_until(lambda: not is_running(keeper), "the keeper's end", 20)


@pytest.mark.slow
def test_umount_with_an_open_descriptor_ends_in_bounded_time(scratch: Path) -> None:
    """D13"""
    with local_lake(scratch) as (lake, _):
        keeper = lake.pid("keeper")
        with open(lake.root / "big", "rb"):
            os.kill(keeper, signal.SIGTERM)
            wait_until(lambda: not is_running(keeper), "the keeper's end", 30)


def reads(path: Path) -> bytes | None:
    """Return the content, None where reading it fails."""
    try:
        return path.read_bytes()
    except OSError:
        return None
