"""What the admin API says about a live mount, to whom, and that nobody who asks slows it down."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.lake import wait_until, why_no_mount
from tests.mount.observed import TOKENS, Observed, make_certificate, observed, why_no_tls
from tests.servers.wan_origin import Fault, WanOrigin

pytestmark = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_mount() or why_no_tls()), reason=why_no_mount() or why_no_tls()),
]
SIZE = 1 << 20


@pytest.fixture(scope="module")
def mount(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One mount for all tests of this file."""
    with observed(tmp_path_factory.mktemp("admin"), wan_origin_server, "admin") as mount:
        for name in ("charged", "hangs", "kept", "d88"):  # each of one test
            (mount.origin / "ckpt" / name).write_bytes(os.urandom(SIZE))
        yield mount


def cat(path: Path, job: str) -> int:
    """Read a file in a process of its own, which belongs to `job`; return its number."""
    done = subprocess.Popen(["cat", str(path)], stdout=subprocess.DEVNULL, env={**os.environ, "FOREMOUNT_JOB": job})
    assert done.wait(60) == 0
    return done.pid


def job(mount: Observed, name: str) -> dict[str, Any]:
    """Return what is charged to a job, once there is something."""

    def found() -> dict[str, Any] | None:
        return next((each for each in mount.get("/v1/jobs")["jobs"] if each["job"] == name), None)

    facts: dict[str, Any] = wait_until(found, f"job {name}")
    return facts


def can_tell_callers(mount: Observed) -> bool:
    """Whether the extension that is loaded knows who asks; one that was built earlier does not."""
    from vfs.kernel import _passthrough  # type: ignore[attr-defined,unused-ignore]

    return hasattr(_passthrough, "caller")


def test_bytes_and_waits_are_charged_to_the_job_that_read(mount: Observed, wan_origin: WanOrigin) -> None:
    if not can_tell_callers(mount):
        pytest.skip("the passthrough extension is older than this test: build it again")
    wan_origin.shape(rtt_ms=50, mbit=0)
    pid = cat(mount.lake.root / "ckpt/charged", "run7")
    found = wait_until(lambda: (each := job(mount, "run7")) and each["waits"].get("latency") and each, "waits of the job")
    assert found["uid"] == 0
    assert found["commands"] == ["cat"]
    assert 0 < found["bytes"]["origin"] <= SIZE  # what was pushed into the page cache is read without us
    assert sum(found["bytes"].values()) <= SIZE
    assert found["waits"]["latency"] > 0
    why = json.loads(mount.lake.command("why", "--job", "run7", "--mountpoint", str(mount.lake.root), "--json").stdout)
    assert why["subject"] == "job run7"
    assert sum(cause["share"] for cause in why["causes"]) == pytest.approx(1.0)
    assert "/ckpt/charged" in [each["path"] for each in why["paths"]]
    by_pid = mount.get(f"/v1/why?pid={pid}")
    assert by_pid["operations"] == why["operations"]
    told = mount.lake.command("why", "--job", "run7", "--mountpoint", str(mount.lake.root)).stdout
    assert "prefetch = " in told
    assert "by " in told


def test_passthrough_shows_as_opens_and_never_as_bytes(mount: Observed) -> None:
    if not mount.lake.status()["passthrough"]:
        pytest.skip("no passthrough here")
    code = "import sys; open(sys.argv[1], 'rb').read(); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(mount.lake.root / "local/file")]
    environ = {**os.environ, "FOREMOUNT_JOB": "local-reader"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environ) as reader:  # lives until it is known
        if can_tell_callers(mount):
            found = job(mount, "local-reader")
            assert found["operations"]["passthrough"] == 1
            assert found["bytes"]["passthrough"] == 0
        reader.communicate()
    assert mount.get("/v1/stats")["rows"]["open"]["passthrough"]["count"] >= 1


def test_read_that_hangs_is_named_while_it_hangs(mount: Observed, wan_origin: WanOrigin) -> None:
    assert (mount.lake.root / "ckpt/hangs").stat().st_size == SIZE
    wan_origin.inject(Fault("stall", "*/hangs"))
    reader = subprocess.Popen(["cat", str(mount.lake.root / "ckpt/hangs")], stdout=subprocess.DEVNULL)
    try:
        why = wait_until(
            lambda: (said := mount.get("/v1/why")) and said["going_on"] and said, "the read that goes on", timeout_s=20
        )
        (call,) = [each for each in why["going_on"] if each["path"] == "/ckpt/hangs"]
        assert call["operation"] == "read"
        assert why["sentence"].startswith("read of /ckpt/hangs has been waiting for")
        assert list(call["causes"]) == ["latency"]  # the request was sent, no byte has come
    finally:
        wan_origin.heal()
        assert reader.wait(60) == 0


def test_metrics_are_what_prometheus_reads_and_agree_with_the_table(mount: Observed) -> None:
    from vfs.admin.metrics import METRICS

    status, headers, body = mount.ask("/metrics", TOKENS["read"])
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert {line.name for line in METRICS} == set(families)
    assert {sample.name for family in families.values() for sample in family.samples} <= {line.shown for line in METRICS}
    (healthy,) = families["foremount_healthy"].samples
    assert healthy.value == 1.0


@pytest.mark.parametrize(
    ("role", "method", "path", "expected"),
    [
        (None, "GET", "/v1/status", 401),
        ("wrong", "GET", "/v1/status", 401),
        ("read", "GET", "/v1/status", 200),
        ("read", "POST", "/v1/evict", 403),
        ("operate", "POST", "/v1/evict", 200),
        ("operate", "POST", "/v1/policies/reload", 403),
        ("admin", "POST", "/v1/policies/reload", 200),
        (None, "GET", "/", 200),  # the page holds no facts
    ],
)
def test_token_allows_what_its_role_says(mount: Observed, role: str | None, method: str, path: str, expected: int) -> None:
    token = None if role is None else TOKENS.get(role, "x" * 20)
    body = {"paths": ["nowhere"]} if path == "/v1/evict" else None
    assert mount.ask(path, token, method=method, body=body)[0] == expected


def test_tcp_without_tls_gets_no_answer(mount: Observed) -> None:
    host, port = mount.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP/1.1 200")


def test_changed_tokens_and_certificate_hold_without_a_restart(mount: Observed) -> None:
    agent, tokens, fresh = mount.lake.pid("agent"), mount.lake.base / "tokens", "read-another-0123456789"
    written = tokens.read_text()
    tokens.write_text(written + f"read late {fresh}\n")
    wait_until(lambda: mount.ask("/v1/status", fresh)[0] == 200, "the new token")
    make_certificate(mount.lake.base)
    mount.context.load_verify_locations(str(mount.lake.base / "host.pem"))
    wait_until(lambda: mount.ask("/v1/status")[0] == 200, "the new certificate")
    assert mount.lake.pid("agent") == agent


def test_too_many_requests_of_one_caller_are_refused_and_others_are_not(mount: Observed) -> None:
    from vfs.cli.client import AdminClient
    from vfs.errors import ForemountError

    refused = threading.Event()

    def hammer() -> None:
        client = AdminClient(mount.lake.run_dir.admin_socket, 10)
        for _ in range(1500):
            if refused.is_set():
                return
            try:
                client.get("/v1/jobs")
            except ForemountError as exc:
                assert "is asked too often" in str(exc)
                refused.set()

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert mount.ask("/v1/jobs", TOKENS["read"])[0] == 200


def test_number_that_is_null_is_refused_and_a_path_of_that_name_is_not(mount: Observed) -> None:
    assert mount.ask("/v1/explain?path=ckpt&world=null")[0] == 400
    assert mount.ask("/v1/explain?path=null")[0] == 404


def test_body_of_another_type_is_refused_with_the_type_that_is_expected(mount: Observed) -> None:
    status, _, body = mount.ask("/v1/evict", method="POST", Content_Type="text/plain")
    assert (status, json.loads(body)["error"]["hint"]) == (415, "send Content-Type: application/json")


def test_body_that_is_too_large_is_refused(mount: Observed) -> None:
    assert mount.ask("/v1/evict", method="POST", body={"paths": ["x" * 1000] * 2000})[0] == 413


def test_foreign_page_can_change_nothing(mount: Observed) -> None:
    status, _, body = mount.ask("/v1/policies/reload", method="POST", Origin="https://elsewhere.example")
    assert (status, json.loads(body)["error"]["kind"]) == (403, "Denied")


@pytest.mark.slow
def test_events_tell_what_happens(mount: Observed) -> None:
    events = subprocess.Popen(
        ["curl", "-sN", "--unix-socket", mount.lake.run_dir.admin_socket, "http://localhost/v1/events?seconds=8"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert events.stdout is not None
    assert events.stdout.readline() == ": hello\n"
    (mount.lake.base / "policies/ours.toml").write_text(
        'format = 1\nabout = "x"\n[[rules]]\nname = "r"\nmatch = {}\nset = { deadline = "7s" }\n'
    )
    mount.lake.command("policy", "reload", "--mountpoint", str(mount.lake.root))
    kinds = [line.split(": ")[1].strip() for line in events.stdout if line.startswith("event: ")]
    assert events.wait(10) == 0
    assert "policy" in kinds
    assert "stats" in kinds


def test_configuration_names_no_token(mount: Observed) -> None:
    said = mount.get("/v1/config")
    assert said["sites"]["origin"]["kind"] == "http"
    assert not any(token in json.dumps(said) for token in TOKENS.values())


def test_no_process_shows_a_token_in_its_arguments_or_leaves_a_core(mount: Observed) -> None:
    for process in ("keeper", "worker", "agent"):
        place = Path(f"/proc/{mount.lake.pid(process)}")
        shown = (place / "cmdline").read_text() + (place / "environ").read_text()
        assert not any(token in shown for token in TOKENS.values())
        assert re.search(r"Max core file size +0 ", (place / "limits").read_text())
    status = mount.lake.command("status", str(mount.lake.root), "--json").stdout
    assert not any(token in status for token in TOKENS.values())


def test_cache_lists_what_it_holds(mount: Observed) -> None:
    mount.lake.command("fetch", str(mount.lake.root / "ckpt/kept"))
    found = {each["path"]: each for each in mount.get("/v1/cache?limit=1000")["objects"]}
    (kept,) = [each for path, each in found.items() if path.endswith("ckpt/kept")]
    assert (kept["size"], kept["present"], kept["sealed"]) == (SIZE, SIZE, True)
    assert len(mount.get("/v1/cache?limit=1")["objects"]) == 1


def test_top_shows_the_same_facts_as_the_api(mount: Observed) -> None:
    text = mount.lake.command("top", str(mount.lake.root), "--once").stdout
    assert str(mount.lake.root) in text
    assert "serving" in text
    assert "origin" in text
    said = json.loads(mount.lake.command("top", str(mount.lake.root), "--json").stdout)
    assert set(said) == {"status", "stats", "jobs", "replicas", "transfers", "policies", "rooms"}


def test_clients_that_do_not_read_their_answers_keep_nobody_waiting(mount: Observed) -> None:
    """D88: a dead scraper is nobody's problem but its own."""
    deaf = []
    try:
        for _ in range(30):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(mount.lake.run_dir.admin_socket)
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
            deaf.append(connection)
            content = (mount.lake.root / "ckpt/d88").read_bytes()
        assert content == (mount.origin / "ckpt/d88").read_bytes()
        assert mount.ask("/v1/status", TOKENS["read"])[0] == 200
    finally:
        for connection in deaf:
            connection.close()


def test_stopped_agent_keeps_no_cached_read_waiting(mount: Observed) -> None:
    """D88: with API and metrics dead, what is local is read as ever."""
    mount.lake.command("fetch", str(mount.lake.root / "ckpt"))
    agent = mount.lake.pid("agent")
    os.kill(agent, signal.SIGSTOP)
    try:
        code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read()[-1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(mount.lake.root / "local/file")], capture_output=True, timeout=20, check=True
        )
        assert len(done.stdout) == 1
    finally:
        os.kill(agent, signal.SIGCONT)
