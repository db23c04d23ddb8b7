"""explain, fetch, evict and verify against a real HTTP server on a Unix socket that says what an agent says."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from vfs import rundir
from vfs.cli import client, locate, main
from vfs.errors import DeadlineExceeded, ForemountError, NotFound, Unavailable, WrongAnswer
from vfs.keeper import state


class Agent(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers with what a test puts into `answers` and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(path, _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.released = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Agent

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        self.server.asked.append((self.command, url.path, body if body is not None else query))
        if url.path not in self.server.answers:
            self.server.released.wait(20)  # an agent that hangs
            return
        status, payload = self.server.answers[url.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """The agent of a mount that is recorded at /mnt/lake."""
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    directory = record("/mnt/lake")
    with Agent(directory.admin_socket) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def record(mountpoint: str) -> rundir.RunDir:
    """Leave the state file of a keeper there."""
    directory = rundir.run_dir(mountpoint)
    rundir.create(directory)
    state.write(directory.state, state.new(pid=1, starttime=0, mountpoint=mountpoint, config="/etc/c.toml"))
    return directory


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def ndjson(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


PROGRESS = {"path": "a/b", "state": "fetching", "bytes_done": 1024, "bytes_total": 2048, "files_done": 0, "files_total": 1}
FINISHED = {**PROGRESS, "state": "local", "bytes_done": 2048, "files_done": 1}
FAILED = {"path": "c", "error": {"kind": "Unavailable", "subject": "c", "reason": "no answer from wan", "hint": "try later"}}


def test_explain_prints_facts_as_a_tree_and_sends_the_lake_path(agent: Agent) -> None:
    agent.answers["/v1/explain"] = (
        200,
        json.dumps({"site": "wan", "rules": ["a", "b"], "cache": {"complete": True}}).encode(),
    )
    ran = run("explain", "/mnt/lake/ckpt/ä b&c")
    assert ran.exit_code == 0
    assert ran.output.splitlines() == [
        "/ckpt/ä b&c", "  site: wan", "  rules:", "    - a", "    - b", "  cache:", "    complete: True",
    ]  # fmt: skip
    assert agent.asked == [("GET", "/v1/explain", {"path": "ckpt/ä b&c"})]


def test_explain_with_json_prints_the_document_unchanged(agent: Agent) -> None:
    agent.answers["/v1/explain"] = (200, b'{"site": "wan"}')
    assert json.loads(run("explain", "ckpt", "--json").output) == {"site": "wan"}


def test_refusal_of_the_agent_is_printed_with_its_hint_and_exit_status_1(agent: Agent) -> None:
    error = {"kind": "NotFound", "subject": "ckpt/x", "reason": "no such object", "hint": "look at foremount status"}
    agent.answers["/v1/explain"] = (404, json.dumps({"error": error}).encode())
    ran = run("explain", "ckpt/x")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == "foremount: ckpt/x: no such object\n  hint: look at foremount status\n"
    assert json.loads(run("explain", "ckpt/x", "--json").stdout) == {"error": error}


def test_fetch_prints_a_line_for_each_state_and_a_sum(agent: Agent) -> None:
    agent.answers["/v1/fetch"] = (200, ndjson(PROGRESS, PROGRESS, FINISHED, {"done": True, "failed": []}))
    ran = run("fetch", "a", "/mnt/lake/b")
    assert ran.exit_code == 0
    assert ran.output.splitlines() == [
        "fetching: /a/b (0 of 1 files, 1 KiB of 2 KiB)",
        "local: /a/b (1 of 1 files, 2 KiB of 2 KiB)",
        "fetched 1 of 1 files, 2 KiB of 2 KiB",
    ]
    assert agent.asked == [("POST", "/v1/fetch", {"paths": ["a", "b"]})]


def test_fetch_with_json_passes_every_line_on(agent: Agent) -> None:
    records = [PROGRESS, FINISHED, {"done": True, "failed": []}]
    agent.answers["/v1/fetch"] = (200, ndjson(*records))
    assert [json.loads(line) for line in run("fetch", "a", "--json").output.splitlines()] == records


def test_fetch_of_which_a_path_failed_names_it_and_exits_with_1(agent: Agent) -> None:
    agent.answers["/v1/fetch"] = (200, ndjson(FINISHED, {"done": True, "failed": [FAILED]}))
    ran = run("fetch", "a", "c")
    assert ran.exit_code == 1
    assert ran.stderr == "failed: /c: no answer from wan\n  hint: try later\n"
    assert run("fetch", "a", "c", "--json").exit_code == 1


def test_fetch_whose_agent_dies_midway_says_so(agent: Agent) -> None:
    agent.answers["/v1/fetch"] = (200, ndjson(PROGRESS))
    ran = run("fetch", "a")
    assert ran.exit_code == 1
    assert "agent: ended before it was done" in ran.stderr


def test_evict_prints_what_was_dropped(agent: Agent) -> None:
    agent.answers["/v1/evict"] = (200, b'{"objects": 3, "bytes": 1048576}')
    assert run("evict", "a").output == "evicted 3 objects, 1 MiB\n"
    assert json.loads(run("evict", "a", "--json").output) == {"objects": 3, "bytes": 1048576}


def test_verify_without_paths_asks_for_the_whole_lake_and_counts_broken_blocks(agent: Agent) -> None:
    agent.answers["/v1/verify"] = (200, ndjson({**FINISHED, "broken_blocks": 2}, {"done": True, "failed": []}))
    ran = run("verify")
    assert ran.output.splitlines()[-1] == "verified 1 of 1 files, 2 KiB of 2 KiB, 2 broken blocks dropped"
    assert agent.asked == [("POST", "/v1/verify", {"paths": [""]})]


def test_agent_that_hangs_costs_the_deadline_and_no_more(agent: Agent) -> None:
    with pytest.raises(DeadlineExceeded, match=r"has not answered within 0.1 s"):
        client.AdminClient(agent.server_address, 0.1).get("/v1/status")  # type: ignore[arg-type]
    with pytest.raises(DeadlineExceeded):
        list(client.AdminClient(agent.server_address, 0.1).stream("/v1/fetch", {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        pytest.param(200, b"<html>", WrongAnswer, id="no JSON"),
        pytest.param(200, b"[]", WrongAnswer, id="no object"),
        pytest.param(500, b"oops", WrongAnswer, id="error without JSON"),
        pytest.param(500, b'{"error": "x"}', WrongAnswer, id="error that is no object"),
        pytest.param(503, b'{"error": {"kind": "Unavailable", "subject": "s"}}', Unavailable, id="known kind"),
        pytest.param(500, b'{"error": {"kind": "FromTheFuture"}}', ForemountError, id="unknown kind"),
    ],
)
def test_wrong_answers_become_errors_of_ours(agent: Agent, status: int, body: bytes, error: type[ForemountError]) -> None:
    agent.answers["/v1/status"] = (status, body)
    with pytest.raises(error):
        client.AdminClient(agent.server_address, 5.0).get("/v1/status")  # type: ignore[arg-type]


def test_absent_agent_is_named_with_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path))
    record("/mnt/lake")
    ran = run("fetch", "a")
    assert ran.exit_code == 1
    assert ran.stderr == "foremount: agent: is not running\n  hint: foremount status says how the agent does\n"


@pytest.mark.parametrize(
    ("path", "mountpoint", "rest"),
    [
        ("/mnt/lake", "/mnt/lake", ""),
        ("/mnt/lake/a/../b/", "/mnt/lake", "b"),
        ("/mnt/lake/inner/c", "/mnt/lake/inner", "c"),
        ("/mnt/lake/innermost", "/mnt/lake", "innermost"),
    ],
    ids=["root", "normalised", "longest prefix", "prefix of a name only"],
)
def test_path_belongs_to_the_mount_with_the_longest_prefix(agent: Agent, path: str, mountpoint: str, rest: str) -> None:
    record("/mnt/lake/inner")
    located, (found,) = locate.lake_paths((path,), None)
    assert (located.mountpoint, found) == (mountpoint, rest)


def test_relative_path_is_a_lake_path_unless_the_working_directory_is_inside_a_mount(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (found,) = locate.lake_paths(("a/./b",), None)
    assert found == "a/b"
    monkeypatch.setattr(os, "getcwd", lambda: "/mnt/lake/deep")
    _, (found,) = locate.lake_paths(("a",), None)
    assert found == "deep/a"


def test_lake_path_with_two_mounts_needs_the_mount_point(agent: Agent) -> None:
    record("/mnt/other")
    with pytest.raises(NotFound, match="2 mounts are running"):
        locate.lake_paths(("a",), None)
    located, _ = locate.lake_paths(("a",), "/mnt/other")
    assert located.mountpoint == "/mnt/other"


@pytest.mark.parametrize("path", ["/home/x", "../x"])
def test_path_outside_of_every_mount_is_refused(agent: Agent, path: str) -> None:
    with pytest.raises(NotFound):
        locate.lake_paths((path,), None)


def test_paths_in_different_mounts_are_refused(agent: Agent) -> None:
    record("/mnt/other")
    with pytest.raises(ForemountError, match="different mounts: /mnt/lake, /mnt/other"):
        locate.lake_paths(("/mnt/lake/a", "/mnt/other/b"), None)
