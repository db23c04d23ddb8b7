"""What a training host does to a mount: signals, namespaces, many mounts at once, huge directories, and bugs of ours."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lake import DISK, Lake, foremount, http_lake, is_running, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import Fault, WanOrigin
from tests.servers.wan_origin import wan_origin as start_wan_origin

pytestmark = MOUNT
BROKEN_READLINK = """
import sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "vfs.kernel.operations":  # the worker's own import: everything below it is there
            import vfs.filesystem.filesystem as module

            async def readlink(self, ino):
                raise ZeroDivisionError("a bug")

            module.FileSystem.readlink = readlink
        return None

sys.meta_path.insert(0, Finder())
"""


@contextmanager
def disk_lake(base: Path, **files: bytes) -> Iterator[Lake]:
    """Mount a local directory with these files."""
    (base / "disk").mkdir(parents=True)
    for name, content in files.items():
        (base / "disk" / name).write_bytes(content)
    with mounted(DISK, base) as lake:
        yield lake


@pytest.mark.slow
def test_bug_in_a_handler_is_an_errno_and_one_record_and_the_worker_lives(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (scratch / "bug").mkdir()
    (scratch / "bug/sitecustomize.py").write_text(BROKEN_READLINK)
    monkeypatch.setenv("PYTHONPATH", str(scratch / "bug"), prepend=os.pathsep)
    with disk_lake(scratch, f=b"content") as lake:
        (lake.root / "link").symlink_to("f")
        worker = lake.pid("worker")
        with pytest.raises(OSError, match="Input/output error") as raised:
            os.readlink(lake.root / "link")
        assert raised.value.errno == errno.EIO
        assert (lake.root / "f").read_bytes() == b"content"
        assert lake.pid("worker") == worker
        assert lake.log("worker").count("ZeroDivisionError: a bug") == 1


@pytest.mark.slow
def test_signals_do_not_reach_a_reader_of_a_slow_origin(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D37"""
    (wan_root / "f").write_bytes(os.urandom(2 << 20))
    reader = textwrap.dedent("""
        import ctypes, os, signal, sys
        ticks = 0
        def tick(*_):
            global ticks
            ticks += 1
        signal.signal(signal.SIGALRM, tick)
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        libc = ctypes.CDLL(None, use_errno=True)  # Python itself repeats calls that EINTR ended
        fd = os.open(sys.argv[1], os.O_RDONLY)
        buffer, content = ctypes.create_string_buffer(1 << 16), b""
        while (count := libc.read(fd, buffer, len(buffer))) > 0:
            content += buffer.raw[:count]
        signal.setitimer(signal.ITIMER_REAL, 0)  # a write to the pipe that a signal cuts short would lose bytes
        sys.stdout.buffer.write(content)
        assert count == 0, os.strerror(ctypes.get_errno())
        assert ticks, "no signal came"
    """)
    with mounted(http_lake(f"{wan_origin.url}/{wan_root.name}")) as lake:
        wan_origin.shape(rtt_ms=50)
        done = subprocess.run([sys.executable, "-c", reader, lake.root / "f"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == (wan_root / "f").read_bytes()


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_consumer_in_a_mount_namespace_of_its_own_sees_every_recovery(scratch: Path, kills: int) -> None:
    """D03"""
    subprocess.run(["mount", "--bind", scratch, scratch], check=True)
    try:
        subprocess.run(["mount", "--make-shared", scratch], check=True)
        with disk_lake(scratch, f=b"content") as lake, consumer(lake.root / "f") as ask:
            held = ask("hold")
            for _ in range(kills):
                lake.kill("worker")
                assert ask("open") == ask("held") == held == "content"  # a killed worker costs no handle
                keeper = lake.pid("keeper")
                os.kill(keeper, signal.SIGKILL)
                wait_until(lambda: not is_running(keeper), "the keeper's end")  # noqa: B023
                assert ask("held") == "content"  # the kernel has the file itself
                foremount("mount", str(lake.config), str(lake.root))
                assert ask("open") == "content"
                assert ask("hold") == "content"
    finally:
        subprocess.run(["umount", "-l", scratch], check=True)


@contextmanager
def consumer(path: Path) -> Iterator[Callable[[str], str]]:
    """A process that got the host's mounts when it began and those that came later by propagation alone."""
    program = textwrap.dedent("""
        import errno, os, sys
        held = None
        for line in sys.stdin:
            try:
                if line.strip() == "hold":
                    held = open(sys.argv[1], "rb", buffering=0)
                if line.strip() == "open":
                    with open(sys.argv[1], "rb") as file:
                        said = file.read().decode()
                else:
                    said = os.pread(held.fileno(), 100, 0).decode()
            except OSError as exc:
                said = errno.errorcode[exc.errno]
            print(said, flush=True)
    """)
    command = ["unshare", "--mount", "--propagation", "slave", sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(question: str) -> str:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(question + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
        process.wait(10)


@pytest.mark.slow
def test_two_mounts_with_writers_end_when_both_are_told_to(scratch: Path) -> None:
    """D17"""
    with disk_lake(scratch / "one", f=b"1") as one, disk_lake(scratch / "two", f=b"2") as two:
        keepers = [lake.pid("keeper") for lake in (one, two)]
        files = [open(lake.root / "new", "wb", buffering=0) for lake in (one, two)]  # noqa: SIM115
        for file in files:
            file.write(b"acknowledged")
        for keeper in keepers:
            os.kill(keeper, signal.SIGTERM)
        for keeper in keepers:
            wait_until(lambda: not is_running(keeper), "the keeper's end")  # noqa: B023
        assert [(lake.base / "disk/new").read_bytes() for lake in (one, two)] == [b"acknowledged"] * 2
        for file in files:
            with contextlib.suppress(OSError):  # ENOTCONN: the mount is gone, and with it whom the kernel would tell
                file.close()


@pytest.mark.slow
def test_many_mounts_that_start_at_once_all_come_up(scratch: Path, wan_origin: WanOrigin, wan_root: Path) -> None:
    """D19"""
    (wan_root / "f").write_bytes(b"content")
    text = http_lake(f"{wan_origin.url}/{wan_root.name}")
    with ThreadPoolExecutor(12) as pool, ExitStack() as stack:
        bases = [scratch / f"{index}" for index in range(12)]
        for base in bases:
            base.mkdir()
        for lake in pool.map(lambda base: stack.enter_context(mounted(text, base)), bases):
            assert (lake.root / "f").read_bytes() == b"content"


@pytest.mark.slow
def test_one_dead_site_does_not_disturb_the_others(tmp_path: Path, wan_origin: WanOrigin, wan_root: Path) -> None:
    """D92"""
    (wan_root / "f").write_bytes(b"content" * 100_000)
    with other_origin(tmp_path / "other", b"other" * 100_000) as other:
        text = http_lake(f"{wan_origin.url}/{wan_root.name}", deadline="3s").replace('prefix = "/"', 'prefix = "/a"')
        text += f'[sites.b]\nkind = "http"\nurl = "{other.url}"\n[[mounts]]\nprefix = "/b"\nsite = "b"\n'
        with mounted(text) as lake:
            other.inject(Fault("stall"))
            with ThreadPoolExecutor(4) as pool:
                stuck = [pool.submit((lake.root / "b/f").read_bytes) for _ in range(4)]
                assert (lake.root / "a/f").read_bytes() == b"content" * 100_000
                assert [type(future.exception(30)) for future in stuck] == [OSError] * 4
            other.heal()
            assert (lake.root / "b/f").read_bytes() == b"other" * 100_000


@contextmanager
def other_origin(root: Path, content: bytes) -> Iterator[WanOrigin]:
    root.mkdir()
    (root / "f").write_bytes(content)
    with start_wan_origin(root, rtt_ms=0, mbit=0) as server:
        yield server


@pytest.mark.slow
def test_leftovers_of_a_huge_cache_do_not_keep_a_mount_from_starting(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D05: while the origin is away, too."""
    (wan_root / "f").write_bytes(b"content")
    with mounted(http_lake(f"{wan_origin.url}/{wan_root.name}", deadline="2s")) as lake:
        assert (lake.root / "f").read_bytes() == b"content"
        data = next((lake.base / "cache").rglob("*.data")).parent
        foremount("umount", str(lake.root))
        for index in range(100_000):
            (data / f"{index:064x}.data").touch()
        wan_origin.inject(Fault("stall"))
        foremount("mount", str(lake.config), str(lake.root), timeout_s=20)
        assert (lake.root / "f").read_bytes() == b"content"
