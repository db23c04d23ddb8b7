"""Unmodified training libraries on the mount: a local directory, and an HTTP origin cold and fetched."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lake import Lake, mounted
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

pytestmark = [*MOUNT, pytest.mark.frameworks]
CONFIG = """
[sites.disk]
kind = "local"
path = "{base}/disk"
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/local"
site = "disk"
writable = true
[[mounts]]
prefix = "/remote"
site = "origin"
[[mounts]]
prefix = "/fetched"
site = "origin"
root = "copy"
[cache]
directory = "{base}/cache"
"""
PLACES = ["local", "remote", "fetched"]
CHANCE = np.random.default_rng(11)
TENSORS = {f"layer{index}.weight": CHANCE.random((17, index + 3)).astype(np.float32) for index in range(150)}
TENSORS["embedding"] = CHANCE.random((1000, 300)).astype(np.float32)
ROWS = 20_000


def fill(directory: Path) -> None:
    """Write one file of each format."""
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory)
    write_images(directory)
    np.save(directory / "array.npy", TENSORS["embedding"])
    write_parquet(directory)
    write_tar(directory)


def write_safetensors(directory: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file(TENSORS, directory / "model.safetensors")


def write_images(directory: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for index in range(20):
        pixels = np.random.default_rng(index).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        image.fromarray(pixels).save(directory / f"{index}.png")
        image.fromarray(pixels).save(directory / f"{index}.jpg")


def write_parquet(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": range(ROWS), "text": [f"row {index}" for index in range(ROWS)]})
    pq.write_table(table, directory / "table.parquet", row_group_size=2000)
    with pa.OSFile(str(directory / "table.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def write_tar(directory: Path) -> None:
    chance = random.Random(12)
    with tarfile.open(directory / "shard-000000.tar", "w") as tar:
        for index in range(300):
            for suffix, content in ((".bin", chance.randbytes(5000)), (".json", json.dumps({"label": index}).encode())):
                member = tarfile.TarInfo(f"{index:06d}{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    base = tmp_path_factory.mktemp("frameworks")
    root = wan_origin_server.root / "frameworks"
    for directory in (base / "disk", root, root / "copy"):
        fill(directory)
    with mounted(CONFIG.replace("URL", f"{wan_origin_server.url}/{root.name}"), base) as lake:
        lake.command("fetch", str(lake.root / "fetched"))
        yield lake


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, lake: Lake) -> Path:
    """A directory of the mount with one file of each format."""
    return lake.root / str(request.param)


def test_safetensors_gives_every_tensor(place: Path) -> None:
    """D28, D31"""
    numpy = pytest.importorskip("safetensors.numpy")
    loaded = numpy.load_file(place / "model.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(loaded[name], tensor)


def test_safetensors_gives_slices(place: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(place / "model.safetensors", "numpy") as file:
        part = file.get_slice("embedding")[100:200, 50:60]
    np.testing.assert_array_equal(part, TENSORS["embedding"][100:200, 50:60])


def test_safetensors_saves_onto_a_writable_mount(lake: Lake) -> None:
    """D68"""
    numpy = pytest.importorskip("safetensors.numpy")
    path = lake.root / "local/saved.safetensors"
    for _ in range(2):  # the second one replaces the first
        numpy.save_file(TENSORS, path)
        np.testing.assert_array_equal(numpy.load_file(path)["embedding"], TENSORS["embedding"])


def test_pytorch_loads_safetensors_and_maps_checkpoints(place: Path, lake: Lake) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'foremount[torch]'")
    from safetensors.torch import load_file

    loaded = load_file(place / "model.safetensors")
    assert torch.equal(loaded["embedding"], torch.from_numpy(TENSORS["embedding"]))
    torch.save(loaded, lake.root / "local/saved.pt")
    mapped = torch.load(lake.root / "local/saved.pt", mmap=True, weights_only=True)
    assert torch.equal(mapped["embedding"], loaded["embedding"])


def test_pillow_decodes_every_image(place: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for index in range(20):
        expected = np.random.default_rng(index).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        with image.open(place / f"{index}.png") as png:
            np.testing.assert_array_equal(np.asarray(png), expected)
        with image.open(place / f"{index}.jpg") as jpeg:
            jpeg.verify()


@pytest.mark.parametrize("mode", ["r", "c"], ids=["shared", "private"])
def test_numpy_maps_arrays(place: Path, mode: Any) -> None:
    mapped = np.load(place / "array.npy", mmap_mode=mode)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, TENSORS["embedding"])


def test_numpy_writes_through_a_map(lake: Lake) -> None:
    path = lake.root / "local/mapped.npy"
    mapped = np.lib.format.open_memmap(path, "w+", np.float32, (1000, 300))
    mapped[:] = TENSORS["embedding"]
    mapped.flush()
    del mapped
    np.testing.assert_array_equal(np.load(path), TENSORS["embedding"])


def test_pyarrow_reads_parquet_and_single_row_groups(place: Path) -> None:
    import pyarrow.parquet as pq

    assert pq.read_table(place / "table.parquet")["id"].to_pylist() == list(range(ROWS))
    group = pq.ParquetFile(place / "table.parquet").read_row_group(7, ["text"])
    assert group["text"][0].as_py() == "row 14000"


def test_pyarrow_maps_arrow_files_and_reads_rows_in_any_order(place: Path) -> None:
    """D44"""
    import pyarrow as pa

    with pa.memory_map(str(place / "table.arrow")) as source:
        reader = pa.ipc.open_file(source)
        for index in random.Random(13).sample(range(reader.num_record_batches), 10):
            assert reader.get_batch(index)["text"][3].as_py() == f"row {index * 1000 + 3}"


def test_tar_shards_are_read_as_streams_of_samples(place: Path) -> None:
    """D46: as WebDataset reads them"""
    chance, found = random.Random(12), 0
    with open(place / "shard-000000.tar", "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name.endswith(".bin"):
                assert content == chance.randbytes(5000)
            else:
                assert json.loads(content) == {"label": int(member.name[:6])}
            found += 1
    assert found == 600


def test_sixteen_threads_map_eight_checkpoints(lake: Lake) -> None:
    """D10"""
    numpy = pytest.importorskip("safetensors.numpy")
    import threading

    wrong: list[str] = []

    def load(place: str) -> None:
        loaded = numpy.load_file(lake.root / place / "model.safetensors")
        wrong.extend(name for name, tensor in TENSORS.items() if not np.array_equal(loaded[name], tensor))

    threads = [threading.Thread(target=load, args=(PLACES[index % 3],)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert os.statvfs(lake.root).f_namemax == 255
