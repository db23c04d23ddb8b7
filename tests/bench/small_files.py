"""10,000 files of 16 KiB, open+read+close, cold and warm, 1 and 8 threads, against other mounts of the same S3 server."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import NotHere, alternate, seconds, spread, written_calls
from tests.bench.peers import PEERS
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, why_no_mount
from tests.servers.lifecycle import Missing
from tests.servers.seaweedfs import SeaweedFs, credentials, seaweedfs

FILES = 10_000
COLD_FILES = 1_000
"""For the cold pass with one thread: other files than the 10,000, which are read cold by 8 threads and warm afterwards."""
DIRECTORIES = 10
FILE_BYTES = 16 << 10
THREADS = (1, 8)
ROUNDS = 5
OURS, LOCAL = "foremount", "foremount, local site"
CONFIG = """
[sites.s3]
kind = "s3"
url = "{url}"
endpoint = "{endpoint}"
credentials_file = "{{base}}/credentials"
[sites.disk]
kind = "local"
path = "{{base}}/source"
[[mounts]]
prefix = "/s3"
site = "s3"
[[mounts]]
prefix = "/disk"
site = "disk"
[cache]
directory = "{{base}}/cache"
size = "2GiB"
[limits]
listing_ttl = "1h"
"""


@dataclass(frozen=True)
class Files:
    """Names and contents.

    Attributes:
        warm: what is measured warm, in an order of its own.
        cold: read once, by one thread.
    """

    warm: list[str]
    cold: list[str]
    content: dict[str, bytes]


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure every side that this machine has."""
    if why := why_no_mount():
        raise NotHere(why)
    outcome = Outcome()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-bench-")))
        (base / "weed").mkdir()
        try:
            server = stack.enter_context(seaweedfs(base / "weed"))
        except Missing as exc:
            raise NotHere(str(exc)) from exc
        files = make_files(int(FILES * scale), int(COLD_FILES * scale))
        say(f"uploading {len(files.content)} files")
        upload(server, base / "source", files)
        (base / "credentials").write_text(credentials())
        lake = stack.enter_context(mounted(CONFIG.format(url=server.url("small"), endpoint=server.endpoint), base))
        sides = {OURS: lake.root / "s3", LOCAL: lake.root / "disk", **peers(stack, server, base, outcome)}
        cold = measure_cold(sides, files, say)
        warm = {threads: measure_warm(sides, files, threads, say) for threads in THREADS}
        requests = requests_per_file(lake, sides[OURS], files)
        conclude(outcome, sides, cold, warm, requests, files)
    return outcome


def make_files(warm: int, cold: int) -> Files:
    """Return names and contents, the same every time; neighbours in a directory are not neighbours in time. Pure."""
    rng = random.Random(8)
    names = [f"warm_{index % DIRECTORIES}/{index:06d}.bin" for index in range(warm)]
    others = [f"cold/{index:06d}.bin" for index in range(cold)]
    content = {name: rng.randbytes(FILE_BYTES) for name in (*names, *others)}
    rng.shuffle(names)
    return Files(names, others, content)


def upload(server: SeaweedFs, source: Path, files: Files) -> None:
    """Put the files below lake/small, and into a directory of this host."""
    store = server.filesystem()

    def put(name: str) -> None:
        with store.open_output_stream(f"lake/small/{name}") as target:
            target.write(files.content[name])
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(files.content[name])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, files.content))


def peers(stack: ExitStack, server: SeaweedFs, base: Path, outcome: Outcome) -> dict[str, Path]:
    """Mount every peer that is installed; say why where one is not."""
    found = {}
    for name, mount in PEERS.items():
        try:
            found[name] = stack.enter_context(mount(server, "small", base / name))
        except Missing as exc:
            outcome.skipped[name] = str(exc)
        except (RuntimeError, AssertionError) as exc:
            outcome.skipped[name] = f"does not mount: {exc}"
    return found


def measure_cold(sides: dict[str, Path], files: Files, say: Callable[[str], None]) -> dict[str, tuple[float, float]]:
    """Return seconds per file of the first reading, checked byte by byte: with one thread, and with eight."""
    found = {}
    for name, root in sides.items():
        say(f"{name}: cold, then checked")
        one = seconds(lambda root=root: read_all(root, files.cold, 1, files.content)) / len(files.cold)
        many = seconds(lambda root=root: read_all(root, files.warm, 8, files.content)) / len(files.warm)
        found[name] = (one, many)
    return found


def measure_warm(
    sides: dict[str, Path], files: Files, threads: int, say: Callable[[str], None]
) -> dict[str, list[float]]:  # fmt: skip
    """Return seconds per file of each round."""
    say(f"warm, {threads} threads, {ROUNDS} rounds, sides alternate")
    works = {name: (lambda root=root: read_all(root, files.warm, threads)) for name, root in sides.items()}
    alternate(works, 1)
    taken = alternate(works, ROUNDS)
    return {name: [each / len(files.warm) for each in values] for name, values in taken.items()}


def read_all(root: Path, names: list[str], threads: int, content: dict[str, bytes] | None = None) -> None:
    """Open, read and close every file; with `content`, compare."""
    paths = [(os.path.join(root, name), name) for name in names]

    def read_some(some: list[tuple[str, str]]) -> None:
        for path, name in some:
            fd = os.open(path, os.O_RDONLY)
            got = os.read(fd, FILE_BYTES)
            os.close(fd)
            assert len(got) == FILE_BYTES and (content is None or got == content[name]), f"{path}: wrong bytes"

    if threads == 1:
        read_some(paths)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read_some, [paths[index::threads] for index in range(threads)]))


def requests_per_file(lake: Lake, root: Path, files: Files) -> float:
    """Return how often the fs worker answered the kernel for each file of a warm pass.

    The worker's writes are its answers: /proc counts them, without any cost to what is measured.
    """
    io = Path(f"/proc/{lake.pid('worker')}/io")
    before = written_calls(io.read_text())
    read_all(root, files.warm, 1)
    return (written_calls(io.read_text()) - before) / len(files.warm)


def conclude(
    outcome: Outcome,
    sides: dict[str, Path],
    cold: dict[str, tuple[float, float]],
    warm: dict[int, dict[str, list[float]]],
    requests: float,
    files: Files,
) -> None:
    """Fill in figures and table."""
    rows = []
    for name in sides:
        key = name.replace(", ", "_").replace(" ", "_")
        row = [name]
        for threads, value in zip(THREADS, cold[name], strict=True):
            outcome.figures[f"{key}_cold_{threads}_us"] = value * 1e6
            row.append(f"{value * 1e6:.0f} µs")
        for threads in THREADS:
            found = spread(warm[threads][name])
            outcome.figures[f"{key}_warm_{threads}_us"] = found.median * 1e6
            row.append(f"{found.median * 1e6:.0f} µs ({found.low * 1e6:.0f}-{found.high * 1e6:.0f})")
        rows.append(row)
    others = [name for name in sides if name in PEERS]
    for threads in THREADS:
        if others:
            best = min(spread(warm[threads][name]).median for name in others)
            suffix = "" if threads == 1 else f"_{threads}_threads"
            outcome.figures[f"warm_vs_best_peer{suffix}"] = best / spread(warm[threads][OURS]).median
    outcome.figures["requests_per_file_warm"] = requests
    title = (
        f"per file of {FILE_BYTES >> 10} KiB over {len(files.warm)} ({len(files.cold)} for cold with 1 thread); "
        f"{requests:.2f} kernel requests each"
    )
    columns = ["side", "cold, 1 thread", "cold, 8 threads", "warm, 1 thread", "warm, 8 threads"]
    outcome.sections.append(Section(title, columns, rows))
