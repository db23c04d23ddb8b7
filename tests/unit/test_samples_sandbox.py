"""Operators in their sandbox: real processes, real media, broken media."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("PIL", reason="the [media] extra is not installed")
pytest.importorskip("av", reason="the [media] extra is not installed")

from tests import media
from tests.lake import is_running, wait_until
from tests.operators import made
from vfs.errors import Unsupported
from vfs.samples.engines.local import LocalEngine
from vfs.samples.engines.protocol import task_of
from vfs.samples.model import Reason
from vfs.samples.operators.declare import Declaration, Output, digest_of_code
from vfs.samples.operators.registry import Operator, load_registry
from vfs.samples.sandbox.jail import Cell, Jail
from vfs.samples.sandbox.messages import Confinement, Settings, Task
from vfs.samples.sandbox.outcome import Fault, Made
from vfs.units import Bytes

HOSTILE = b"""
import ctypes, os, signal, socket, time

import numpy as np

def _answer(value):
    return np.frombuffer(str(value).encode(), dtype=np.uint8)

def _tried(attempt):
    try:
        attempt()
    except OSError as exc:
        return exc.errno
    return 0

def hostile(raw, params, rng):
    match params["do"]:
        case "crash":
            ctypes.string_at(8)
        case "abort":
            os.abort()
        case "leave":
            os._exit(0)
        case "spin":
            while True:
                pass
        case "sleep":
            while True:
                time.sleep(3600)
        case "eat":
            kept = []
            while True:
                kept.append(bytearray(64 << 20))
        case "fill":
            return np.zeros(params["size"], np.uint8)
        case "write":
            return _answer(_tried(lambda: open(params["path"], "w")))
        case "read":
            return _answer(_tried(lambda: open(params["path"]).read()))
        case "connect":
            return _answer(_tried(lambda: socket.socket().connect((b"127.0.0.1", params["port"]))))
        case "fork":
            return _answer(_tried(os.fork))
        case "signal":
            return _answer(_tried(lambda: os.kill(params["pid"], signal.SIGTERM)))
        case "execute":
            return _answer(_tried(lambda: os.execv("/bin/true", ["true"])))
        case "raw":
            def change():
                ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(raw)), 0, 1)
            try:
                change()
            except TypeError:
                return _answer("read-only")
            return _answer("written")
        case "uid":
            return _answer(os.geteuid())
        case "environment":
            return _answer(sorted(os.environ))
"""
HOSTILE_OPERATOR = Operator(
    Declaration(
        name="hostile",
        version="1",
        code="hostile.py",
        function="hostile",
        output=Output(formats=("npy",), dtypes=("uint8",), shape_max=(1 << 24,), bytes=Bytes(1 << 20)),
        time=1.0,
    ),
    digest_of_code(HOSTILE),
    {},
    HOSTILE,
)
OPERATORS = [*load_registry().operators.values(), HOSTILE_OPERATOR]
NPY_HEADER_BYTES = 128


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    os.environ["AWS_SECRET_ACCESS_KEY"] = "not for operators"
    found = Jail(Settings(memory=256 << 20, idle=False), OPERATORS)
    yield found
    found.close()
    del os.environ["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def cell(jail: Jail) -> Iterator[Cell]:
    found = Cell(jail)
    yield found
    found.close()


def hostile(cell: Cell, do: str, **params: Any) -> Any:
    return cell.run(
        task_of(HOSTILE_OPERATOR.declaration, params=json.dumps({"do": do, **params}), seed=0, provenance="", size=4),
        b"\1\2\3\4",
    )


def said(outcome: Any) -> str:
    assert isinstance(outcome, Made), outcome
    return outcome.file[NPY_HEADER_BYTES:].decode()


def test_what_is_in_force_was_tried_out(jail: Jail) -> None:
    found = jail.start()
    assert isinstance(found, Confinement)
    assert (found.network, found.writes) == (True, True)
    assert found.by, found


@pytest.mark.parametrize(
    ("do", "reason", "word"),
    [
        ("crash", Reason.CRASHED, "SIGSEGV"),
        ("abort", Reason.CRASHED, "SIGABRT"),
        ("leave", Reason.CRASHED, "exit 0"),
        ("spin", Reason.TIME, "CPU"),
        pytest.param("sleep", Reason.TIME, "no answer", marks=pytest.mark.slow),
        ("eat", Reason.MEMORY, "memory"),
    ],
)
def test_operator_that_misbehaves_costs_one_sample(cell: Cell, do: str, reason: Reason, word: str) -> None:
    found = hostile(cell, do)
    assert isinstance(found, Fault)
    assert (found.reason, word in found.text) == (reason, True), found
    assert said(hostile(cell, "uid")).isdigit()


def test_output_of_exactly_its_declaration_comes_out_and_one_byte_more_does_not(cell: Cell) -> None:
    fits = (1 << 20) - NPY_HEADER_BYTES
    assert isinstance(hostile(cell, "fill", size=fits), Made)
    found = hostile(cell, "fill", size=fits + 1)
    assert isinstance(found, Fault)
    assert found.reason == Reason.OUTPUT


def test_operator_reaches_neither_network_nor_files_nor_processes(cell: Cell, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    tmp_path.chmod(0o777)
    secret.chmod(0o666)
    assert said(hostile(cell, "write", path=str(tmp_path / "made"))) != "0"
    assert said(hostile(cell, "write", path=str(secret))) != "0"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert said(hostile(cell, "connect", port=listener.getsockname()[1])) != "0"
    assert said(hostile(cell, "raw")) == "read-only"
    assert "AWS_SECRET_ACCESS_KEY" not in said(hostile(cell, "environment"))
    assert secret.read_text() == "token"
    if os.geteuid() == 0:
        assert said(hostile(cell, "uid")) == "65534"


def test_what_the_kernel_has_for_it_refuses_reading_forking_executing_and_signals(
    cell: Cell, jail: Jail, tmp_path: Any
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    tmp_path.chmod(0o755)
    by = " ".join(jail.start().by)
    if "landlock" in by:
        assert said(hostile(cell, "read", path=str(secret))) != "0"
    if "seccomp" not in by:
        pytest.skip(f"no seccomp here: {jail.start().missing}")
    assert said(hostile(cell, "fork")) == "1"
    assert said(hostile(cell, "execute")) == "1"
    assert said(hostile(cell, "signal", pid=os.getpid())) == "1"


def test_process_is_replaced_after_its_number_of_samples() -> None:
    short = Jail(Settings(samples_per_process=2, idle=False), [HOSTILE_OPERATOR])
    cell = Cell(short)
    pids = []
    for _ in range(4):
        said(hostile(cell, "uid"))
        pids.append(cell._pid)
    cell.close()
    short.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_operators_have_only_what_other_sessions_leave() -> None:
    spare = Jail(Settings(), [HOSTILE_OPERATOR])
    cell = Cell(spare)
    said(hostile(cell, "uid"))
    policy = os.sched_getscheduler(cell._pid)
    share = ""
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{cell._pid}/autogroup") as file:  # a kernel without them
        share = file.read()
    cell.close()
    spare.close()
    assert policy == os.SCHED_IDLE
    assert not share or share.endswith("nice 19\n")


def test_zygote_that_is_killed_is_started_again(cell: Cell, jail: Jail) -> None:
    said(hostile(cell, "uid"))
    zygote = jail._zygote
    assert zygote is not None
    child = cell._pid
    zygote.kill()
    wait_until(lambda: not is_running(child), "the child's end with its zygote")
    assert isinstance(hostile(cell, "uid"), Fault)
    assert said(hostile(cell, "uid")).isdigit()


def test_code_that_can_not_be_loaded_is_refused_with_its_words() -> None:
    broken = Operator(HOSTILE_OPERATOR.declaration, "", {}, b"import nothing_of_that_name\n")
    jail = Jail(Settings(), [broken])
    with pytest.raises(Unsupported, match="nothing_of_that_name"):
        jail.start()


def test_same_sample_is_the_same_bytes_in_the_sandbox_and_in_a_plain_script(cell: Cell) -> None:
    for name, raw, params in (
        ("image@1", media.jpeg(), '{"crop":{"at":"resized","size":[24,24]},"flip":"random"}'),
        ("video@1", media.mp4(), '{"format":"safetensors","frames":{"uniform":3}}'),
        ("audio@1", media.wav(), '{"mono":true,"rate":8000,"window":{"at":"random","seconds":0.2}}'),
    ):
        here = made(name, raw, params=params, seed=11, provenance="{}")
        declaration = load_registry().find(name).declaration
        task = task_of(declaration, params=params, seed=11, provenance="{}", size=len(raw))
        there = cell.run(task, raw)
        assert isinstance(there, Made), (name, there)
        assert there.file == here, name


@pytest.mark.slow
def test_broken_media_cost_their_own_samples_only(cell: Cell) -> None:
    kinds = {"image@1": media.jpeg(), "video@1": media.mp4(), "audio@1": media.wav(0.1)}
    outcomes: dict[str, int] = {}
    for name, raw in kinds.items():
        declaration = load_registry().find(name).declaration
        whole = cell.run(task_of(declaration, params="", seed=1, provenance="", size=len(raw)), raw)
        assert isinstance(whole, Made)
        for seed in range(150):
            broken = media.mutated(raw, seed)
            found = cell.run(task_of(declaration, params="", seed=1, provenance="", size=len(broken)), broken)
            kind = "made" if isinstance(found, Made) else found.reason
            outcomes[f"{name} {kind}"] = outcomes.get(f"{name} {kind}", 0) + 1
        again = cell.run(task_of(declaration, params="", seed=1, provenance="", size=len(raw)), raw)
        assert isinstance(again, Made)
        assert again.file == whole.file
    assert any(key.endswith("failed") for key in outcomes), outcomes


async def test_cancelled_transform_leaves_no_process_at_work() -> None:
    engine = LocalEngine(Settings(idle=False), [HOSTILE_OPERATOR], seats=1)
    try:
        await engine.start()
        task = task_of(HOSTILE_OPERATOR.declaration, params='{"do":"sleep"}', seed=0, provenance="", size=1)
        running = asyncio.ensure_future(engine.transform(task, b"x"))
        pid = await until(lambda: engine._cells[0]._pid)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not is_running(pid)
        next_task = Task(**{**{name: getattr(task, name) for name in task.__struct_fields__}, "params": '{"do":"uid"}'})
        assert isinstance(await engine.transform(next_task, b"x"), Made)
    finally:
        await engine.close()


async def until(found: Any) -> int:
    """Return a process id once there is one."""
    async with asyncio.timeout(20):
        while (value := found()) <= 0:
            await asyncio.sleep(0.005)
    return int(value)
