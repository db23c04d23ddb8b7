"""kill -9 of the fs worker, again and again, under readers that verify every byte: open, held, mapped, listed, stat'ed."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from tests.bench.measure import NotHere, spread
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, wait_until, why_no_mount
from tests.servers.wan_origin import wan_origin

KILLS = 25
SMALL_FILES = 500
SMALL_BYTES = 16 << 10
BIG_BYTES = 64 << 20
LISTED = 4_000
OPERATIONS_BETWEEN = 20
"""Of each reader, before the next kill: every kind of reader has used every worker."""
LIFE_S = 1.0
"""Of each worker: the keeper takes several that end within half a second for a crash loop, and pauses between starts."""
PAUSE_S = 0.001
"""Between two operations of a reader: ten that spin on a machine of two cores would measure the scheduler."""
ERRORS_KEPT = 5
CONFIG = """
[sites.disk]
kind = "local"
path = "{{base}}/source"
[sites.far]
kind = "http"
url = "{url}"
[[mounts]]
prefix = "/local"
site = "disk"
[[mounts]]
prefix = "/far"
site = "far"
[cache]
directory = "{{base}}/cache"
size = "1GiB"
"""


@dataclass(frozen=True)
class Tally:
    """What one reader saw.

    Attributes:
        longest_s: of one operation, from the call to its answer.
    """

    name: str
    operations: int
    longest_s: float
    errors: list[str]


Operation = Callable[[], None]
Reader = Callable[[Path, Path], Iterator[None]]
"""A generator that does one verified operation at each step; arguments: tree through the mount, the source itself."""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Kill, count errors, and take the longest wait of any operation."""
    if why := why_no_mount():
        raise NotHere(why)
    kills = max(3, int(KILLS * scale))
    with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made:
        base = Path(made)
        source = base / "source"
        say("writing what is read")
        write_source(source)
        with (
            wan_origin(source, rtt_ms=0, mbit=0, log=base / "origin.log") as origin,
            mounted(CONFIG.format(url=origin.url), base) as lake,
        ):
            lake.command("fetch", str(lake.root / "far" / "small"))
            say(f"{kills} kills under {len(READERS)} readers")
            with reading(lake.root, source) as readers:
                recoveries = [kill_once(lake, readers) for _ in range(kills)]
                tallies = readers.finish()
            return outcome_of(kills, recoveries, tallies)


def outcome_of(kills: int, recoveries: list[float], tallies: list[Tally]) -> Outcome:
    """Return figures and table."""
    errors = sum(len(tally.errors) for tally in tallies)
    longest = max(tally.longest_s for tally in tallies)
    recovery = spread(recoveries)
    rows = [
        [tally.name, str(tally.operations), str(len(tally.errors)), f"{tally.longest_s:.3f} s", "; ".join(tally.errors)[:300]]
        for tally in tallies
    ]
    outcome = Outcome(
        figures={
            "kills": kills,
            "errors": errors,
            "longest_wait_s": longest,
            "operations": sum(tally.operations for tally in tallies),
            "serving_again_s": recovery.median,
            "serving_again_s_max": recovery.high,
        },
        sections=[Section(f"{kills} kills of the fs worker", ["reader", "operations", "errors", "longest", ""], rows)],
    )
    if errors:
        outcome.broken.append(f"{errors} operations failed or returned wrong bytes")
    return outcome


def kill_once(lake: Lake, readers: Readers) -> float:
    """Kill the worker once every reader has worked with it; return the seconds until the next one serves."""
    before, kill_at = readers.operations(), time.monotonic() + LIFE_S
    wait_until(
        lambda: (
            time.monotonic() > kill_at
            and all(now >= then + OPERATIONS_BETWEEN for now, then in zip(readers.operations(), before, strict=True))
        ),
        "operations of every reader",
    )
    pid = lake.pid("worker")
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (worker := lake.state()["worker"])["ready"] and worker["pid"] not in (0, pid), "the next worker")
    return time.perf_counter() - start


def write_source(source: Path) -> None:
    """Write small files, a big one and a long directory, the same every time."""
    rng = random.Random(5)
    (source / "small").mkdir(parents=True)
    (source / "long").mkdir()
    for index in range(SMALL_FILES):
        (source / "small" / f"{index:04d}").write_bytes(rng.randbytes(SMALL_BYTES))
    for index in range(LISTED):
        (source / "long" / f"entry_{index:05d}").touch()
    (source / "big").write_bytes(rng.randbytes(BIG_BYTES))


def open_and_read(tree: Path, source: Path) -> Iterator[None]:
    """Open, read and close small files."""
    wanted = [(source / "small" / f"{index:04d}").read_bytes() for index in range(SMALL_FILES)]
    rng = random.Random(os.getpid())
    while True:
        index = rng.randrange(SMALL_FILES)
        fd = os.open(tree / "small" / f"{index:04d}", os.O_RDONLY)
        try:
            assert os.read(fd, SMALL_BYTES + 1) == wanted[index], "wrong bytes"
        finally:
            os.close(fd)
        yield


def read_held(tree: Path, source: Path) -> Iterator[None]:
    """Read anywhere in a file that is open all the time."""
    held, true = os.open(tree / "big", os.O_RDONLY), os.open(source / "big", os.O_RDONLY)
    rng = random.Random(os.getpid())
    while True:
        offset = rng.randrange(BIG_BYTES - 100_000)
        assert os.pread(held, 100_000, offset) == os.pread(true, 100_000, offset), "wrong bytes"
        yield


def read_mapped(tree: Path, source: Path) -> Iterator[None]:
    """Read anywhere in a file that is mapped all the time; its pages are dropped now and then."""
    true = os.open(source / "big", os.O_RDONLY)
    fd = os.open(tree / "big", os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
    rng = random.Random(os.getpid())
    for step in range(1 << 62):
        if step % 100 == 0:
            mapped.madvise(mmap.MADV_DONTNEED)
        offset = rng.randrange(BIG_BYTES - 8192)
        assert mapped[offset : offset + 8192] == os.pread(true, 8192, offset), "wrong bytes"
        yield


def list_slowly(tree: Path, _source: Path) -> Iterator[None]:
    """Walk through a long directory and stat each entry: one stream outlives several workers."""
    while True:
        seen = []
        with os.scandir(tree / "long") as entries:
            for entry in entries:
                seen.append(entry.name)
                assert entry.stat().st_size == 0, "wrong size"
                yield
        assert sorted(seen) == [f"entry_{index:05d}" for index in range(LISTED)], "wrong listing"


def stat_anything(tree: Path, _source: Path) -> Iterator[None]:
    """Ask for attributes."""
    rng = random.Random(os.getpid())
    while True:
        assert (tree / "small" / f"{rng.randrange(SMALL_FILES):04d}").stat().st_size == SMALL_BYTES, "wrong size"
        yield


READERS: list[tuple[str, str, Reader]] = [
    (f"{words}, {'local' if where == 'local' else 'cached from an origin'}", where, reader)
    for where in ("local", "far")
    for words, reader in (
        ("open+read+close", open_and_read),
        ("held handle", read_held),
        ("mapping", read_mapped),
        ("directory stream", list_slowly),
        ("stat", stat_anything),
    )
]


@dataclass
class Readers:
    """The running readers, a process each.

    Attributes:
        counts: operations so far, by reader.
        stop: set once, to end them all.
    """

    counts: list[Synchronized[int]]
    results: list[Connection]
    processes: list[multiprocessing.process.BaseProcess]
    stop: Synchronized[int]

    def operations(self) -> list[int]:
        """Return how many operations each has done."""
        return [count.value for count in self.counts]

    def finish(self) -> list[Tally]:
        """End them and return what they saw; one that gives no answer hangs in a call, which is an error of its own."""
        self.stop.value = 1
        tallies = []
        for (name, _, _), result, count in zip(READERS, self.results, self.counts, strict=True):
            answered = result.poll(60)
            tallies.append(result.recv() if answered else Tally(name, count.value, 60.0, ["hangs in a system call"]))
        return tallies


@contextmanager
def reading(root: Path, source: Path) -> Iterator[Readers]:
    """Run all readers until the block ends."""
    fork = multiprocessing.get_context("fork")
    readers = Readers([], [], [], fork.Value("i", 0))
    try:
        for name, where, reader in READERS:
            count, (receiving, sending) = fork.Value("i", 0), fork.Pipe(duplex=False)
            process = fork.Process(target=work, args=(name, reader(root / where, source), count, readers.stop, sending))
            process.start()
            sending.close()
            readers.counts.append(count)
            readers.results.append(receiving)
            readers.processes.append(process)
        yield readers
    finally:
        readers.stop.value = 1
        for process in readers.processes:
            process.join(10)
            process.kill()
            process.join()


def work(
    name: str, steps: Iterator[None], count: Synchronized[int], stop: Synchronized[int], answer: Connection
) -> None:  # fmt: skip
    """Do one reader's operations until told to stop; an error ends it, for its generator can't go on."""
    longest, errors = 0.0, []
    while not stop.value:
        start = time.perf_counter()
        try:
            next(steps)
        except (OSError, AssertionError) as exc:
            errors.append(f"{type(exc).__name__}: {exc}")
            break
        longest = max(longest, time.perf_counter() - start)
        count.value += 1
        time.sleep(PAUSE_S)
    while errors and not stop.value:  # the others still have to be waited for
        count.value += 1
        time.sleep(PAUSE_S)
    answer.send(Tally(name, count.value, longest, errors[:ERRORS_KEPT]))
