"""Each block of `docs/examples.md`, run as it stands on a mount."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake import DISK, Lake, mounted
from tests.marks import MOUNT

pytestmark = [*MOUNT, pytest.mark.frameworks]
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/examples.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", DOCUMENT, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    base = tmp_path_factory.mktemp("examples")
    for directory in ("ckpt/base", "ckpt/mine", "data", "photos", "videos", "scratch"):
        (base / "disk" / directory).mkdir(parents=True)
    disk = base / "disk"
    np.save(disk / "data/tokens.npy", np.arange(100_000, dtype=np.int32))
    pq.write_table(pa.table({"label": list(range(100)), "text": ["x"] * 100}), disk / "data/rows.parquet")
    with tarfile.open(disk / "data/shard-000000.tar", "w") as shard:
        for index in range(3):
            member = tarfile.TarInfo(f"{index}.txt")
            member.size = 1
            shard.addfile(member, io.BytesIO(b"%d" % index))
    with mounted(DISK, base) as mount:
        yield mount


def weights(disk: Path) -> None:
    from safetensors.numpy import save_file

    save_file(
        {f"layer.{index}": np.full((64, 64), index, np.float32) for index in range(4)}, disk / "ckpt/base/model.safetensors"
    )


def photo(disk: Path) -> None:
    from PIL import Image

    Image.new("RGB", (640, 480), (10, 20, 30)).save(disk / "photos/0001.png")


def clip(disk: Path) -> None:
    import av

    with av.open(str(disk / "videos/clip.mp4"), "w") as made:
        stream = made.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for index in range(10):
            picture = np.full((64, 64, 3), 20 * index, np.uint8)
            made.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        made.mux(stream.encode())


MAKE = {"safetensors": weights, "PIL": photo, "av": clip}
"""What an example reads and only its own library can make."""


def test_every_framework_has_an_example() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```python") == 10


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=title, marks=pytest.mark.slow if re.match("# needs: (torch|datasets)", program) else ())
        for title, program in EXAMPLES
    ],
)
def test_example_runs_on_a_mount(lake: Lake, program: str) -> None:
    needs = re.match(r"# needs: (.+)\n", program)
    for name in needs[1].split(", ") if needs else ():
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
        if name in MAKE:
            MAKE[name](lake.base / "disk")
    ran = subprocess.run(
        [sys.executable, "-c", program.replace("/mnt/lake", str(lake.root))],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
