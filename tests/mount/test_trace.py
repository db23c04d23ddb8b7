"""`foremount trace` on a mount that is up: what is in the file, and that nothing else changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.checkpoint import write_checkpoint
from tests.lake import Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin
from vfs.traces.parquet import Trace, load
from vfs.traces.records import How

pytestmark = MOUNT
CONFIG = """
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""
SIZE = 3_000_000
READ = "import os, sys; file = open(sys.argv[1], 'rb', buffering=0)\nwhile file.read(1 << 20): pass\nprint(os.getpid())"


@pytest.fixture(scope="module")
def lake(wan_origin_server: WanOrigin) -> Iterator[Lake]:
    """A mount of files that each test reads for the first time."""
    root = wan_origin_server.root / "trace"
    root.mkdir()
    for name in ("read", "again", "killed", "large", "ended", "busy"):
        (root / name).write_bytes(os.urandom(SIZE))
    write_checkpoint(root / "step_1", layers=6, width=512, vocabulary=8000)
    with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/trace")) as lake:
        yield lake


def record(lake: Lake, *command: str) -> tuple[Trace, str, dict[str, Any]]:
    """Record a command; return the trace, what the command said and what `foremount trace` said."""
    path = str(lake.base / "trace.parquet")
    said = foremount("trace", str(lake.root), "-o", path, "--json", "--", *command).stdout
    printed, _, facts = said.partition("{")
    return load(path), printed.strip(), json.loads("{" + facts)


def rows(trace: Trace, name: str) -> Iterator[tuple[How, int, int, int]]:
    """Yield (how, offset, length, thread) of the events of a file."""
    for index in range(len(trace)):
        if trace.files[trace.file[index]][0] == name:
            yield How(trace.how[index]), int(trace.offset[index]), int(trace.length[index]), int(trace.thread[index])


def test_each_byte_that_a_command_reads_is_in_the_trace_with_its_process(lake: Lake) -> None:
    trace, pid, facts = record(lake, sys.executable, "-c", READ, str(lake.root / "read"))
    events = list(rows(trace, "read"))
    read = [event for event in events if event[0] in (How.HIT, How.FETCHED)]
    covered = np.zeros(SIZE, bool)
    for _, offset, length, _ in read:
        covered[offset : offset + length] = True
    assert covered.all()
    assert events[0][0] is How.OPENED
    assert How.FETCHED in {how for how, *_ in read}
    assert events[-1][0] is How.CLOSED
    assert facts["lost"] == trace.meta.lost == 0
    assert facts["events"] == trace.meta.rows == len(trace)
    if not knows_threads(lake):
        pytest.skip("the extension was built from an earlier version: reinstall")
    assert {thread for how, *_, thread in events if how is not How.CLOSED} == {int(pid)}


def knows_threads(lake: Lake) -> bool:
    """Return whether the worker's extension tells who asks."""
    words = "from vfs.kernel.passthrough import load_shim; print(hasattr(load_shim(), 'caller'))"
    return subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout == "True\n"


def test_file_that_the_kernel_reads_alone_is_recorded_as_opened(lake: Lake) -> None:
    (lake.root / "again").read_bytes()

    def recorded() -> list[How]:
        command = (sys.executable, "-c", READ, str(lake.root / "again"))
        return [how for how, *_ in rows(record(lake, *command)[0], "again")]

    # the agent seals the complete file in the background; until then it is read through the page cache
    assert wait_until(lambda: How.PASSTHROUGH in (hows := recorded()) and hows, "passthrough")[0] is How.PASSTHROUGH
    assert set(recorded()) <= {How.PASSTHROUGH, How.CLOSED}


def test_nothing_is_restarted_and_nothing_is_recorded_outside(lake: Lake) -> None:
    before = lake.state()
    record(lake, "true")
    (lake.root / "ended").read_bytes()
    trace, _, _ = record(lake, "true")
    assert len(trace) == 0
    assert lake.state() == before
    assert lake.log("worker").count("serving, passthrough") == 1


def test_second_recording_is_refused_while_one_goes_on(lake: Lake, tmp_path: Path) -> None:
    with recording(lake, tmp_path / "first.parquet") as first:
        refused = foremount("trace", str(lake.root), "-o", str(tmp_path / "second.parquet"), "--", "true", check=False)
        assert refused.returncode == 1
        assert "another recording" in refused.stderr
        assert not (tmp_path / "second.parquet").exists()
        (lake.root / "busy").read_bytes()
        end(first)
    assert {how for how, *_ in rows(load(str(tmp_path / "first.parquet")), "busy")} >= {How.OPENED, How.FETCHED}


def test_recording_outlives_a_worker_and_an_agent_that_are_killed(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "killed.parquet"
    with recording(lake, path) as recorder, open(lake.root / "killed", "rb", buffering=0) as file:
        os.pread(file.fileno(), 1000, 0)
        kill(lake, "worker")
        os.pread(file.fileno(), 1000, 1 << 20)
        kill(lake, "agent")
        os.pread(file.fileno(), 1000, 2 << 20)
        end(recorder)
    trace = load(str(path))
    assert trace.meta.gaps == 1  # of the agent; the worker's is over before anybody reads
    offsets = [offset for how, offset, *_ in rows(trace, "killed") if how in (How.HIT, How.FETCHED)]
    assert max(offsets) >= (2 << 20) - (1 << 20)


def kill(lake: Lake, process: str) -> None:
    """Kill a process and return when another one records."""
    before = lake.log("worker").count("recording")
    os.kill(lake.pid(process), signal.SIGKILL)
    wait_until(lambda: lake.log("worker").count("recording") > before, f"a recording after the {process}'s end")


class recording:
    """A recording that goes on in a process of its own while the block runs."""

    def __init__(self, lake: Lake, path: Path) -> None:
        words = [sys.executable, "-m", "vfs.cli", "trace", str(lake.root), "-o", str(path)]
        begun = lake.log("worker").count("recording")
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: lake.log("worker").count("recording") > begun, "the recording")

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def end(recorder: subprocess.Popen[str]) -> None:
    """End a recording as Ctrl-C does, and wait for its file."""
    recorder.send_signal(signal.SIGINT)
    assert recorder.wait(20) == 0


def test_recording_ends_when_its_file_has_reached_its_size(lake: Lake, tmp_path: Path) -> None:
    path, stop = tmp_path / "large.parquet", threading.Event()

    def read() -> None:
        while not stop.is_set():
            with open(lake.root / "large", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), 4096, 0)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        said = json.loads(foremount("trace", str(lake.root), "-o", str(path), "--size-max", "1B", "--json").stdout)
    finally:
        stop.set()
        reader.join()
    assert said["ended"] == "the file has reached 1 B"
    assert said["events"] == len(load(str(path)))


def test_replay_of_a_real_run_fetches_what_the_run_fetched(lake: Lake, wan_origin: WanOrigin, tmp_path: Path) -> None:
    wan_origin.shape(rtt_ms=20, mbit=1000)
    path = str(tmp_path / "run.parquet")
    reader = (sys.executable, "-m", "tests.bench.read_tensors", str(lake.root / "step_1"), "--only", ".attn.")
    foremount("trace", str(lake.root), "-o", path, "--", *reader)
    document = tmp_path / "off.toml"
    document.write_text('format = 1\n[[rules]]\nname = "off"\nmatch = {}\nset = { prefetch = "off" }\n')
    said = json.loads(foremount("replay", path, "--policy", str(document), "--json").stdout)
    measured, replayed, off = said["runs"]
    assert len(load(path).layouts) == 2
    assert measured["reads"] == replayed["reads"] == off["reads"] > 96
    assert measured["wanted_bytes"] == replayed["wanted_bytes"]
    assert abs(replayed["fetched_bytes"] - measured["fetched_bytes"]) < 0.1 * measured["fetched_bytes"]
    assert off["hit_rate"] < min(measured["hit_rate"], replayed["hit_rate"])
    assert off["prefetched_bytes"] == 0
    assert off["wait_s"] > 2 * replayed["wait_s"]


def test_exit_status_is_that_of_the_command(lake: Lake, tmp_path: Path) -> None:
    path = str(tmp_path / "status.parquet")
    assert foremount("trace", str(lake.root), "-o", path, "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert foremount("trace", str(lake.root), "-o", path, "--", "no-such-command", check=False).returncode == 127
