"""A save into an object store: through the mount, through other mounts, and by the saver's own remote path.

What is measured is when the save returns (training goes on) and when the store has all of it. All sides write the same
bytes to the same SeaweedFS on this host, on the same disk: no side has a line to wait for, which favours those that upload
before they return.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.measure import alternate, ratios, spread
from tests.bench.peers import rclone, s3fs
from tests.bench.report import Outcome, Section
from tests.lake import FSYNC_IS_LOCAL, mounted, wait_until
from tests.servers import Missing
from tests.servers.seaweedfs import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFs, credentials, seaweedfs

SAVE_BYTES = 256 << 20
"""Of a checkpoint in 8 files: a few seconds for each side, also for those that rename by copying."""
ROUNDS = 3
STATE_BYTES = 128 << 20
STEPS, EVERY = 12, 4
STEP_S = 0.05
DURABLE_S = 60.0
CONFIG = """
policies = ["policy.toml"]
[sites.s3]
kind = "s3"
url = "{url}"
endpoint = "{endpoint}"
region = "{region}"
credentials_file = "{{base}}/credentials"
[[mounts]]
prefix = "/"
site = "s3"
writable = true
[cache]
directory = "{{base}}/cache"
"""
Save = Callable[[Path, int], None]


@contextlib.contextmanager
def foremount(server: SeaweedFs, prefix: str, base: Path) -> Iterator[Path]:
    """Mount a prefix of the bucket with Foremount; fsync means this disk."""
    base.mkdir()
    (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    (base / "credentials").write_text(credentials())
    config = CONFIG.format(url=server.url(prefix), endpoint=server.endpoint, region=REGION)
    with mounted(config, base) as lake:
        yield lake.root


SIDES: dict[str, Any] = {
    "foremount": foremount,
    "rclone": functools.partial(rclone, writes=True),
    "s3fs": functools.partial(s3fs, writes=True),
}


def run(
    base: Path, scale: float, save: Save, files: int, piece: int, outcome: Outcome, say: Callable[[str], None]
) -> None:  # fmt: skip
    """Fill in what the peers and the loop took; what is not installed is left out with the reason.

    Args:
        save: writes a checkpoint of `files` files into a directory, each a multiple of `piece` long.
    """
    file_bytes = max(1, int(SAVE_BYTES * scale) // files // piece) * piece
    (base / "weed").mkdir()
    try:
        with seaweedfs(base / "weed") as server:
            against_peers(server, base, file_bytes, files, save, outcome, say)
            stall(server, base, int(STATE_BYTES * scale), outcome, say)
    except Missing as exc:
        outcome.skipped["peers and stall"] = str(exc)


def against_peers(
    server: SeaweedFs, base: Path, file_bytes: int, files: int, save: Save, outcome: Outcome, say: Callable[[str], None]
) -> None:
    """Time the return of a save and when the store has its files, in turn through each mount."""
    returned: dict[str, list[float]] = {}
    durable: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        roots: dict[str, Path] = {}
        for name, mount in SIDES.items():
            server.filesystem().create_dir(f"lake/peers/{name}")  # s3fs mounts no prefix that is not there
            try:
                roots[name] = stack.enter_context(mount(server, f"peers/{name}", base / name))
            except Missing as exc:
                outcome.skipped[name] = str(exc)
        for index in range(ROUNDS):
            say(f"round {index + 1} of {ROUNDS}: a save of {files} files of {file_bytes >> 20} MiB through each mount")
            for name, root in list(roots.items())[:: 1 if index % 2 else -1]:
                target = root / f"step_{index}"
                target.mkdir()
                start = time.perf_counter()
                save(target, file_bytes)
                returned.setdefault(name, []).append(time.perf_counter() - start)
                at_store = functools.partial(_count, server, f"lake/peers/{name}/step_{index}", file_bytes)
                wait_until(lambda at_store=at_store: at_store() == files, f"{name}'s files at the store", DURABLE_S)
                durable.setdefault(name, []).append(time.perf_counter() - start)
    rows = []
    for name in returned:
        outcome.figures[f"save_{name}_s"] = spread(returned[name]).median
        outcome.figures[f"durable_{name}_s"] = spread(durable[name]).median
        over = spread(ratios(returned[name], returned["foremount"]))
        rows.append([name, _words(returned[name]), _words(durable[name]), f"{over.median:.2f}"])
    columns = ["mount", "save returns (lowest-highest)", "all at the store", "return over foremount's"]
    title = f"{files} files of {file_bytes >> 20} MiB by parallel processes with fsync, to SeaweedFS on this host"
    outcome.sections.append(Section(title, columns, rows))


def _words(seconds: list[float]) -> str:
    found = spread(seconds)
    return f"{found.median:.2f} s ({found.low:.2f}-{found.high:.2f})"


def _count(server: SeaweedFs, prefix: str, size: int) -> int:
    """Return how many objects of a size the store has directly below a prefix."""
    from pyarrow import fs

    found = server.filesystem().get_file_info(fs.FileSelector(prefix, allow_not_found=True))
    return sum(info.is_file and info.size == size for info in found)


def stall(server: SeaweedFs, base: Path, state_bytes: int, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Time what saving adds to a training loop: DCP through the mount, and DCP to the store by its own fsspec path."""
    try:
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        importlib.import_module("s3fs")  # fsspec finds it by itself
    except ImportError as exc:
        outcome.skipped["stall"] = f"needs torch and the Python package s3fs: {exc}"
        return
    state = {f"layer.{index}": torch.rand(state_bytes // 32) for index in range(8)}
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "client_kwargs": {"endpoint_url": server.endpoint}}
    numbers = itertools.count()

    def loop(save: Callable[[str], object]) -> None:
        for step in range(1, STEPS + 1):
            time.sleep(STEP_S)  # the step itself: work of a GPU
            if step % EVERY == 0:
                save(f"step_{next(numbers)}")

    def direct(name: str) -> None:
        dcp.save(state, storage_writer=FsspecWriter(f"s3://lake/stall/direct/{name}", **options), no_dist=True)

    say(f"a loop of {STEPS} steps that saves {state_bytes >> 20} MiB after each {EVERY}, sides alternate")
    with foremount(server, "stall/mount", base / "stall") as root:
        sides = {
            "direct": lambda: loop(direct),
            "mount": lambda: loop(lambda name: dcp.save(state, checkpoint_id=str(root / name), no_dist=True)),
        }
        alternate(sides, 1)
        taken = {name: [each - STEPS * STEP_S for each in seconds] for name, seconds in alternate(sides, ROUNDS).items()}
    saves = STEPS // EVERY
    ratio = spread(ratios(taken["direct"], taken["mount"]))
    outcome.figures["stall_ratio"] = ratio.median
    for name, seconds in taken.items():
        outcome.figures[f"stall_{name}_s"] = spread(seconds).median / saves
    rows = [[name, f"{spread(seconds).median / saves:.2f} s"] for name, seconds in taken.items()]
    rows.append(["ratio direct/mount", f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"])
    title = f"stall of training for each save of {state_bytes >> 20} MiB: DCP by fsspec to SeaweedFS, DCP through the mount"
    outcome.sections.append(Section(title, ["side", "stall"], rows))
