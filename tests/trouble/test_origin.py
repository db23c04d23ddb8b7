"""Origins that fail, lie, stall and change under a reader, and files that lie about themselves (D3, D4, D6)."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.lake import Lake, http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import Fault, WanOrigin

pytestmark = MOUNT
ROOT = "trouble-origin"
MIB = 1 << 20
BODY = random.Random(31).randbytes(5 * MIB + 333)
SMALL = {f"{number:03}": random.Random(number).randbytes(20_000 + number) for number in range(200)}
LIES = {
    "announces more": Fault("length", delta=5),
    "announces less": Fault("length", delta=-5),
    "sends more": Fault("extra", delta=5),
    "another range": Fault("range", delta=4096),
    "gzip": Fault("gzip"),
    "no length": Fault("no_length"),
}
POLICY = """
format = 1
[[rules]]
name = "impatient"
match = { path = "{stalled,forever}/**" }
set = { deadline = "2s" }
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    base, root = tmp_path_factory.mktemp("origin"), wan_origin_server.root / ROOT
    fill(root)
    (base / "policies").mkdir()
    (base / "policies/own.toml").write_text(POLICY)
    text = 'policies = ["{base}/policies"]\n' + http_lake(f"{wan_origin_server.url}/{ROOT}", ttl="500ms", deadline="30s")
    with mounted(text, base) as lake:
        yield lake


def fill(root: Path) -> None:
    files = {f"{top}/{name}": body for top in ("busy", "refusing") for name, body in SMALL.items()}
    files |= {f"lies/{name}": BODY for name in LIES} | {f"forever/{name}": BODY for name in LIES}
    files |= dict.fromkeys(["cut", "replaced", "etag", "whole-only", "stalled/one", "stalled/other", "tail"], BODY)
    files |= {f"sizes/{size}": BODY[:size] for size in (0, 1, 4095, 65535, 65536, 65537, 131073)}
    files |= {f"hostile/{name}": content for name, content in hostile().items()}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    with open(root / "hostile/json.safetensors", "r+b") as file:
        file.truncate(110 << 20)  # a header of 100 MB, most of it a hole


# Faults that pass


def test_a_body_that_is_reset_after_each_megabyte_is_resumed(lake: Lake, wan_origin: WanOrigin) -> None:
    """D46"""
    wan_origin.inject(Fault("reset", path=f"/{ROOT}/cut", after=MIB))
    assert (lake.root / "cut").read_bytes() == BODY


@pytest.mark.slow
def test_no_reader_notices_that_every_twentieth_answer_is_an_error(lake: Lake, wan_origin: WanOrigin) -> None:
    before = lake.status()["agent_says"]["fetches"]["retries"]
    os.listdir(lake.root / "busy")
    faults = [Fault("status", path=f"/{ROOT}/busy/*", status=status, share=0.05) for status in (429, 500, 503)]
    wan_origin.inject(*faults)
    assert {name: (lake.root / "busy" / name).read_bytes() for name in SMALL} == SMALL
    assert lake.status()["agent_says"]["fetches"]["retries"] > before


def test_every_twentieth_refusal_is_an_error_of_its_read_alone(lake: Lake, wan_origin: WanOrigin) -> None:
    os.listdir(lake.root / "refusing")
    wan_origin.inject(Fault("status", path=f"/{ROOT}/refusing/*", status=403, share=0.05))
    refused = []
    for name, body in SMALL.items():
        try:
            assert (lake.root / "refusing" / name).read_bytes() == body
        except PermissionError:
            refused.append(name)
    assert 0 < len(refused) < len(SMALL) // 2
    wan_origin.heal()
    for name in refused:
        assert (lake.root / "refusing" / name).read_bytes() == SMALL[name]


@pytest.mark.parametrize("lie", LIES)
def test_answers_that_lie_are_asked_for_again(lake: Lake, wan_origin: WanOrigin, lie: str) -> None:
    """D60"""
    os.stat(lake.root / "lies" / lie)
    wan_origin.inject(Fault(LIES[lie].kind, path=f"/{ROOT}/lies/{lie}", delta=LIES[lie].delta, times=2))
    assert (lake.root / "lies" / lie).read_bytes() == BODY


# Faults that stay


@pytest.mark.parametrize(
    "lie",
    ["gzip", *(pytest.param(lie, marks=pytest.mark.slow) for lie in ("announces more", "announces less", "another range"))],
)
def test_an_origin_that_never_tells_the_truth_is_an_error_and_no_byte(lake: Lake, wan_origin: WanOrigin, lie: str) -> None:
    """D60"""
    os.stat(lake.root / "forever" / lie)
    wan_origin.inject(Fault(LIES[lie].kind, path=f"/{ROOT}/forever/{lie}", delta=LIES[lie].delta))
    with open(lake.root / "forever" / lie, "rb", buffering=0) as file:
        with pytest.raises(OSError) as failure:
            os.pread(file.fileno(), 5000, 3 * MIB)
        assert failure.value.errno == errno.EIO
        wan_origin.heal()
        wait_until(lambda: pread(file.fileno(), 5000, 3 * MIB) == BODY[3 * MIB : 3 * MIB + 5000], "the truth", 20)


def test_a_server_without_ranges_is_read_from_the_start_and_refused_further_in(lake: Lake, wan_origin: WanOrigin) -> None:
    wan_origin.inject(Fault("no_range", path=f"/{ROOT}/whole-only"))
    with open(lake.root / "whole-only", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 5000, 100) == BODY[100:5100]
        try:
            assert os.pread(file.fileno(), 5000, 4 * MIB) == BODY[4 * MIB : 4 * MIB + 5000]
        except OSError as exc:
            assert exc.errno == errno.EIO


@pytest.mark.slow
def test_a_black_hole_is_an_error_at_the_deadline_and_ends_with_it(lake: Lake, wan_origin: WanOrigin) -> None:
    """Without another replica. Whoever reads something else at that time does not wait."""
    os.stat(lake.root / "stalled/one")
    wan_origin.inject(Fault("stall", path=f"/{ROOT}/stalled/one", after=100_000))
    results: list[int | None] = []
    with open(lake.root / "stalled/one", "rb", buffering=0) as file:

        def read() -> None:
            try:
                while file.read(MIB):
                    pass
                results.append(None)
            except OSError as exc:
                results.append(exc.errno)

        reader = threading.Thread(target=read)
        reader.start()
        assert (lake.root / "stalled/other").read_bytes() == BODY
        reader.join(30)
        assert results == [errno.EIO]
        wan_origin.heal()
        wait_until(lambda: pread(file.fileno(), len(BODY), 0) == BODY, "all of it", 20)


def pread(fd: int, length: int, offset: int) -> bytes | None:
    """Return what is read now; None at the deadline: a retry pauses for longer than these files' readers wait."""
    try:
        return os.pread(fd, length, offset)
    except OSError as exc:
        assert exc.errno == errno.EIO
        return None


# Versions


def test_an_object_replaced_between_two_reads_is_stale_and_then_the_new_one(lake: Lake, wan_origin: WanOrigin) -> None:
    """D49"""
    new = BODY[::-1]
    at_origin = wan_origin.root / ROOT / "replaced"
    with open(lake.root / "replaced", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 5000, 0) == BODY[:5000]
        (at_origin.with_suffix(".new")).write_bytes(new)
        os.replace(at_origin.with_suffix(".new"), at_origin)
        with pytest.raises(OSError) as failure:
            os.pread(file.fileno(), 5000, 4 * MIB)
        assert failure.value.errno == errno.ESTALE
        assert os.pread(file.fileno(), 5000, 0) == BODY[:5000]
    wait_until(lambda: content(lake.root / "replaced") == new, "the new version", 10)


def test_an_answer_of_another_version_is_stale_though_the_server_ignores_conditions(
    lake: Lake, wan_origin: WanOrigin
) -> None:
    os.stat(lake.root / "etag")
    with open(lake.root / "etag", "rb", buffering=0) as file:
        wan_origin.inject(Fault("etag", path=f"/{ROOT}/etag"))
        with pytest.raises(OSError) as failure:
            os.pread(file.fileno(), 5000, 0)
        assert failure.value.errno == errno.ESTALE
    wan_origin.heal()
    wait_until(lambda: content(lake.root / "etag") == BODY, "the version that is there", 10)


def content(path: Path) -> bytes | None:
    """Return what is read now; None where the version that was known is gone."""
    try:
        return path.read_bytes()
    except OSError as exc:
        assert exc.errno == errno.ESTALE
        return None


# Ends of files


@pytest.mark.parametrize("size", [0, 1, 4095, 65535, 65536, 65537, 131073])
def test_reads_at_and_past_the_end_are_short_and_empty(lake: Lake, size: int) -> None:
    with open(lake.root / f"sizes/{size}", "rb", buffering=0) as file:
        for offset in (0, max(0, size - 1), size // 2 + 1):
            assert os.pread(file.fileno(), 200_000, offset) == BODY[offset:size]
        for offset in (size, size + 1, size + 4096, 1 << 40):
            assert os.pread(file.fileno(), 4096, offset) == b""


def test_the_unaligned_tail_of_a_cold_file_comes_alone(lake: Lake, wan_origin: WanOrigin) -> None:
    with open(lake.root / "tail", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 4096, len(BODY) - 332) == BODY[-332:]
    assert wan_origin.stats()["by_path"][f"/{ROOT}/tail"]["bytes"] <= MIB


# Files that lie about themselves


def hostile() -> dict[str, bytes]:
    """Return files whose names promise a layout and whose bytes break it, each larger than what layouts are read of."""

    def safetensors(header: bytes, length: int | None = None) -> bytes:
        return struct.pack("<Q", len(header) if length is None else length) + header + bytes(400_000)

    def tensors(**places: tuple[int, int]) -> bytes:
        return json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": at} for name, at in places.items()}).encode()

    return {
        "long.safetensors": safetensors(b"{}", 1 << 60),
        "beyond.safetensors": safetensors(tensors(a=(0, 1 << 40))),
        "overlap.safetensors": safetensors(tensors(a=(0, 300_000), b=(200_000, 400_000))),
        "negative.safetensors": safetensors(tensors(a=(-5, 400_000))),
        "nested.safetensors": safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "bytes.safetensors": safetensors(b'{"\xff\xfe": 1}'),
        "json.safetensors": struct.pack("<Q", 100_000_000) + b"{",
        "noise.pt": random.Random(1).randbytes(400_000),
        "ends.pt": b"PK\3\4" + bytes(400_000) + b"PK\5\6" + b"\xff" * 18,
        "noise.tar": random.Random(2).randbytes(400_000),
        "member.tar": oversized_member(),
        "footer.parquet": b"PAR1" + bytes(400_000) + struct.pack("<I", 1 << 31) + b"PAR1",
        "noise.arrow": b"ARROW1\0\0" + random.Random(3).randbytes(400_000) + struct.pack("<i", 5000) + b"ARROW1",
        "alone.distcp": bytes(400_000),
    }


def oversized_member() -> bytes:
    """Return a tar whose second member is said to reach far over its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, size in (("a", 200_000), ("b", 200_000)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    body = bytearray(out.getvalue())
    second = tarfile.TarInfo("b")
    second.size = 7 << 30
    at = 512 + -(-200_000 // 512) * 512
    body[at : at + 512] = second.tobuf(tarfile.USTAR_FORMAT)
    return bytes(body)


@pytest.mark.parametrize("name", hostile())
def test_a_file_that_breaks_its_format_is_read_as_bytes_with_one_warning(
    lake: Lake, wan_origin: WanOrigin, name: str
) -> None:
    with open(wan_origin.root / ROOT / "hostile" / name, "rb") as at_origin, open(lake.root / "hostile" / name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for offset in (0, 8, size // 2, size - 70_000):
            expected = os.pread(at_origin.fileno(), 70_000, offset)
            assert os.pread(file.fileno(), 70_000, offset) == expected
        wait_until(lambda: warnings(lake, name), "the warning")
        assert os.pread(file.fileno(), 70_000, size // 4) == os.pread(at_origin.fileno(), 70_000, size // 4)
    assert len(warnings(lake, name)) == 1


def warnings(lake: Lake, name: str) -> list[str]:
    return [line for line in lake.log("agent").splitlines() if f"hostile/{name}" in line and "WARNING" in line]


def test_tensors_of_no_byte_are_loaded_with_the_others(lake: Lake, wan_origin: WanOrigin) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    given = {"none": np.zeros((0, 7), np.float32), "some": np.arange(200_000, dtype=np.float32), "empty": np.zeros(0)}
    numpy.save_file(given, wan_origin.root / ROOT / "zero.safetensors")
    wait_until((lake.root / "zero.safetensors").exists, "the new file", 10)
    loaded = numpy.load_file(lake.root / "zero.safetensors")
    assert {name: tensor.shape for name, tensor in loaded.items()} == {name: tensor.shape for name, tensor in given.items()}
    np.testing.assert_array_equal(loaded["some"], given["some"])
    assert not [line for line in lake.log("agent").splitlines() if "zero.safetensors" in line and "WARNING" in line]
