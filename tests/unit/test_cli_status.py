"""status: what it makes of real processes that run, are stopped, dead or hang. Mounts are in tests/mount."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vfs import rundir
from vfs.cli import main
from vfs.cli.status import Process, _agent_rows, diagnose, troubles_of_agent
from vfs.errors import Unavailable
from vfs.keeper import mountinfo, procfs, state

MOUNTPOINT = "/mnt/lake"
ENTRY = mountinfo.MountEntry(90, 28, 0, 39, MOUNTPOINT, "fuse.foremount", "foremount", "rw")


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three real processes that stand for keeper, worker and agent."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]) -> rundir.RunDir:
    """The run directory of a mount that serves with these processes, as far as its state file and the table say."""
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    monkeypatch.setattr(mountinfo, "read", lambda: [ENTRY])
    found = rundir.run_dir(MOUNTPOINT)
    rundir.create(found)
    keeper, worker, agent = ((process.pid, start_time(process.pid)) for process in processes)
    held = state.KeeperState(
        *keeper, MOUNTPOINT, "/etc/c.toml", state.SERVING, 39, passthrough=True, read_ahead_kb=1024, since=time.time(),
        worker=state.ChildState(*worker, True), agent=state.ChildState(*agent, True),
    )  # fmt: skip
    state.write(found.state, held)
    return found


def start_time(pid: int) -> int:
    facts = procfs.look(pid)
    assert facts is not None
    return facts.starttime


def status(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["status", *arguments], catch_exceptions=False)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and wait until it is."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def test_running_mount_with_an_agent_that_is_not_there_is_trouble(directory: rundir.RunDir) -> None:
    ran = status(MOUNTPOINT)
    assert ran.exit_code == 1
    assert ran.output.startswith("/mnt/lake: trouble\n  ! the agent does not answer: is not running\n")


def test_hung_agent_is_reported_within_two_seconds(
    directory: rundir.RunDir, processes: list[subprocess.Popen[bytes]]
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(directory.admin_socket)
        listener.listen()
        started = time.monotonic()
        ran = status(MOUNTPOINT, "--json")
        assert time.monotonic() - started < 2.0
    found = json.loads(ran.output)
    assert found["troubles"] == [
        {
            "what": "the agent does not answer: has not answered within 1 s",
            "advice": f"wait, or kill -9 {processes[2].pid}: the keeper starts another and no reader notices",
        }
    ]


@pytest.mark.parametrize(
    ("index", "effect"),
    [
        (0, "the keeper is stopped: nothing restarts what dies"),
        (1, "the worker is stopped: every access waits"),
        (2, "the agent is stopped: local and cached reads go on, the rest waits"),
    ],
    ids=["keeper", "worker", "agent"],
)
def test_stopped_process_is_named_with_its_effect_and_what_to_do(
    directory: rundir.RunDir, processes: list[subprocess.Popen[bytes]], index: int, effect: str
) -> None:
    stop(processes[index])
    found = json.loads(status(MOUNTPOINT, "--json").output)
    assert found["troubles"][0] == {
        "what": effect,
        "advice": f"kill -CONT {processes[index].pid}, or foremount umount --force /mnt/lake",
    }
    assert found["processes"][("keeper", "worker", "agent")[index]]["state"] == "stopped"


def test_zombie_keeper_is_a_dead_mount(directory: rundir.RunDir, processes: list[subprocess.Popen[bytes]]) -> None:
    processes[0].kill()
    os.waitid(os.P_PID, processes[0].pid, os.WEXITED | os.WNOWAIT)
    ran = status(MOUNTPOINT)
    assert ran.output.splitlines()[:3] == [
        "/mnt/lake: dead",
        "  ! the keeper is gone and has left a dead mount: every access fails",
        "    -> foremount mount /etc/c.toml /mnt/lake detaches what is dead and mounts anew",
    ]


def test_pid_that_now_belongs_to_another_process_counts_as_gone(
    directory: rundir.RunDir, processes: list[subprocess.Popen[bytes]]
) -> None:
    held = state.read(directory.state)
    assert held is not None
    state.write(directory.state, replace(held, starttime=held.starttime - 1))
    assert json.loads(status(MOUNTPOINT, "--json").output)["processes"]["keeper"]["state"] == "gone"


def test_without_mount_point_all_mounts_are_listed(directory: rundir.RunDir) -> None:
    assert [each["mountpoint"] for each in json.loads(status("--json").output)] == [MOUNTPOINT]


def test_no_mounts_at_all_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path / "none"))
    ran = status()
    assert (ran.exit_code, ran.output) == (0, "no foremount is mounted by this user\n")
    assert status("--json").output == "[]\n"


def test_place_where_nothing_is_mounted_says_how_to_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    ran = status("/mnt/nothing")
    assert ran.exit_code == 1
    assert "foremount mount CONFIG /mnt/nothing" in ran.output


def test_foremount_without_state_file_says_how_to_detach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    monkeypatch.setattr(mountinfo, "read", lambda: [ENTRY])
    assert "-> umount -l /mnt/lake" in status(MOUNTPOINT).output


@pytest.mark.parametrize("command", ["status", "doctor", "umount"])
def test_path_inside_a_mount_is_refused_without_asking_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    monkeypatch.setattr(mountinfo, "read", lambda: [ENTRY])
    ran = CliRunner().invoke(main, [command, "/mnt/lake/sub/../deep"], catch_exceptions=False)
    assert ran.exit_code == 1
    assert ran.stderr.splitlines()[-1] == "  hint: name /mnt/lake"


def test_broken_state_file_is_named(directory: rundir.RunDir) -> None:
    Path(directory.state).write_text("{")
    ran = status(MOUNTPOINT)
    assert ran.exit_code == 1
    assert f"foremount: {directory.state}: holds no keeper state" in ran.stderr
    assert status().exit_code == 0  # the others are still listed


ALL_WELL = {name: Process(10 + index, "running") for index, name in enumerate(("keeper", "worker", "agent"))}
SERVING = state.KeeperState(10, 1, MOUNTPOINT, "c.toml", state.SERVING, 39)


def test_nothing_is_wrong_when_all_is_well() -> None:
    assert diagnose(SERVING, ALL_WELL, mounted=True, agent_trouble=None) == []


@pytest.mark.parametrize(
    ("held", "changed", "mounted", "what"),
    [
        pytest.param(
            replace(SERVING, phase=state.FAILED, reason="the agent does not start"), {}, False,
            "the mount was given up: the agent does not start", id="given up",
        ),
        pytest.param(SERVING, {"keeper": Process(10, "gone")}, False, "the keeper is gone", id="keeper gone"),
        pytest.param(
            SERVING, {"worker": Process(11, "gone", False, 4, "killed by SIGKILL")}, True,
            "the worker has ended (killed by SIGKILL) and is being started again", id="worker gone",
        ),
        pytest.param(
            SERVING, {"agent": Process(12, "running", False, 4, "exit status 1: no room")}, True,
            "the agent is starting again (exit status 1: no room)", id="agent starting again",
        ),
        pytest.param(
            SERVING, {}, False,
            "it is no longer mounted at /mnt/lake here: detached, or another mount namespace", id="detached",
        ),
    ],
)  # fmt: skip
def test_trouble_is_named(held: state.KeeperState, changed: dict[str, Process], mounted: bool, what: str) -> None:
    found = diagnose(held, {**ALL_WELL, **changed}, mounted=mounted, agent_trouble=None)
    assert found[0].what == what
    assert found[0].advice


def test_children_that_start_for_the_first_time_are_no_trouble() -> None:
    starting = {**ALL_WELL, "agent": Process(12, "running", False)}
    assert diagnose(replace(SERVING, phase=state.STARTING), starting, mounted=True, agent_trouble=None) == []


def test_site_store_and_line_that_the_agent_reports_are_trouble() -> None:
    says = {
        "sites": {"wan": {"answers": False}, "disk": {"answers": True}},
        "stores": {"cache": {"directory": "/c", "trouble": "read-only file system"}, "memory": {}},
        "worker": {"connected": False},
    }
    assert [trouble.what for trouble in troubles_of_agent(says)] == [
        "the site wan does not answer: what is cached is served, the rest fails at its deadline",
        "the cache store can't be used: read-only file system",
        "the worker has no line to the agent: remote files wait",
    ]


@pytest.mark.parametrize(
    "says", [{}, {"sites": {}, "stores": {}, "worker": {"connected": True}}], ids=["nothing", "all well"]
)
def test_agent_that_reports_nothing_wrong_is_no_trouble(says: dict[str, object]) -> None:
    assert troubles_of_agent(says) == []
    assert _agent_rows(says) == []


def test_what_the_agent_says_is_shortened_for_people() -> None:
    says = {
        "mounts": [{"prefix": "/w", "site": "wan", "writable": False}, {"prefix": "/d", "site": "disk", "writable": True}],
        "stores": {"cache": {"directory": "/c", "used": 1 << 20, "cap": 1 << 30, "objects": 3}, "memory": {"objects": 0}},
        "fetches": {"fetches": 5, "fetched_bytes": 2048, "retries": 1, "failures": 0},
        "sites": {"wan": {"answers": False}},
        "from a later version": 1,
    }
    assert _agent_rows(says) == [
        ("mounts", "/w from wan"),
        ("mounts", "/d from disk, writable"),
        ("cache", "1 MiB of 1 GiB, 3 objects, in /c"),
        ("fetched", "2 KiB, 1 retries"),
        ("site", "wan: does not answer: see agent.log"),
    ]


def test_stopping_mount_does_not_blame_its_agent() -> None:
    gone = Unavailable("agent", "is not running")
    assert diagnose(replace(SERVING, phase=state.STOPPING), ALL_WELL, mounted=True, agent_trouble=gone) == []
