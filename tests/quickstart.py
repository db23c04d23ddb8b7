"""The main job on one machine, with real parts: `python -m tests.quickstart`; mount_scripts/quickstart.sh sets it up.

A checkpoint and photographs lie behind an HTTP origin at the end of a long line. They are read tensor by tensor from the
origin itself, then through the mount by unmodified safetensors and Pillow, then once more after `foremount fetch`. Every byte
is compared with the source, twice. Exit status 0 only if all of it held; mount, servers and files are gone afterwards.
"""

from __future__ import annotations

import argparse
import filecmp
import http.client
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors import safe_open

from tests.bench.checkpoint import Written, write_checkpoint
from tests.lake import Lake, mounted
from tests.servers.wan_origin import WanOrigin, wan_origin
from vfs.units import format_size

RTT_MS = 100
MBIT = 1000
IMAGES = 24
CONFIG = """
[sites.origin]
kind = "http"
url = "{url}"

[[mounts]]
prefix = "/lake"
site = "origin"

[cache]
directory = "{{base}}/cache"
size = "1GiB"
"""
Item = tuple[str, np.ndarray]
"""Name of a tensor or image, and its bytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table at the end."""

    what: str
    source: str
    seconds: float
    link_bytes: int
    requests: int


@dataclass
class Show:
    """What the user sees while it works: bars on a terminal, else a line for each step."""

    console: Console

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Show a step; what is yielded counts one piece of it as done."""
        parts = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        if not self.console.is_terminal:
            self.console.print(f"  {title}", highlight=False)
            yield lambda: None
            return
        with Progress(*parts, console=self.console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)
            progress.update(task, total=progress.tasks[task].completed or 1, completed=progress.tasks[task].completed or 1)


def main() -> int:
    """Run it all; return the exit status."""
    parser = argparse.ArgumentParser("tests.quickstart", description=(__doc__ or "").partition("\n\n")[2])
    parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the blocks below clean up
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if not os.path.exists("/dev/fuse"):
        console.print(
            "There is no /dev/fuse here: nothing can be mounted (modprobe fuse; in a container --device /dev/fuse)."
        )
        return 1
    started = time.monotonic()
    try:
        rows, problems, notes = perform(Show(console))
    except KeyboardInterrupt:
        console.print("Interrupted; nothing is left behind.")
        return 130
    console.print(table(rows))
    for note in notes:
        console.print(note, markup=False)
    for problem in problems:
        console.print(f"FAILED: {problem}", markup=False)
    if not problems:
        console.print(f"Every byte is the source's, both times. {time.monotonic() - started:.0f} s, nothing is left behind.")
    return 1 if problems else 0


def perform(show: Show) -> tuple[list[Row], list[str], list[str]]:
    """Return the table's rows, what did not hold, and remarks."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-quickstart-")))
        source = base / "source"
        with show.step("writing a checkpoint and photographs", IMAGES + 1) as done:
            checkpoint = write_checkpoint(source / "ckpt", layers=16, width=384, vocabulary=12_000)
            done()
            write_images(source / "images", done)
        show.console.print(
            f"  {checkpoint.tensors} tensors ({checkpoint.small} of them under 16 KiB) and {IMAGES} images, "
            f"{format_size(tree_bytes(source))}, behind {RTT_MS} ms and {MBIT} Mbit/s",
            highlight=False,
        )
        remains: list[str] = []
        stack.callback(remove_all, remains)
        origin = stack.enter_context(wan_origin(source, rtt_ms=RTT_MS, mbit=MBIT, log=base / "origin.log"))
        lake = stack.enter_context(mounted(CONFIG.format(url=origin.url), base))
        remains += what_stays_behind(lake)
        job = Job(source, lake, origin, checkpoint, show)
        job.read_origin_piece_by_piece()
        job.read_through_mount("the same, through the mount", "origin, through the mount")
        job.make_local()
        job.read_through_mount("the same, once more", job.how_local_files_are_read(), expect_quiet_link=True)
        return job.rows, job.problems, job.notes


def what_stays_behind(lake: Lake) -> list[str]:
    """Return the directories that an ordinary `foremount umount` leaves for a look: logs, and what the stores hold."""
    stores = (lake.status()["agent_says"] or {}).get("stores", {})
    return [lake.run_dir.path, *(store["directory"] for store in stores.values())]


def remove_all(directories: list[str]) -> None:
    """Remove each, whether or not it is there."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Job:
    """The steps, and what they found."""

    source: Path
    lake: Lake
    origin: WanOrigin
    checkpoint: Written
    show: Show
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def mounted(self) -> Path:
        return self.lake.root / "lake"

    @property
    def pieces(self) -> int:
        return self.checkpoint.tensors + IMAGES

    def read_origin_piece_by_piece(self) -> None:
        """A ranged GET for each tensor and a GET for each image on one kept connection: what a careful script would do."""
        found: list[Item] = []
        with self.show.step("reading the origin, a request for each tensor", self.pieces) as done, self._row() as row:
            connection = http.client.HTTPConnection("127.0.0.1", self.origin.port, timeout=60)
            for file in self.checkpoint.files:
                found += ranged_tensors(connection, f"/ckpt/{file.name}", done)
            for file in sorted((self.source / "images").iterdir()):
                found.append((file.name, pixels(io.BytesIO(get(connection, f"/images/{file.name}")))))
                done()
            connection.close()
        self._compare(found, "read from the origin")
        row(f"{self.pieces} tensors and images, a request each", "origin, one kept connection")

    def read_through_mount(self, what: str, source: str, *, expect_quiet_link: bool = False) -> None:
        """Read everything with the libraries that training uses, compare it, and compare whole files too."""
        found: list[Item] = []
        with self.show.step(f"reading through the mount: {source}", self.pieces) as done, self._row() as row:
            found += read_with_libraries(self.mounted, done)
        row(what, source)
        self._compare(found, source)
        for file in files_below(self.source):
            if not filecmp.cmp(self.source / file, self.mounted / file, shallow=False):
                self.problems.append(f"{file} read through the mount differs from its source")
        if expect_quiet_link and (self.rows[-1].link_bytes or self.origin.stats()["bytes"] != self._bytes_before):
            self.problems.append("bytes crossed the link although everything was local")

    def make_local(self) -> None:
        """`foremount fetch`, as the user types it."""
        with self.show.step("foremount fetch: making the tree local"), self._row() as row:
            said = self.lake.command("fetch", str(self.mounted), check=False)
        if said.returncode:
            self.problems.append(f"foremount fetch: {(said.stderr or said.stdout).strip()}")
        row("foremount fetch", "origin, what was missing")

    def how_local_files_are_read(self) -> str:
        """Return the words for the table, and note why where it is not passthrough."""
        status = self.lake.status()
        if status["passthrough"]:
            return "local copy, kernel passthrough"
        self.notes.append(f"No kernel passthrough on this machine: {status['why_no_passthrough']}")
        return "local copy, page cache"

    @contextmanager
    def _row(self) -> Iterator[Callable[[str, str], None]]:
        """Take time and link counters around the block; what is yielded adds the row afterwards."""
        before, start = self.origin.stats(), time.perf_counter()
        taken: list[Any] = []

        def add(what: str, source: str) -> None:
            seconds, after = taken
            crossed = after["bytes"] - before["bytes"]
            self.rows.append(Row(what, source, seconds, crossed, after["requests"] - before["requests"]))
            self._bytes_before = after["bytes"]

        yield add
        taken += [time.perf_counter() - start, self.origin.stats()]

    def _compare(self, found: list[Item], where: str) -> None:
        """Compare what was read with the source, read by the same libraries from the files themselves."""
        wanted = read_with_libraries(self.source, lambda: None)
        if [name for name, _ in found] != [name for name, _ in wanted]:
            self.problems.append(f"{where}: other tensors or images than in the source")
            return
        for (name, got), (_, true) in zip(found, wanted, strict=True):
            if got.nbytes != true.nbytes or not np.array_equal(got.view(np.uint8).ravel(), true.view(np.uint8).ravel()):
                self.problems.append(f"{where}: {name} differs from its source")


def read_with_libraries(root: Path, done: Callable[[], None]) -> list[Item]:
    """Return every tensor and image below `root`, read by unmodified safetensors and Pillow."""
    found: list[Item] = []
    for file in sorted((root / "ckpt").glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            for name in sorted(opened.keys()):
                found.append((name, opened.get_tensor(name)))
                done()
    for file in sorted((root / "images").iterdir()):
        found.append((file.name, pixels(file)))
        done()
    return found


def ranged_tensors(connection: http.client.HTTPConnection, path: str, done: Callable[[], None]) -> list[Item]:
    """Return a checkpoint file's tensors: its header in two requests, then one request each, in the order of the names."""
    length = int.from_bytes(get(connection, path, 0, 8), "little")
    header = json.loads(get(connection, path, 8, length))
    found = []
    for name in sorted(set(header) - {"__metadata__"}):
        first, end = header[name]["data_offsets"]
        found.append((name, np.frombuffer(get(connection, path, 8 + length + first, end - first), np.uint8)))
        done()
    return found


def get(connection: http.client.HTTPConnection, path: str, offset: int = 0, length: int | None = None) -> bytes:
    """Return a file of the origin, or a range of it."""
    headers = {} if length is None else {"Range": f"bytes={offset}-{offset + length - 1}"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status not in (200, 206):
        raise RuntimeError(f"{path}: the origin answered {answer.status}")
    return body


def pixels(source: Path | io.BytesIO) -> np.ndarray:
    """Return an image's pixels, decoded by Pillow."""
    with Image.open(source) as image:
        return np.asarray(image.convert("RGB"))


def write_images(directory: Path, done: Callable[[], None]) -> None:
    """Write pictures with the statistics of photographs: detail of all sizes, the finer the weaker."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for index in range(IMAGES):
        picture = np.zeros((600, 800, 3), np.float32)
        for octave in range(1, 7):
            coarse = rng.uniform(0, 255, (3 << octave, 4 << octave, 3)).astype(np.uint8)
            layer = Image.fromarray(coarse).resize((800, 600), Image.Resampling.BICUBIC)
            picture += np.asarray(layer, np.float32) * 0.5**octave
        image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
        if index % 4 == 3:
            image.resize((400, 300)).save(directory / f"photo_{index:03d}.png")
        else:
            image.save(directory / f"photo_{index:03d}.jpg", quality=90)
        done()


def files_below(root: Path) -> list[Path]:
    """Return every file below `root`, relative to it."""
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def tree_bytes(root: Path) -> int:
    """Return the bytes of all files below `root`."""
    return sum((root / file).stat().st_size for file in files_below(root))


def table(rows: list[Row]) -> Table:
    """Return the table; every time is set against that of the first row."""
    made = Table(title="What was read, from where, how long", title_justify="left")
    for name in ("what", "from"):
        made.add_column(name)
    for name in ("seconds", "x faster", "over the link", "requests"):
        made.add_column(name, justify="right")
    for row in rows:
        faster = f"{rows[0].seconds / row.seconds:.1f}"
        made.add_row(
            row.what, row.source, f"{row.seconds:.2f}", faster, format_size(row.link_bytes), str(row.requests)
        )  # fmt: skip
    return made


if __name__ == "__main__":
    sys.exit(main())
