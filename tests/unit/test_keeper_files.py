"""What the keeper writes and reads: state file, status lines, /proc, the run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs import rundir
from vfs.keeper import code, mounting, procfs, report, service, state

A_STATE = state.KeeperState(
    pid=10, starttime=20, mountpoint="/mnt/lake", config="/etc/foremount.toml", phase=state.SERVING, connection=39,
    flags=1 << 37, passthrough=True, worker=state.ChildState(11, 21, True, 2, "killed by SIGKILL"), since=1.5,
)  # fmt: skip


def test_state_is_read_back_as_written(tmp_path: Path) -> None:
    path = str(tmp_path / "keeper.json")
    state.write(path, A_STATE)
    assert state.read(path) == A_STATE
    assert os.listdir(tmp_path) == ["keeper.json"]


def test_fields_that_a_keeper_of_another_version_wrote_are_left_out() -> None:
    later = json.loads(state.encode(A_STATE)) | {"colour": "red"}
    later["worker"]["mood"] = "fine"
    del later["upgrade"]
    assert state.decode(json.dumps(later)) == A_STATE


def test_request_for_an_upgrade_is_read_back_as_written(tmp_path: Path) -> None:
    path = str(tmp_path / "upgrade.json")
    wanted = code.Wanted("7", code.Code("/opt/foremount/bin/python", "", "2.0"))
    code.ask(path, wanted)
    assert code.asked(path) == wanted


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "1", "code": {"python": "/bin/python"}}'])
def test_request_for_an_upgrade_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "upgrade.json").write_text(text)
    with pytest.raises(ValueError):
        code.asked(str(tmp_path / "upgrade.json"))


def test_absent_state_is_none_and_removing_it_twice_is_fine(tmp_path: Path) -> None:
    assert state.read(str(tmp_path / "none")) is None
    state.remove(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format": 2}', '{"format": 1}', state.encode(A_STATE).replace('"pid"', '"pit"')],
    ids=["empty", "a list", "cut", "another format", "without fields", "without a field"],
)
def test_broken_state_is_refused(text: str) -> None:
    with pytest.raises(state.BrokenState):
        state.decode(text)


@pytest.mark.parametrize(
    ("received", "lines", "rest"),
    [
        pytest.param(b"ready\n", ["ready"], b"", id="one"),
        pytest.param(b"beat\nbea", ["beat"], b"bea", id="cut"),
        pytest.param(b"\n\nbeat\n", ["beat"], b"", id="empty lines"),
        pytest.param(b"x" * 5000, [], b"", id="endless line is dropped"),
    ],
)
def test_status_lines_are_split(received: bytes, lines: list[str], rest: bytes) -> None:
    assert report.split_lines(b"", received) == (lines, rest)


def test_status_pipe_writes_one_line_each_and_flattens_reasons() -> None:
    reading, writing = os.pipe()
    pipe = report.StatusPipe(writing)
    pipe.ready()
    pipe.beat()
    pipe.failed("cache:\n another daemon\tholds it")
    assert os.read(reading, 1000) == b"ready\nbeat\nfailed cache: another daemon holds it\n"
    os.close(reading)
    pipe.beat()  # nobody reads any more: no error
    os.close(writing)


def test_full_status_pipe_does_not_block_the_child() -> None:
    reading, writing = os.pipe()
    pipe = report.StatusPipe(writing)
    for _ in range(20000):
        pipe.beat()
    assert set(os.read(reading, 1 << 20).split(b"\n")) == {b"beat", b""}
    os.close(reading)
    os.close(writing)


def test_process_name_with_parentheses_and_spaces_does_not_shift_the_fields() -> None:
    line = b"42 (a) b) S (x) T 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2\n"
    assert procfs.parse_stat(line) == procfs.ProcessFacts("T", 987654)


def test_own_process_is_the_same_and_another_start_time_is_not() -> None:
    own = procfs.look(os.getpid())
    assert own is not None
    assert procfs.is_same(os.getpid(), own.starttime)
    assert not procfs.is_same(os.getpid(), own.starttime - 1)


def test_signal_goes_to_the_recorded_process_only() -> None:
    child = subprocess.Popen(["sleep", "60"])
    facts = procfs.look(child.pid)
    assert facts is not None
    assert not procfs.signal_same(child.pid, facts.starttime + 1, signal.SIGKILL)
    assert child.poll() is None
    assert not procfs.wait_gone(child.pid, facts.starttime, 0.0)
    assert procfs.signal_same(child.pid, facts.starttime, signal.SIGKILL)
    assert procfs.wait_gone(child.pid, facts.starttime, 5.0)
    child.wait()
    assert not procfs.signal_same(child.pid, facts.starttime, signal.SIGKILL)
    assert procfs.wait_gone(child.pid, facts.starttime, 0.0)
    assert procfs.look(child.pid) is None


def test_child_of_a_dead_parent_ends_at_once() -> None:
    program = "from vfs.keeper.orphan import die_with_parent; die_with_parent(1); print('lives')"
    ran = subprocess.run([sys.executable, "-c", program], env=code.child_environ(), capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, b"")


def test_child_dies_with_its_parent() -> None:
    child = (
        "import os,sys,signal; from vfs.keeper.orphan import die_with_parent; die_with_parent(os.getppid())\n"
        "print(os.getpid(), flush=True); signal.pause()"
    )
    parent = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {child!r}])"
    started = subprocess.Popen([sys.executable, "-c", parent], env=code.child_environ(), stdout=subprocess.PIPE)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    facts = procfs.look(pid)
    assert facts is not None
    started.kill()
    started.wait()
    assert procfs.wait_gone(pid, facts.starttime, 5.0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/mnt/lake", "mnt-lake"),
        ("/", "-"),
        ("/mnt/a-b", "mnt-a\\x2db"),
        ("/mnt/a b", "mnt-a\\x20b"),
        ("/.hidden", "\\x2ehidden"),
        ("/mnt/ü", "mnt-\\xc3\\xbc"),
    ],
)
def test_mount_point_is_escaped_as_systemd_does(path: str, name: str) -> None:
    assert rundir.escape(path) == name


@given(st.lists(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1), min_size=1))
def test_escaped_name_is_one_file_name_that_fits(parts: list[str]) -> None:
    name = rundir.escape("/" + "/".join(parts))
    assert "/" not in name
    assert name not in (".", "..")
    assert 0 < len(name.encode()) <= 64


def test_sockets_of_the_longest_mount_point_can_be_bound() -> None:
    name = rundir.escape("/mnt/" + "x" * 4000)
    run_dir = rundir.RunDir(f"/run/user/4294967294/foremount/{name}")
    for path in (run_dir.agent_socket, run_dir.admin_socket, run_dir.worker_socket):
        assert len(os.fsencode(path)) <= 107  # sun_path without its NUL


def test_long_mount_points_with_one_beginning_have_different_names() -> None:
    first, second = (rundir.escape("/" + "x" * 300 + end) for end in "ab")
    assert first != second


@pytest.mark.parametrize(
    ("uid", "environ", "base"),
    [
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/foremount"),
        (1000, {"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/foremount"),
        (1000, {}, "/tmp/foremount-1000"),
        (1000, {"XDG_RUNTIME_DIR": "relative"}, "/tmp/foremount-1000"),
    ],
)
def test_run_directories_lie_where_the_user_may_write(uid: int, environ: dict[str, str], base: str) -> None:
    assert rundir.base_dir(uid, environ) == base


def test_run_directory_is_created_for_its_user_alone(tmp_path: Path) -> None:
    directory = rundir.RunDir(str(tmp_path / "foremount" / "mnt-lake"))
    rundir.create(directory)
    rundir.create(directory)
    assert os.stat(directory.path).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "foremount").st_mode & 0o777 == 0o755


def test_run_directory_in_a_place_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(rundir.UnsafeRunDir, match="other users"):
        rundir.create(rundir.RunDir(str(tmp_path / "open" / "mnt")))


def test_run_directory_behind_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(rundir.UnsafeRunDir, match="no directory"):
        rundir.create(rundir.RunDir(str(tmp_path / "link" / "mnt")))


def test_settled_path_has_no_symlinks_and_needs_not_exist(tmp_path: Path) -> None:
    (tmp_path / "real" / "mnt").mkdir(parents=True)
    (tmp_path / "parent").symlink_to("real")
    (tmp_path / "last").symlink_to("parent/mnt")
    real = os.path.realpath(tmp_path)
    assert rundir.settle(str(tmp_path / "parent" / "mnt")) == f"{real}/real/mnt"
    assert rundir.settle(str(tmp_path / "last")) == f"{real}/real/mnt"
    assert rundir.settle(str(tmp_path / "absent")) == f"{real}/absent"
    assert rundir.settle("/") == "/"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-9, "killed by SIGKILL"),
        (-64, "killed by SIGRTMAX"),
        (-50, "killed by signal 50"),
    ],
)
def test_end_of_a_child_is_put_in_words(status: int, words: str) -> None:
    assert service.describe_exit(status) == words


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("user_allow_other\n", True), ("#user_allow_other\n", False), ("  user_allow_other \nmount_max = 3", True), ("", False)],
)
def test_fuse_conf_allows_other_users_only_on_a_line_of_its_own(tmp_path: Path, text: str, allowed: bool) -> None:
    (tmp_path / "fuse.conf").write_text(text)
    assert mounting.user_allow_other(str(tmp_path / "fuse.conf")) is allowed
    assert not mounting.user_allow_other(str(tmp_path / "absent"))


def test_keeper_imports_only_the_standard_library() -> None:
    program = (
        "import sys; before=set(sys.modules); import vfs.keeper.__main__\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules)-before} - set(sys.stdlib_module_names)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=code.child_environ(), capture_output=True, text=True, check=True
    )
    assert ran.stdout == "['vfs']\n"


def test_process_that_forbids_core_dumps_leaves_none_and_shows_its_memory_to_root_alone() -> None:
    program = (
        "import ctypes, resource\n"
        "from vfs.keeper.secrecy import forbid_core_dumps\n"
        "forbid_core_dumps()\n"
        "print(ctypes.CDLL(None).prctl(3), resource.getrlimit(resource.RLIMIT_CORE)[0])\n"  # PR_GET_DUMPABLE
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=code.child_environ(), capture_output=True, text=True, check=True
    )
    assert ran.stdout == "0 0\n"
