"""How soon mounts read from a copy that was published: four mounts, and a controller over the embedded store or over etcd.

A checkpoint of one file lies at an HTTP origin; its commit is told, it is copied and published. Each mount says how long
after the controller's own note that it is published it heard of it: whoever opens the file from then on has the copy. Then
it is opened and read at every mount, and the origin's bytes are counted: all that it may send is one control read for each.
With etcd there are two controllers, and the mounts ask the one that does not lead: what the leader publishes comes by the
watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.bench.measure import NotHere
from tests.bench.report import Outcome, Section
from tests.lake import Lake, mounted, wait_until, why_no_mount
from tests.private import private
from tests.servers import Missing
from tests.servers.etcd import etcd
from tests.servers.lifecycle import free_ports, running
from tests.servers.wan_origin import WanOrigin, wan_origin
from tests.stated import stated
from vfs.agent.foresight.benefit import CONTROL_BYTES
from vfs.errors import ForemountError
from vfs.foresight.model import Committed
from vfs.model import LakePath
from vfs.training import Training

MOUNTS = 4
ROUNDS = 20
FILE_BYTES = 4 << 20
JOB, FILE = "run7", "model.bin"
SITES = """
[sites.origin]
kind = "http"
url = "URL"
[sites.eval]
kind = "local"
path = "EVAL"
copies = "copies"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
[limits]
listing_ttl = "0s"
[foresight]
tokens = "TOKENS"
"""


def run(scale: float, say: Callable[[str], None]) -> Outcome:
    """Measure over both stores."""
    if why := why_no_mount():
        raise NotHere(why)
    outcome, rounds, rows = Outcome(), max(3, int(ROUNDS * scale)), []
    for store in ("embedded", "etcd"):
        say(f"{MOUNTS} mounts, {store}")
        with tempfile.TemporaryDirectory(prefix="foremount-bench-") as made, contextlib.ExitStack() as stack:
            base = Path(made)
            try:
                where = _store(store, base, stack)
            except Missing as exc:
                outcome.skipped[store] = str(exc)
                continue
            seen, beyond = _measure(base, where, rounds, stack)
        outcome.figures |= {
            f"{store}_seen_s": median(seen),
            f"{store}_seen_s_max": max(seen),
            f"{store}_origin_bytes_beyond_control": beyond,
        }
        rows.append([store, f"{median(seen) * 1e3:.0f} ms", f"{max(seen) * 1e3:.0f} ms", str(beyond)])
        if beyond > 0:
            outcome.broken.append(f"{store}: {beyond} bytes were read from the origin although a copy was offered")
    columns = ["store", "published to heard of, median", "longest", "bytes from the origin beyond the control reads"]
    outcome.sections.append(Section(f"{MOUNTS} mounts, {rounds} copies", columns, rows))
    return outcome


def _store(name: str, base: Path, stack: contextlib.ExitStack) -> list[str]:
    """Return where each controller keeps what it knows."""
    if name == "embedded":
        return [f"{base}/store"]
    (base / "etcd").mkdir()
    return [stack.enter_context(etcd(base / "etcd")).url] * 2


def _measure(base: Path, stores: list[str], rounds: int, stack: contextlib.ExitStack) -> tuple[list[float], int]:
    """Return the seconds until each mount was offered each copy, and what the origin sent beyond control reads."""
    for name in ("origin", "eval"):
        (base / name).mkdir()
    tokens = private(base / "tokens")
    origin = stack.enter_context(wan_origin(base / "origin", rtt_ms=0, mbit=0, log=base / "origin.log"))
    sites = SITES.replace("URL", origin.url).replace("EVAL", str(base / "eval")).replace("TOKENS", str(tokens))
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(len(stores))]
    for index, (url, store) in enumerate(zip(urls, stores, strict=True)):
        _controller(base / f"controller-{index}", sites, url, store, stack)
        told = Training(JOB, [url], tokens=str(tokens))
        wait_until(lambda told=told: _leader(told), "a leader")  # the first one leads
    asks = f'controllers = ["{urls[-1]}"]\n'
    lakes = []
    for index in range(MOUNTS):
        (base / f"mount-{index}").mkdir()
        lakes.append(stack.enter_context(mounted(sites + asks, base / f"mount-{index}")))
    seen: list[float] = []
    sent = 0
    for step in range(1, rounds + 1):
        seen += _publish(origin, told, lakes, step)
        sent += _read_everywhere(origin, lakes, path_of(step))
    return seen, sent


def _controller(base: Path, sites: str, url: str, store: str, stack: contextlib.ExitStack) -> None:
    base.mkdir()
    config = base / "controller.toml"
    address = url.removeprefix("http://")
    config.write_text(sites.replace("{base}", str(base)) + f'address = "{address}"\nstore = "{store}"\n')
    argv = [sys.executable, "-m", "vfs.cli", "controller", "--config", str(config), "--name", base.name]
    stack.enter_context(running(argv, base / "log"))


def _leader(told: Training) -> bool:
    try:
        return bool(told.ask("/v1/state")["leader"])
    except ForemountError:
        return False


def path_of(step: int) -> str:
    """Return where in the lake the checkpoint of a step is."""
    return f"ckpt/{JOB}/step_{step}"


def _publish(origin: WanOrigin, told: Training, lakes: list[Lake], step: int) -> list[float]:
    """Have a copy published; return how long after that each mount was offered it."""
    path = path_of(step)
    (origin.root / path).mkdir(parents=True)
    (origin.root / path / FILE).write_bytes(os.urandom(FILE_BYTES))
    file = asyncio.run(stated(origin.url, f"{path}/{FILE}"))
    told.evaluation_scheduled(f"mmlu-{step}", step, "eval")  # by one name each would replace the one before
    told.save_begun(step, path)
    told.tell(Committed(step=step, path=LakePath(path), save_id=f"{step:032x}", marker=FILE, files=(file,)))
    return [_heard_after_s(lake, step) for lake in lakes]


def _heard_after_s(lake: Lake, count: int) -> float:
    """Wait until a mount is offered so many copies; return how long after it was published it heard of the last."""
    wait_until(lambda: lake.room("foresight")["copies_offered"] == count, "the copy")
    return float(lake.room("foresight")["heard_after_s"])


def _read_everywhere(origin: WanOrigin, lakes: list[Lake], path: str) -> int:
    """Read the file at every mount; return the bytes that the origin sent beyond one control read for each."""
    expected = (origin.root / path / FILE).read_bytes()
    origin.reset_stats()
    for lake in lakes:
        assert (lake.root / path / FILE).read_bytes() == expected
    sent = origin.stats()["by_path"].get(f"/{path}/{FILE}", {"bytes": 0})["bytes"]
    return max(0, int(sent) - len(lakes) * CONTROL_BYTES)
