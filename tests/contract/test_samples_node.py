"""A real node process beside a real directory, asked over HTTP as an agent asks it."""

from __future__ import annotations

import io
import json
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the [media] extra is not installed")
pytest.importorskip("av", reason="the [media] extra is not installed")

from tests import media
from tests.lake import wait_until
from tests.mount.observed import make_certificate, why_no_tls
from tests.node import NO_LOAD, READ_TOKEN, TOKEN, Node, Scheduled, node
from tests.operators import made, signed
from vfs.samples import nodewire
from vfs.samples.model import Form, Reason
from vfs.samples.operators.registry import load_registry
from vfs.samples.stream import digest_of

SPIN = """
def spin(raw, params, rng):
    while True:
        pass
"""
SPIN_DECLARATION = """
name = "spin"
version = "1"
code = "spin.py"
function = "spin"
time = 600.0
[output]
dtypes = ["uint8"]
shape_max = [64]
bytes = "4KiB"
"""


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Scheduled:
    lake = tmp_path_factory.mktemp("lake")
    found = Scheduled(lake)
    for step in range(40):
        for rank in range(2):
            for slot in range(3):
                found.add(step, rank, slot, media.jpeg(step + slot))
    found.add(40, 0, 0, media.mp4(), "video@1", params='{"format":"safetensors","frames":{"uniform":3}}')
    found.add(40, 0, 1, media.wav(), "audio@1", params='{"mono":true,"rate":8000}')
    found.add(40, 0, 2, media.jpeg()[:200])
    found.add(40, 0, 3, media.jpeg(), "unknown@1")
    found.add(40, 0, 4, media.jpeg(), params='{"resise":1}')
    found.add(40, 0, 5, media.jpeg(), dataset_version="")
    found.add(40, 0, 6, b"plain text", "")
    found.add(42, 0, 0, b"round and round", "spin@1")
    found.write()
    return found


@pytest.fixture(scope="module")
def service(schedule: Scheduled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("node"), schedule.lake) as found:
        yield found


@pytest.fixture
def running(service: Node) -> Node:
    """Return a node that was told of no job."""
    assert service.ask("DELETE", nodewire.JOB.format(job="run7"))[0] == 200
    return service


def test_steps_to_come_are_transformed_before_they_are_asked_for(running: Node, schedule: Scheduled) -> None:
    running.tell(3)
    wait_until(lambda: running.status()["jobs"]["run7"]["made_bytes"] >= 4 * 6 * 12_416, "four steps of six samples")
    found = running.group(4, 1)
    assert {slot: envelope.form for slot, (envelope, _) in found.items()} == dict.fromkeys(range(3), Form.TRANSFORMED)
    envelope, body = found[1]
    assert (envelope.extension, envelope.reason, envelope.size) == ("npy", None, len(body))
    assert np.load(io.BytesIO(body)).shape == (3, 32, 32)


def test_node_and_plain_script_make_the_same_bytes(running: Node, schedule: Scheduled) -> None:
    running.tell(39)
    found = running.group(40, 0)
    for slot in (0, 1):
        envelope, body = found[slot]
        told = json.loads(envelope.provenance)
        operator = load_registry().find(told["operator"])
        raw = schedule.raw[40, 0, slot]
        here = made(told["operator"], raw, params=told["params"], seed=told["seed"], provenance=envelope.provenance)
        assert here == body
        assert told["raw"] == digest_of(raw)
        assert (told["code"], told["libraries"]) == (operator.digest, operator.libraries)


def test_what_can_not_be_transformed_comes_raw_with_its_reason(running: Node, schedule: Scheduled) -> None:
    running.tell(39)
    found = running.group(40, 0)
    reasons = {slot: envelope.reason for slot, (envelope, _) in found.items() if envelope.form is Form.RAW}
    assert reasons == {
        2: Reason.FAILED,
        3: Reason.REFUSED,
        4: Reason.REFUSED,
        5: Reason.UNIDENTIFIED,
        6: Reason.NO_OPERATOR,
    }
    for slot in reasons:
        assert found[slot][1] == schedule.raw[40, 0, slot]


def test_group_that_is_fetched_again_is_whole_again(running: Node) -> None:
    running.tell(8)
    found = running.group(9, 0)
    assert {envelope.form for envelope, _ in found.values()} == {Form.TRANSFORMED}
    assert running.group(9, 0) == found


def test_step_that_is_being_consumed_comes_raw_where_it_was_not_ready(running: Node, schedule: Scheduled) -> None:
    running.tell(20)
    found = running.group(12, 0)
    assert {(envelope.form, envelope.reason) for envelope, _ in found.values()} == {(Form.RAW, Reason.LATE)}
    assert {slot: body for slot, (_, body) in found.items()} == {slot: schedule.raw[12, 0, slot] for slot in range(3)}


@pytest.mark.parametrize(
    ("method", "path", "body", "token", "status"),
    [
        ("GET", nodewire.STATUS, None, None, 401),
        ("GET", nodewire.STATUS, None, "wrong-wrong-wrong-wrong", 401),
        ("PUT", nodewire.JOB.format(job="run7"), {"declaration": "jobs/run7.toml"}, READ_TOKEN, 403),
        ("GET", nodewire.GROUP.format(job="other", step=0, rank=0), None, "", 404),
        ("GET", nodewire.GROUP.format(job="run7", step=0, rank=77), None, "", 404),
        ("PUT", nodewire.JOB.format(job="run7"), {"declaration": "jobs/none.toml"}, "", 422),
        ("PUT", nodewire.JOB.format(job="run8"), {"declaration": "jobs/run7.toml"}, "", 200),
        ("PUT", nodewire.JOB.format(job=".run"), {}, "", 404),
        ("PUT", nodewire.JOB.format(job="run7"), {"step": "x"}, "", 400),
    ],
)
def test_request_is_refused_with_its_status(
    running: Node, method: str, path: str, body: object, token: str | None, status: int
) -> None:  # fmt: skip
    running.tell()
    given = (running.ask(method, path, body) if token == "" else running.ask(method, path, body, token))[0]
    assert given == status


def test_metrics_are_read_by_prometheus(running: Node) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    running.tell()
    text = running.ask("GET", nodewire.METRICS, None, READ_TOKEN)[1].decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"foremount_node_transformed", "foremount_node_unused_bytes", "foremount_node_cost_error"} <= names


def test_job_that_is_forgotten_takes_what_was_prepared_with_it(running: Node) -> None:
    running.ask("DELETE", nodewire.JOB.format(job="run8"))
    running.tell(0)
    wait_until(lambda: running.status()["queue"]["bytes"], "something that is ready")
    assert running.ask("DELETE", nodewire.JOB.format(job="run7"))[0] == 200
    status = running.status()
    assert (status["jobs"], status["queue"]["bytes"], status["queue"]["groups"]) == ({}, 0, 0)


@pytest.mark.slow
def test_queue_holds_no_more_than_its_bytes(schedule: Scheduled, tmp_path: Path) -> None:
    with node(tmp_path, schedule.lake, NO_LOAD + '\nqueue = "64KiB"') as found:
        found.tell(0)
        wait_until(lambda: found.status()["queue"]["bytes"] > 64 * 1024 - 2 * 12_416, "a full queue")
        most = 0
        for step in range(1, 6):
            for rank in range(2):
                most = max(most, found.status()["queue"]["bytes"])
                assert len(found.group(step, rank)) == 3
            found.tell(step)
        assert most <= 64 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        ('queue = "16KiB"', Reason.QUEUE),
        ('job_queue = "16KiB"', Reason.QUOTA),
        ("job_cpus = 0.000001", Reason.QUOTA),
        ('egress = "1B"', Reason.EGRESS),
    ],
)
def test_sample_that_may_not_begin_at_the_last_moment_goes_out_raw_with_the_bound_that_held_it_up(
    schedule: Scheduled, tmp_path: Path, bound: str, reason: Reason
) -> None:
    with node(tmp_path, schedule.lake, f"{NO_LOAD}\n{bound}") as found:
        found.tell(0, ranks=[0])
        if reason is Reason.EGRESS:
            found.group(1, 0)
            wait_until(lambda: found.status()["load"]["egress"] > 1, "bytes that left the node")
        else:
            wait_until(lambda: found.status()["jobs"]["run7"]["cpus"], "what may be made, and what it took")
        found.tell(10, ranks=[0])
        wait_until(lambda: found.status()["queue"]["held"].get(reason), "samples that may not begin")
        found.tell(11, ranks=[0])
        reasons = {envelope.reason for envelope, _ in found.group(11, 0).values()}
        assert reason in reasons
        assert reasons <= {reason, None, Reason.LATE}, "what had begun is ready, or was aborted"
        assert reason in found.status()["jobs"]["run7"]["raw"]


@pytest.mark.slow
def test_transform_that_runs_when_its_step_begins_is_aborted_and_its_raw_bytes_go_out(
    schedule: Scheduled, tmp_path: Path
) -> None:
    _, keys = signed(tmp_path, "spin", SPIN_DECLARATION, SPIN)
    with node(tmp_path, schedule.lake, f'{NO_LOAD}\noperators = "{tmp_path}"\nkeys = "{keys}"') as found:
        found.tell(41)
        wait_until(lambda: found.status()["running"], "a transform that never ends")
        found.tell(42)
        (sample,) = found.group(42, 0).values()
        assert (sample[0].reason, sample[1]) == (Reason.LATE, b"round and round")
        job = found.status()["jobs"]["run7"]
        assert (job["aborted"], job["raw"]) == ({Reason.LATE: 1}, {Reason.LATE: 1})
        wait_until(lambda: not found.status()["running"], "the end of its process")


@pytest.mark.slow
def test_sandbox_that_is_killed_in_a_step_costs_no_sample(schedule: Scheduled, tmp_path: Path) -> None:
    with node(tmp_path, schedule.lake) as found:
        found.tell(0)
        zygotes = subprocess.run(
            ["pgrep", "-P", str(found.process.pid), "-f", "zygote"], capture_output=True, text=True, check=True
        ).stdout.split()
        for pid in zygotes:
            subprocess.run(["kill", "-9", pid], check=True)
        for step in range(1, 9):
            for rank in range(2):
                assert sorted(found.group(step, rank)) == [0, 1, 2]
            found.tell(step)
        assert sum(found.status()["jobs"]["run7"]["raw"].values()) <= 2


@pytest.mark.slow
def test_node_that_is_killed_and_started_again_goes_on(schedule: Scheduled, tmp_path: Path) -> None:
    with node(tmp_path, schedule.lake) as found:
        found.tell(0)
        before = found.group(1, 0)
        found.process.send_signal(signal.SIGKILL)
        found.process.wait()
        with node(tmp_path, schedule.lake) as again:
            again.tell(0)
            assert again.group(1, 0) == before


def test_node_that_others_keep_busy_gives_raw_at_once_with_the_same_bytes(schedule: Scheduled, tmp_path: Path) -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with node(tmp_path, schedule.lake, "cpu = 0.05") as found:
            wait_until(lambda: found.status()["load"]["stopped_by"] == Reason.CPU, "a node that is busy")
            found.tell(0)
            group = found.group(1, 0)
            assert {envelope.reason for envelope, _ in group.values()} == {Reason.CPU}
            assert {slot: body for slot, (_, body) in group.items()} == {
                slot: schedule.raw[1, 0, slot] for slot in range(3)
            }  # fmt: skip
    finally:
        burning.kill()
        burning.wait()


@pytest.mark.skipif(bool(why_no_tls()), reason=why_no_tls())
def test_node_speaks_tls_where_it_has_a_certificate(schedule: Scheduled, tmp_path: Path) -> None:
    make_certificate(tmp_path)
    more = f'{NO_LOAD}\ncertificate = "{tmp_path}/host.pem"\nkey = "{tmp_path}/host.key"'
    with node(tmp_path, schedule.lake, more) as found:
        assert found.url.startswith("https://")
        request = urllib.request.Request(found.url + nodewire.STATUS, headers={"Authorization": f"Bearer {TOKEN}"})
        context = ssl.create_default_context(cafile=str(tmp_path / "host.pem"))
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            assert answer.status == 200


def test_operator_command_runs_what_a_node_runs(schedule: Scheduled, tmp_path: Path) -> None:
    source, made = tmp_path / "picture.jpg", tmp_path / "made.npy"
    source.write_bytes(media.jpeg())
    for flag in ("--sandbox", "--no-sandbox"):
        words = ["operator", "run", "image", str(source), "--params", '{"resize":16}', "-o", str(made), flag]
        said = json.loads(subprocess.check_output([sys.executable, "-m", "vfs.cli", *words]))
        assert np.load(made).shape == (3, 16, 24)
        assert said["digest"] == digest_of(made.read_bytes())


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2fup", "a%2f..%2fb", "nul%00", ".hidden"])
def test_job_whose_name_leads_elsewhere_is_refused(service: Node, name: str) -> None:
    assert service.ask("PUT", nodewire.JOB.format(job=name), {"declaration": "jobs/run7.toml", "step": 0})[0] in (400, 404)
    assert service.ask("GET", nodewire.GROUP.format(job=name, step=0, rank=0))[0] in (400, 404)


def test_node_leaves_no_core_and_shows_no_token(service: Node) -> None:
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    for pid in (str(service.process.pid), *children):
        place = Path("/proc") / pid
        assert re.search(r"Max core file size +0 ", (place / "limits").read_text())
        assert TOKEN not in (place / "cmdline").read_text() + (place / "environ").read_text()
