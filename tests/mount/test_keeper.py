"""The keeper on a real mount. Its children are a stand-in (`stand_in.py`), so that only the keeper is judged here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from vfs import rundir
from vfs.cli import locate, mount, umount
from vfs.cli.mount import start_keeper
from vfs.errors import Busy, ForemountError, NotFound, Unavailable
from vfs.keeper import mountinfo, mounting, procfs, state
from vfs.keeper.code import child_environ
from vfs.keeper.service import Options

pytestmark = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse on this machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting with mount(2) needs root"),
]
STAND_IN = [sys.executable, "-P", str(Path(__file__).with_name("stand_in.py"))]
CONTENT = b"what the keeper test reads\n"
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
AS_NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""May read everything, as the interpreter may lie in a home directory, and is an ordinary user in all else."""
SHORT = {"busy_grace_s": 0.5, "terminate_s": 0.5, "stop_total_s": 5.0}


@dataclass
class Mounted:
    """One mount point under test."""

    mountpoint: Path
    directory: rundir.RunDir

    def start(self, *, worker: list[str] = STAND_IN, agent: list[str] = STAND_IN, limits: dict[str, float] = SHORT) -> int:
        """Start a keeper; return its pid once the mount answers."""
        rundir.create(self.directory)
        options = Options(
            mountpoint=str(self.mountpoint),
            config="/dev/null",
            run_dir=self.directory.path,
            read_ahead_kb=1024,
            commands={"worker": worker, "agent": agent},
            limits=limits,
        )
        return start_keeper(self.directory, options, 30.0)

    def state(self) -> state.KeeperState:
        """Return what the keeper has written."""
        held = state.read(self.directory.state)
        assert held is not None
        return held

    def entries(self) -> list[mountinfo.MountEntry]:
        """Return what is mounted here."""
        return [entry for entry in mountinfo.read() if entry.mountpoint == str(self.mountpoint)]

    def located(self) -> locate.Located:
        """Return the mount as commands see it."""
        return locate.Located(self.directory, str(self.mountpoint), state.read(self.directory.state))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    """A place to mount; whatever was mounted there is gone afterwards."""
    mountpoint = Path(os.path.realpath(tmp_path)) / "mnt"
    mountpoint.mkdir()
    place = Mounted(mountpoint, rundir.run_dir(str(mountpoint)))
    yield place
    with contextlib.suppress(NotFound):
        umount.force_end(place.located())
    while place.entries():
        assert mounting.unmount(str(mountpoint), lazy=True) == "done"
    shutil.rmtree(place.directory.path, ignore_errors=True)


def wait_for(what: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll until it holds."""
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "it has not come true in time"
        time.sleep(0.01)


def outside(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own: if it touches a hung mount, it hangs and not the test."""
    command = [sys.executable, "-P", "-m", "vfs.cli", *arguments]
    return subprocess.run(command, env=child_environ(), capture_output=True, text=True, timeout=20, check=False)


def descriptors(pid: int) -> list[str]:
    """Return what the process has open."""
    return [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]


def ended(pid: int, timeout_s: float = 10.0) -> bool:
    """Collect the keeper, a child of this process, within the time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


def test_mount_answers_and_the_state_file_says_what_was_agreed(mounted: Mounted) -> None:
    pid = mounted.start()
    assert (mounted.mountpoint / "file").read_bytes() == CONTENT
    held = mounted.state()
    (entry,) = mounted.entries()
    assert (held.pid, held.phase, held.connection, entry.fs_type) == (pid, "serving", entry.minor, "fuse.foremount")
    assert held.read_ahead_kb == 1024
    assert held.worker.ready
    assert procfs.is_same(held.agent.pid, held.agent.starttime)
    umount.ask_to_end(mounted.located(), 10.0)
    assert ended(pid)
    assert mounted.entries() == []
    assert not os.path.exists(mounted.directory.state)


def test_keeper_holds_one_fuse_descriptor_and_nothing_inherited(mounted: Mounted, tmp_path: Path) -> None:
    with open(tmp_path / "leak", "w") as leak:
        os.set_inheritable(leak.fileno(), True)
        pid = mounted.start()
    links = descriptors(pid)
    assert links.count("/dev/fuse") == 1
    assert not any("leak" in link for link in links)
    assert "/dev/fuse" not in descriptors(mounted.state().agent.pid)


def test_killed_children_are_replaced_and_no_reader_notices(mounted: Mounted) -> None:
    mounted.start()
    with open(mounted.mountpoint / "file", "rb", buffering=0) as file:
        for round_number in range(1, 6):
            os.kill(mounted.state().worker.pid, signal.SIGKILL)
            assert os.pread(file.fileno(), 100, 0) == CONTENT
            os.stat(mounted.mountpoint / "file")
            wait_for(lambda: mounted.state().worker.restarts >= round_number)  # noqa: B023
            wait_for(lambda: mounted.state().worker.ready)
    os.kill(mounted.state().agent.pid, signal.SIGKILL)
    wait_for(lambda: mounted.state().agent.restarts == 1)
    assert mounted.state().worker.last_exit == "killed by SIGKILL"


@pytest.mark.slow
def test_killed_keeper_takes_its_children_along_and_the_next_one_detaches_the_dead_mount(mounted: Mounted) -> None:
    for _ in range(5):
        pid = mounted.start()
        held = mounted.state()
        os.kill(pid, signal.SIGKILL)
        assert ended(pid)
        for child in (held.worker, held.agent):
            assert procfs.wait_gone(child.pid, child.starttime, 5.0)
        wait_for(lambda: mounting.probe(str(mounted.mountpoint)) == "dead")
    mounted.start()
    assert len(mounted.entries()) == 1
    assert (mounted.mountpoint / "file").read_bytes() == CONTENT


@contextlib.contextmanager
def held_by_the_kernel(mounted: Mounted) -> Iterator[subprocess.Popen[bytes]]:
    """A mount whose worker has a thread that not even SIGKILL ends, and a reader whose page is the reason."""
    mounted.start(worker=[*STAND_IN, "--held-first"])
    reader = subprocess.Popen(["cat", mounted.mountpoint / "file"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    tasks = Path(f"/proc/{mounted.state().worker.pid}/task")
    wait_for(lambda: any(procfs.parse_stat((task / "stat").read_bytes()).state == "D" for task in tasks.iterdir()))
    with reader:
        yield reader


def test_killed_worker_that_the_kernel_holds_has_a_successor_which_answers_what_it_waits_for(mounted: Mounted) -> None:
    with held_by_the_kernel(mounted) as reader:
        first = mounted.state().worker
        os.kill(first.pid, signal.SIGKILL)
        assert reader.communicate(timeout=10)[0] == CONTENT
    wait_for(lambda: not os.path.exists(f"/proc/{first.pid}"))  # collected by the keeper
    held = mounted.state().worker
    assert (held.restarts, held.last_exit) == (1, "killed, with a thread that waits in the kernel")


def test_worker_that_the_kernel_holds_does_not_hold_up_umount_by_force(mounted: Mounted) -> None:
    with held_by_the_kernel(mounted) as reader:
        held = mounted.state()
        os.kill(held.pid, signal.SIGSTOP)  # nobody starts another worker
        os.kill(held.worker.pid, signal.SIGKILL)
        assert outside("umount", "--force", str(mounted.mountpoint)).returncode == 0
        assert reader.wait(5.0) != 0
    assert ended(held.pid)
    assert mounted.entries() == []


@pytest.mark.parametrize("way", ["umount", "mount"])
def test_dead_mount_whose_worker_the_kernel_holds_is_detached(mounted: Mounted, way: str) -> None:
    with held_by_the_kernel(mounted) as reader:
        keeper = mounted.state().pid
        os.kill(keeper, signal.SIGKILL)
        assert ended(keeper)
        if way == "umount":
            assert outside("umount", str(mounted.mountpoint)).returncode == 0
        else:
            mounted.start()
            assert (mounted.mountpoint / "file").stat().st_size == len(CONTENT)
        assert reader.wait(5.0) != 0
    assert len(mounted.entries()) == (way == "mount")


def test_dead_mount_of_a_lost_run_directory_is_detached_too(mounted: Mounted) -> None:
    pid = mounted.start()
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    state.remove(mounted.directory.state)
    wait_for(lambda: mounting.probe(str(mounted.mountpoint)) == "dead")
    mounted.start()
    assert len(mounted.entries()) == 1


def test_second_keeper_on_a_live_mount_is_refused_and_the_first_serves_on(mounted: Mounted) -> None:
    mounted.start()
    with pytest.raises(Unavailable, match="another keeper runs"):
        mounted.start()
    assert (mounted.mountpoint / "file").read_bytes() == CONTENT
    assert mounted.state().phase == "serving"


def test_live_foremount_of_another_run_directory_is_refused(mounted: Mounted, tmp_path: Path) -> None:
    mounted.start()
    other = Mounted(mounted.mountpoint, rundir.RunDir(str(tmp_path / "run2")))
    with pytest.raises(Unavailable, match="not recorded in this run directory"):
        other.start()
    assert len(mounted.entries()) == 1


def test_other_file_system_on_the_mount_point_is_refused(mounted: Mounted) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", mounted.mountpoint], check=True)
    with pytest.raises(Unavailable, match=r"none \(tmpfs\) is mounted"):
        mounted.start()
    assert [entry.fs_type for entry in mounted.entries()] == ["tmpfs"]


def test_child_that_never_starts_gives_the_mount_up_with_its_reason_and_leaves_nothing(
    mounted: Mounted, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ForemountError, match="the agent does not start: exit status 3: the cache is held by another"):
        mounted.start(agent=[*STAND_IN, "--fail", "the cache is held by another"])
    assert mounted.entries() == []
    assert mounted.state().phase == "failed"
    assert "started the agent" in capfd.readouterr().err  # the last lines of the log are shown


def test_program_that_does_not_exist_gives_the_mount_up(mounted: Mounted) -> None:
    with pytest.raises(ForemountError, match="the worker does not start: can't be started: No such file"):
        mounted.start(worker=["/nonexistent/python"])
    assert mounted.entries() == []


def test_sigterm_twice_within_150_ms_ends_cleanly(mounted: Mounted) -> None:
    for _ in range(5):
        pid = mounted.start()
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)  # what is tested, not a wait for something
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        assert ended(pid)
        assert mounted.entries() == []


def test_lazy_unmount_and_sigterm_end_while_a_descriptor_is_open(mounted: Mounted) -> None:
    pid = mounted.start()
    descriptor = os.open(mounted.mountpoint / "file", os.O_RDONLY)
    try:
        subprocess.run(["umount", "-l", mounted.mountpoint], check=True)
        assert os.pread(descriptor, 100, 0) == CONTENT  # who has it open reads on
        os.kill(pid, signal.SIGTERM)
        assert ended(pid, 6.0)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_lazy_unmount_ends_the_keeper_when_the_last_descriptor_is_closed(mounted: Mounted) -> None:
    pid = mounted.start()
    descriptor = os.open(mounted.mountpoint / "file", os.O_RDONLY)
    subprocess.run(["umount", "-l", mounted.mountpoint], check=True)
    assert os.pread(descriptor, 100, 0) == CONTENT
    os.close(descriptor)
    assert ended(pid, 6.0)


def test_stop_with_an_open_descriptor_detaches_after_the_grace(mounted: Mounted) -> None:
    pid = mounted.start()
    descriptor = os.open(mounted.mountpoint / "file", os.O_RDONLY)
    os.kill(pid, signal.SIGTERM)
    assert ended(pid, 6.0)
    assert mounted.entries() == []
    with pytest.raises(OSError, match="endpoint"):
        os.pread(descriptor, 100, 0)
    with pytest.raises(OSError, match="endpoint"):
        os.close(descriptor)


@pytest.mark.parametrize("name", ["worker", "agent"])
def test_stopped_child_does_not_keep_the_stop(mounted: Mounted, name: str) -> None:
    pid = mounted.start()
    child = mounted.state().children[name]
    os.kill(child.pid, signal.SIGSTOP)
    umount.ask_to_end(mounted.located(), 10.0)
    assert ended(pid)
    assert procfs.wait_gone(child.pid, child.starttime, 0.0)
    assert mounted.entries() == []


def test_children_that_ignore_sigterm_are_killed(mounted: Mounted) -> None:
    pid = mounted.start(agent=[*STAND_IN, "--hold-on"])
    started = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert ended(pid)
    assert time.monotonic() - started < 4.0
    assert "the agent ended: killed by SIGKILL" in Path(mounted.directory.log("keeper")).read_text()


def test_stopped_keeper_is_continued_to_end_the_mount(mounted: Mounted) -> None:
    pid = mounted.start()
    os.kill(pid, signal.SIGSTOP)
    umount.ask_to_end(mounted.located(), 10.0)
    assert ended(pid)
    assert mounted.entries() == []


def test_force_ends_a_mount_whose_three_processes_are_stopped_and_frees_its_callers(mounted: Mounted) -> None:
    pid = mounted.start()
    held = mounted.state()
    for stopped in (held.pid, held.worker.pid, held.agent.pid):
        os.kill(stopped, signal.SIGSTOP)
    waiting = subprocess.Popen(["stat", mounted.mountpoint / "other"], stderr=subprocess.DEVNULL)
    assert mounting.probe(str(mounted.mountpoint), 0.3) == "hangs"
    assert waiting.poll() is None
    started = time.monotonic()
    assert umount.force_end(mounted.located()) == "by force, 3 processes killed"
    assert time.monotonic() - started < 5.0
    assert ended(pid)
    assert waiting.wait(5.0) != 0
    assert mounted.entries() == []


def test_aborted_connection_ends_the_keeper_and_leaves_no_dead_mount(mounted: Mounted) -> None:
    pid = mounted.start()
    assert mounting.abort_connection(mounted.state().connection)
    assert ended(pid)
    assert mounted.entries() == []


def test_unmount_from_outside_ends_everything(mounted: Mounted) -> None:
    pid = mounted.start()
    held = mounted.state()
    subprocess.run(["umount", mounted.mountpoint], check=True)
    assert ended(pid)
    assert procfs.wait_gone(held.agent.pid, held.agent.starttime, 1.0)
    assert not os.path.exists(mounted.directory.state)


def test_usr1_reaches_the_children(mounted: Mounted) -> None:
    pid = mounted.start()
    os.kill(pid, signal.SIGUSR1)
    for name in ("worker", "agent"):
        wait_for(lambda: "most recent call first" in Path(mounted.directory.stderr(name)).read_text())  # noqa: B023
    assert mounted.state().worker.restarts == 0


def test_umount_of_a_dead_mount_detaches_it_and_of_nothing_says_so(mounted: Mounted) -> None:
    pid = mounted.start()
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    assert umount.ask_to_end(mounted.located(), 1.0) == "its keeper was gone"
    assert mounted.entries() == []
    with pytest.raises(NotFound, match="no foremount is mounted there"):
        umount.ask_to_end(mounted.located(), 1.0)
    with pytest.raises(NotFound, match="no foremount is mounted there"):
        umount.force_end(mounted.located())


def test_silent_worker_is_killed_and_replaced(mounted: Mounted) -> None:
    mounted.start(worker=[*STAND_IN, "--silent-first"], limits={**SHORT, "silence_s": 1.0})
    wait_for(lambda: mounted.state().worker.restarts == 1)
    assert mounted.state().worker.last_exit == "silent for 1 s, killed"
    assert (mounted.mountpoint / "file").read_bytes() == CONTENT


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user can go to: pytest's own are its user's alone, and made so again by each run that starts."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(os.path.realpath(directory))


def test_ordinary_user_mounts_through_fusermount3_without_passthrough(public: Path) -> None:
    """As user 65534, in a mount namespace whose /dev/fuse everybody can open, as udev makes it and containers often don't."""
    home = public / "home"
    (home / "mnt").mkdir(parents=True)
    for path in (home, home / "mnt"):
        os.chown(path, 65534, 65534)
    options = Options(
        str(home / "mnt"), "/dev/null", str(home / "run"), commands={"worker": STAND_IN, "agent": STAND_IN}, limits=SHORT
    )
    program = (
        "import json,sys; from vfs import rundir; from vfs.cli.mount import start_keeper\n"
        "from vfs.keeper import mountinfo, state\n"
        "from vfs.keeper.service import Options; from vfs.cli import umount, locate\n"
        "options=Options(**json.load(sys.stdin)); directory=rundir.RunDir(options.run_dir); rundir.create(directory)\n"
        "start_keeper(directory, options, 30.0); print(open(options.mountpoint+'/file').read().strip())\n"
        "held=state.read(directory.state); print(held.why_no_passthrough)\n"
        "print(umount.ask_to_end(locate.Located(directory, options.mountpoint, held), 10.0))\n"
        "print(mountinfo.on_top(mountinfo.read(), options.mountpoint))\n"
    )
    node = public / "fuse"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(10, 229))
    node.chmod(0o666)
    enter = f'mount --bind {node} /dev/fuse && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", enter, "sh", *AS_NOBODY, sys.executable, "-c", program]
    sent = json.dumps(asdict(options))
    ran = subprocess.run(
        command, input=sent, text=True, capture_output=True, timeout=60, env=child_environ(), cwd="/", check=False
    )
    assert ran.stdout.splitlines() == ["what the keeper test reads", "no CAP_SYS_ADMIN", "in order", "None"], ran.stderr


def test_mount_command_refuses_a_live_mount_before_starting_anything(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.start()
    with pytest.raises(Busy, match="is already mounted, by process"):
        mount._check_host(str(mounted.mountpoint))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [("worker",), ("keeper",), ("agent",), ("keeper", "worker", "agent")], ids="+".join)
def test_status_and_doctor_answer_in_two_seconds_and_say_what_to_do_while_processes_are_stopped(
    mounted: Mounted, stopped: tuple[str, ...]
) -> None:
    mounted.start()
    held = mounted.state()
    pids = {"keeper": held.pid, "worker": held.worker.pid, "agent": held.agent.pid}
    for name in stopped:
        os.kill(pids[name], signal.SIGSTOP)
    for name in stopped:
        wait_for(lambda: (facts := procfs.look(pids[name])) is not None and facts.state == "T")  # noqa: B023
    for command in ("status", "doctor"):
        started = time.monotonic()
        outside(command, "/nothing")
        interpreter_s = time.monotonic() - started  # on a loaded machine most of the time goes into starting Python
        started = time.monotonic()
        ran = outside(command, str(mounted.mountpoint), "--json")
        if command == "status" or "worker" in stopped:
            assert time.monotonic() - started < 2.0 + interpreter_s
        assert ran.returncode == 1
        for name in stopped if command == "status" else stopped[:1]:
            assert f"the {name} is stopped" in ran.stdout
            assert f"kill -CONT {pids[name]}" in ran.stdout


def test_doctor_reads_a_live_mount_as_frameworks_do(mounted: Mounted) -> None:
    mounted.start()
    arguments = ["doctor", str(mounted.mountpoint), "--file", str(mounted.mountpoint / "file"), "--json"]
    checks = {check["name"]: check for check in json.loads(outside(*arguments).stdout)["mount"]}
    for name in ("statfs", "read", "seek", "mmap shared", "mmap private", "flock shared", "sendfile"):
        assert checks[name]["verdict"] == "ok", checks[name]
    assert checks["read-ahead"]["found"] == "1024 KiB in force"
    assert checks["rename over"]["verdict"] == "skipped"


def test_systemd_is_told_ready_watchdog_and_stopping(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{mounted.directory.path}")  # abstract: written "@…" in the environment
        listener.settimeout(10.0)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{mounted.directory.path}")
        pid = mounted.start()
        os.kill(pid, signal.SIGTERM)
        heard: list[bytes] = []
        while b"STOPPING=1" not in heard:
            heard.append(listener.recv(1000))
        assert b"READY=1\nSTATUS=serving" in heard
        assert b"WATCHDOG=1" in heard
        assert ended(pid)
