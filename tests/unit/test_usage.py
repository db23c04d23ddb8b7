"""What was waited for, by cause: phases of a fetch, the worker's books, the names of jobs, the agent's ledger."""

from __future__ import annotations

import os
import subprocess
from contextvars import Context

import pytest
import trio

from tests.lake import wait_until
from vfs.agent.ledger import JOBS_MAX, OTHER, WINDOW_S, JobKey, Ledger
from vfs.kernel.account import SLOW_S, Account
from vfs.processes import job_of, parse_process, read_stamp, world_of
from vfs.usage import NOBODY, CallerFacts, Cause, Row, Source, Usage, between, collecting, served_from, serving, spent, waited

PHASES = [(10.0, Cause.QUEUE), (11.0, Cause.LATENCY), (13.0, Cause.LINK)]


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (10.0, 14.0, {Cause.QUEUE: 1.0, Cause.LATENCY: 2.0, Cause.LINK: 1.0}),
        (12.0, 12.5, {Cause.LATENCY: 0.5}),
        (9.0, 10.5, {Cause.AGENT: 1.0, Cause.QUEUE: 0.5}),
        (20.0, 21.0, {Cause.LINK: 1.0}),
        (11.0, 11.0, {}),
        (11.0, 13.0, {Cause.LATENCY: 2.0}),
    ],
    ids=["all", "inside one", "before the first", "after the last", "no time", "on the edges"],
)
def test_wait_is_split_at_the_phases_of_the_work(start_s: float, end_s: float, expected: dict[Cause, float]) -> None:
    assert between(PHASES, start_s, end_s) == pytest.approx(expected)


def test_wait_without_phases_is_the_agents() -> None:
    assert between([], 1.0, 3.0) == {Cause.AGENT: 2.0}


def test_what_nobody_collects_is_forgotten() -> None:
    spent({Cause.LINK: 1.0})
    with collecting() as causes:
        spent({Cause.LINK: 1.0})
        spent({Cause.LINK: 0.5, Cause.QUEUE: 0.25})
    spent({Cause.LINK: 1.0})
    assert causes == {Cause.LINK: 1.5, Cause.QUEUE: 0.25}


def test_operation_is_charged_to_its_source_with_its_bytes() -> None:
    account = Account()
    request = account.begin("read", (7, 0, 4096))
    served_from(Source.CACHE)
    account.end(request, 4096)
    (usage,), slow, waiting = account.take()
    assert usage.rows["read"][Source.CACHE].count == 1
    assert usage.rows["read"][Source.CACHE].bytes == 4096
    assert (slow, waiting) == ([], [])
    assert account.take() == ([], [], [])


def test_read_that_needed_an_origin_is_the_origins_whatever_served_it_then() -> None:
    account = Account()
    request = account.begin("read", (7, 0, 10))
    waited({Cause.LATENCY: 0.25}, Cause.AGENT, 0.5, for_bytes=True)
    served_from(Source.CACHE)
    account.end(request, 10)
    ((usage,), _, _) = account.take()
    assert list(usage.rows["read"]) == [Source.ORIGIN]
    assert usage.causes[Cause.LATENCY] == 0.25
    assert usage.causes[Cause.AGENT] == 0.25  # what the agent did not explain


def test_paths_that_were_waited_for_are_named() -> None:
    account = Account()
    account.path_of = lambda arguments: f"/{arguments[0]}"
    for name in ("a", "b", "a"):
        request = account.begin("read", (name,))
        waited({}, Cause.AGENT, 1.0, for_bytes=True)
        account.end(request, 1)
    ((usage,), _, _) = account.take()
    assert usage.paths == {"/a": 2.0, "/b": 1.0}


def test_request_that_goes_on_is_reported_until_it_ends() -> None:
    account = Account()
    request = account.begin("read", ())
    request.began_s -= 2 * SLOW_S
    _, slow, waiting = account.take()
    assert slow == []
    assert [call.operation for call in waiting] == ["read"]
    account.end(request, 0, "away")
    _, slow, waiting = account.take()
    assert waiting == []
    assert [(call.operation, call.error) for call in slow] == [("read", "away")]


def test_process_of_a_thread_is_looked_up_once() -> None:
    asked = []
    account = Account(lambda: (asked.append(1), (1, 0))[1])  # type: ignore[func-returns-value]
    first, second = account.begin("read", ()), account.begin("read", ())
    assert first.caller is second.caller
    assert len(asked) == 2


def test_outside_of_a_request_nothing_is_noted() -> None:
    def outside() -> object:
        served_from(Source.CACHE)
        waited({}, Cause.AGENT, 1.0, for_bytes=True)
        return serving()

    assert Context().run(outside) is None


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        (b"0::/system.slice/train.service\n", "/system.slice/train.service"),
        (b"9:cpu:/docker/abc\n0::/\n", "/docker/abc"),
        (b"9:cpu:/docker/abc\n0::/user.slice\n", "/user.slice"),
        (b"0::/\n", "/"),
        (b"", ""),
    ],
)
def test_unified_cgroup_counts_unless_it_is_the_root(cgroups: bytes, expected: str) -> None:
    status = b"Name:\tpython\nUmask:\t0022\nTgid:\t41\nUid:\t0\t0\t0\t0\nGid:\t1\t2\t3\t4\n"
    assert parse_process(42, status, cgroups) == (41, "python", expected, 4)


POD = "/kubepods.slice/kubepods-pod3f1c6a52_9d1e_4f6a_8a55_0c0de5c0ffee.slice/cri-containerd-x.scope"


@pytest.mark.parametrize(
    ("cgroup", "environ", "expected"),
    [
        ("/slurm/uid_1000/job_4711/step_0/task_0", {}, "slurm:4711"),
        ("/system.slice/slurmstepd.scope/job_4711", {}, "slurm:4711"),
        ("/slurm/uid_1000/job_4711/step_0", {"SLURM_JOB_ID": "4711"}, "slurm:4711"),
        ("/slurm/uid_1000/job_4711/step_0", {"FOREMOUNT_JOB": "run7", "SLURM_JOB_ID": "4711"}, "run7"),
        (POD, {}, "pod:3f1c6a52-9d1e-4f6a-8a55-0c0de5c0ffee"),
        (f"/system.slice/docker-{'ab' * 32}.scope", {}, "container:abababababab"),
        ("/system.slice/train.service", {}, "train.service"),
        ("/user.slice/user-0.slice/session-3.scope", {"RAY_JOB_ID": "02000000"}, "ray:02000000"),
        ("/", {}, "uid:5"),
        ("", {}, "uid:5"),
        ("/x", {"FOREMOUNT_JOB": "a\nb\x1b[31m"}, "a?b?[31m"),
    ],
)
def test_job_is_named_by_its_environment_then_by_its_cgroup(cgroup: str, environ: dict[str, str], expected: str) -> None:
    assert job_of(cgroup, 5, environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "8"}, 8),
        ({"SLURM_NTASKS": "4", "WORLD_SIZE": "32"}, 32),
        ({"WORLD_SIZE": "many", "PMI_SIZE": "2"}, 2),
        ({"WORLD_SIZE": "0"}, None),
        ({"WORLD_SIZE": "-1"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "9999999"}, 9_999_999),
        ({"OMPI_COMM_WORLD_SIZE": "10000000"}, None),
    ],
)
def test_ranks_of_a_job_are_the_first_number_in_its_environment(environ: dict[str, str], expected: int | None) -> None:
    assert world_of(environ) == expected


def test_another_program_in_a_process_has_another_stamp_and_a_fork_too() -> None:
    script = "read line; exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        before = read_stamp(process.pid)
        assert before is not None
        assert before == read_stamp(process.pid)
        assert before != read_stamp(os.getpid())
        process.stdin.write(b"on\n")
        process.stdin.flush()
        wait_until(lambda: read_stamp(process.pid) != before, "another program")
        process.kill()
    assert read_stamp(process.pid) is None


def test_job_is_found_out_once_where_a_rule_asks_for_it() -> None:
    environ = {"FOREMOUNT_JOB": "run7", "WORLD_SIZE": "16"}
    wanted: set[str] = set()
    account = Account(lambda: (1, 0), lambda: frozenset(wanted))
    with subprocess.Popen(["sleep", "60"], env=environ) as process:

        async def asked(gid: int) -> CallerFacts:
            request = account.begin("open", ())
            await account.identify(request, process.pid, os.getuid(), gid)
            return account.facts()

        assert trio.run(asked, 5) == NOBODY
        wanted.add("gid")
        assert trio.run(asked, 5) == CallerFacts(0, 5)
        wanted.add("job")
        account = Account(lambda: (process.pid, os.getuid()), lambda: frozenset(wanted))
        assert trio.run(asked, 6) == CallerFacts(os.getuid(), 6, "run7", 16)
        process.kill()
    request = account.begin("read", ())  # of a process that has ended: what is known of it counts
    assert account.facts() == CallerFacts(os.getuid(), 6, "run7", 16)
    account.end(request, 0)


def used(pid: int = 1, bytes_: int = 10, wait_s: float = 0.5) -> Usage:
    rows = {"read": {Source.ORIGIN: Row(1, bytes_, wait_s)}}
    return Usage(pid, 0, "cat", "/x", rows, {Cause.LINK: wait_s, Cause.HERE: 0.1}, {"/f": wait_s})


def test_ledger_adds_up_in_all_and_by_job() -> None:
    ledger = Ledger()
    one, two = JobKey("one", 0, "/x"), JobKey("two", 0, "/x")
    ledger.add(100.0, [(one, used()), (two, used(2, 20))], [], [])
    moment = ledger.add(101.0, [(one, used())], [], [])
    assert ledger.rows["read"][Source.ORIGIN] == Row(3, 40, 1.5)
    assert ledger.jobs[one].rows["read"][Source.ORIGIN] == Row(2, 20, 1.0)
    assert moment.waits == {Cause.LINK: 0.5}  # the worker's own time is no waiting
    assert moment.seconds == pytest.approx(1.0)
    assert {entry.usage.pid for entry in ledger.recent(100.5)} == {1}


def test_jobs_that_are_too_many_become_one_and_no_sum_shrinks() -> None:
    ledger = Ledger()
    for number in range(JOBS_MAX + 10):
        ledger.add(100.0 + number, [(JobKey(f"job{number}", 0, ""), used())], [], [])
    assert len(ledger.jobs) <= JOBS_MAX + 1
    assert OTHER in ledger.jobs
    assert sum(job.rows["read"][Source.ORIGIN].count for job in ledger.jobs.values()) == JOBS_MAX + 10
    assert JobKey("job0", 0, "") not in ledger.jobs


def test_what_is_older_than_the_window_is_forgotten() -> None:
    ledger = Ledger()
    ledger.add(100.0, [(OTHER, used())], [], [])
    ledger.add(101.0 + WINDOW_S, [(OTHER, used(2))], [], [])
    assert [entry.usage.pid for entry in ledger.recent(0)] == [2]
