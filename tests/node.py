"""A real `foremount node` for tests and benchmarks: a lake with media and a Parquet schedule, the process, and its client."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vfs.samples import nodewire, stream, tree
from vfs.samples.feeds.arrow import SCHEMA
from vfs.samples.model import Envelope

TOKEN = "0123456789abcdef-operate"
READ_TOKEN = "0123456789abcdef-read"
START_S = 60.0
CONFIG = """
[sites.disk]
kind = "local"
path = "{lake}"
[[mounts]]
prefix = "/"
site = "disk"
[node]
address = "127.0.0.1:0"
tokens = "{base}/tokens"
memory_free = 0.0
{more}
"""
NO_LOAD = "cpu = 0\nidle = false\nprocesses = 1"
"""Transforms whatever else this host does: nothing else may decide a test."""
IMAGE = {"crop": {"at": "random", "size": [32, 32]}, "resize": 48}


def _foremount(config: Path) -> list[str]:
    return [sys.executable, "-m", "vfs.cli", "node", "--config", str(config)]


@dataclass
class Scheduled:
    """A bin that is filled, and the rows of the schedule of a job that read it."""

    lake: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    raw: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    job: str = "run7"
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, step: int, rank: int, slot: int, raw: bytes, operator: str = "image@1", **changed: Any) -> None:
        """Have the bytes in the bin, once, and a row that reads them."""
        path = self.lake / "bins" / "0.bin"
        path.parent.mkdir(exist_ok=True)
        if raw not in self._places:
            with path.open("ab") as file:
                self._places[raw] = file.tell()
                file.write(raw)
        offset = self._places[raw]
        self.raw[step, rank, slot] = raw
        params = IMAGE if operator.startswith("image") else {}
        row = {
            "job": self.job, "step": step, "rank": rank, "slot": slot, "sample_id": f"s{step}-{rank}-{slot}",
            "source": "bins/0.bin", "offset": offset, "length": len(raw), "operator": operator,
            "params": json.dumps(params, sort_keys=True), "seed": 1 + slot + 100 * step, "dataset_version": "v1",
        }  # fmt: skip
        self.rows.append({**row, **changed})

    def write(self, document: str = "") -> None:
        """Write the schedule and the document of the job."""
        steps = self.lake / "jobs" / f"steps-{self.job}"
        steps.mkdir(parents=True, exist_ok=True)
        by_step: dict[int, list[dict[str, Any]]] = {}
        for row in self.rows:
            by_step.setdefault(row["step"], []).append(row)
        for step, rows in by_step.items():
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), steps / f"{tree.step_name(step)}.parquet")
        (self.lake / "jobs" / f"{self.job}.toml").write_text(f'{document}\n[feed]\nkind = "arrow"\npath = "{steps.name}"\n')


@dataclass
class Node:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]

    def ask(self, method: str, path: str, body: Any = None, token: str | None = TOKEN) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def tell(self, step: int = -1, **told: Any) -> None:
        """Tell the job and its progress."""
        body = {"declaration": "jobs/run7.toml", "step": step, **told}
        status, said = self.ask("PUT", nodewire.JOB.format(job="run7"), body)
        assert status == 200, said

    def group(self, step: int, rank: int) -> dict[int, tuple[Envelope, bytes]]:
        """Return a group by slot."""
        status, said = self.ask("GET", nodewire.GROUP.format(job="run7", step=step, rank=rank))
        assert status == 200, said
        return decoded(said)

    def status(self) -> dict[str, Any]:
        """Return its facts."""
        found: dict[str, Any] = json.loads(self.ask("GET", nodewire.STATUS)[1])
        return found


def decoded(text: bytes) -> dict[int, tuple[Envelope, bytes]]:
    """Return the samples of a whole stream by slot; fails where one comes twice."""
    decoder = stream.Decoder("group")
    found: dict[int, tuple[Envelope, bytes]] = {}
    last = -1
    for item in decoder.feed(text):
        if isinstance(item, Envelope):
            assert item.slot not in found
            last = item.slot
            found[last] = item, b""
        else:
            found[last] = found[last][0], found[last][1] + bytes(item)
    decoder.finish()
    return found


@contextmanager
def node(base: Path, lake: Path, more: str = NO_LOAD, command: Callable[[Path], list[str]] = _foremount) -> Iterator[Node]:
    """Start a node beside a directory, and end it.

    Args:
        base: scratch directory of this node alone.
        command: with a configuration file.
    """
    tokens = base / "tokens"
    tokens.write_text(f"operate agents {TOKEN}\nread people {READ_TOKEN}\n")
    tokens.chmod(0o600)
    config = base / "node.toml"
    config.write_text(CONFIG.format(lake=lake, base=base, more=more))
    process = subprocess.Popen(
        command(config),
        stdout=subprocess.PIPE,
        stderr=(base / "node.log").open("ab"),
    )
    try:
        yield Node(_address(process, base), process)
    finally:
        was_killed = process.poll() == -signal.SIGKILL  # by the test
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == 0 or was_killed, (base / "node.log").read_text()
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], base: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    while not select.select([process.stdout], [], [], 0.1)[0]:
        assert process.poll() is None and time.monotonic() < deadline, (base / "node.log").read_text()
    said = process.stdout.readline().decode()
    assert said.startswith("serving on "), (said, (base / "node.log").read_text())
    return said.removeprefix("serving on ").strip()
