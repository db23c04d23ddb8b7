"""What goes along with a read into the page cache, through a real mount: right bytes, few requests of the kernel."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.lake import Lake, http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.mount.tensors import LAYERS, Tensors, tensors, wrong
from tests.servers.wan_origin import WanOrigin

pytestmark = MOUNT


@pytest.fixture(scope="module")
def checkpoint() -> Tensors:
    return tensors(1)


@pytest.fixture(scope="module")
def lake(wan_origin_server: WanOrigin, checkpoint: Tensors) -> Iterator[Lake]:
    root = wan_origin_server.root / "push"
    root.mkdir()
    for name in ("few", "orders", "kills", "random", "replaced"):
        (root / name).mkdir()
        save_file(checkpoint, root / name / "model.safetensors")
    with mounted(http_lake(f"{wan_origin_server.url}/push", ttl="500ms")) as lake:
        yield lake


@pytest.mark.slow
def test_tensors_cost_few_requests_of_the_kernel(lake: Lake, checkpoint: Tensors) -> None:
    file = lake.root / "few/model.safetensors"
    before = lake.requests("read")
    assert wrong(file, sorted(checkpoint), checkpoint) == []
    assert lake.requests("read") - before < file.stat().st_size // (64 << 10) / 2


def test_threads_that_go_through_a_file_in_several_orders_see_its_bytes(lake: Lake, checkpoint: Tensors) -> None:
    names, found = sorted(checkpoint), []
    shuffled = random.Random(2).sample(names, len(names))
    orders = [names, names[::-1], shuffled, names[LAYERS:] + names[:LAYERS]]
    readers = [
        threading.Thread(
            target=lambda order=order: found.extend(wrong(lake.root / "orders/model.safetensors", order, checkpoint))
        )
        for order in orders
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert not any(reader.is_alive() for reader in readers)
    assert found == []


@pytest.mark.slow
def test_readers_see_the_right_bytes_while_workers_are_killed(lake: Lake, wan_origin: WanOrigin) -> None:
    wan_origin.shape(rtt_ms=20, mbit=200)  # a second for the file: workers die in the middle of pushes
    argv = [sys.executable, "-m", "tests.mount.tensors", str(lake.root / "kills/model.safetensors")]
    readers = [
        subprocess.Popen([*argv, order], stdout=subprocess.PIPE, text=True) for order in ("names", "reverse", "rotated")
    ]
    for _ in range(3):
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline()
        lake.kill("worker")
    assert [reader.communicate(timeout=60)[0].split("\n")[-2] for reader in readers] == ["45"] * 3
    assert [reader.returncode for reader in readers] == [0, 0, 0]


def test_reads_past_the_page_cache_are_right_and_end_the_pushing(lake: Lake, wan_origin: WanOrigin) -> None:
    file = lake.root / "random/model.safetensors"
    expected = (wan_origin.root / "push/random/model.safetensors").read_bytes()
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        found = b"".join(iter_reads(lambda offset: os.pread(fd, 128 << 10, offset), len(expected), 128 << 10))
    finally:
        os.close(fd)
    assert found == expected


def iter_reads(read: Callable[[int], bytes], size: int, step: int) -> Iterator[bytes]:
    return (read(offset) for offset in range(0, size, step))


def test_checkpoint_that_is_replaced_is_seen_whole_in_either_version(
    lake: Lake, checkpoint: Tensors, wan_origin: WanOrigin
) -> None:
    file, origin = lake.root / "replaced/model.safetensors", wan_origin.root / "push/replaced"
    names, newer = sorted(checkpoint), tensors(2)
    before = file.stat().st_ino
    with safe_open(file, framework="np") as held:
        assert all(np.array_equal(held.get_tensor(name), checkpoint[name]) for name in names[:LAYERS])
        save_file(newer, origin / "fresh")
        (origin / "fresh").rename(origin / "model.safetensors")
        # Not by its bytes: what was not fetched of the old version is ESTALE by now, and a mapping says that with SIGBUS.
        wait_until(lambda: file.stat().st_ino != before, "the new version", 10)
        assert wrong(file, names, newer) == []
        assert all(np.array_equal(held.get_tensor(name), checkpoint[name]) for name in names[:LAYERS])
