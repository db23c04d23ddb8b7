from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the [media] extra is not installed")
pytest.importorskip("av", reason="the [media] extra is not installed")
pytest.importorskip("cryptography", reason="the [media] extra is not installed")

import safetensors.numpy
from PIL import Image

from tests import media
from tests.operators import made, signed
from vfs.errors import InvalidConfig
from vfs.samples.identity import identity_of, missing, provenance
from vfs.samples.model import Sample
from vfs.samples.operators import apply, produce, signing
from vfs.samples.operators.declare import BadParameters, OperatorRefused, Output, Wanted, extension_of
from vfs.samples.operators.registry import load_registry
from vfs.units import Bytes

REGISTRY = load_registry()
DOUBLE = """
import numpy as np

def double(raw, params, rng):
    return np.frombuffer(raw, dtype=np.uint8) * np.uint8(params.get("times", 2))
"""
DECLARATION = """
name = "double"
version = "1"
code = "double.py"
function = "double"
[output]
dtypes = ["uint8"]
shape_max = [64]
bytes = "4KiB"
"""


def run(name: str, raw: bytes, seed: int = 0, **params: Any) -> bytes:
    return made(name, raw, params=json.dumps(params), seed=seed, provenance="{}")


def array(file: bytes) -> Any:
    return np.load(io.BytesIO(file), allow_pickle=False)


def test_image_without_parameters_is_what_pillow_decodes() -> None:
    expected = np.asarray(Image.open(io.BytesIO(media.jpeg())).convert("RGB"))
    found = array(run("image@1", media.jpeg(), layout="hwc", dtype="uint8"))
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)


def test_image_is_resized_by_its_short_side_cropped_in_the_centre_and_normalised() -> None:
    picture = Image.open(io.BytesIO(media.jpeg())).convert("RGB").resize((48, 32), Image.Resampling.BILINEAR)
    expected = np.asarray(picture.crop((12, 4, 36, 28)), dtype=np.float32)
    expected = (expected / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    found = array(
        run(
            "image@1",
            media.jpeg(),
            resize=32,
            crop={"size": [24, 24]},
            normalise={"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
        )
    )
    assert found.shape == (3, 24, 24)
    assert np.array_equal(found, np.moveaxis(expected, -1, 0))


@pytest.mark.parametrize("at", ["random", "resized"])
def test_random_crop_follows_the_seed(at: str) -> None:
    files = {seed: run("image@1", media.jpeg(), seed, crop={"size": [16, 16], "at": at}) for seed in range(8)}
    again = {seed: run("image@1", media.jpeg(), seed, crop={"size": [16, 16], "at": at}) for seed in range(8)}
    assert files == again
    assert len(set(files.values())) > 4


def test_flip_turns_left_and_right() -> None:
    straight = array(run("image@1", media.jpeg(), layout="hwc"))
    assert np.array_equal(array(run("image@1", media.jpeg(), layout="hwc", flip="always")), straight[:, ::-1])
    flipped = {run("image@1", media.jpeg(), seed, flip="random") for seed in range(8)}
    assert len(flipped) == 2


def test_ppm_and_png_are_read_by_an_unmodified_decoder() -> None:
    expected = array(run("image@1", media.jpeg(), layout="hwc", dtype="uint8"))
    for kind in ("ppm", "png"):
        picture = Image.open(io.BytesIO(run("image@1", media.jpeg(), layout="hwc", format=kind)))
        assert np.array_equal(np.asarray(picture), expected)


def test_bfloat16_is_rounded_to_the_nearest_even_value() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, np.inf, np.nan, 3.4e38, 0.0], dtype=np.float32)
    bits = produce.converted(values, "bfloat16")
    # 1 + 2**-8 lies in the middle and goes down to the even 1.0, 1 + 3 * 2**-8 up to 1.015625; 3.4e38 becomes infinite.
    assert [f"{each:04x}" for each in bits] == ["3f80", "3f80", "3f82", "c049", "7f80", "7fc0", "7f80", "0000"]


def test_safetensors_holds_the_provenance_and_what_the_library_reads() -> None:
    params = '{"dtype":"uint8","format":"safetensors"}'
    file = made("image@1", media.jpeg(), params=params, seed=0, provenance='{"a":1}')
    assert np.array_equal(safetensors.numpy.load(file)["data"], array(run("image@1", media.jpeg(), dtype="uint8")))
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    assert header["__metadata__"] == {"foremount.provenance": '{"a":1}'}


@pytest.mark.parametrize(
    ("frames", "brightness"),
    [
        ({"uniform": 4}, [6, 18, 30, 42]),
        ({"fps": 4.0}, [0, 6, 12, 18, 24, 30, 36, 42]),
        ({"fps": 24.0, "count_max": 3}, [0, 1, 2]),
        ({"keyframes": 2}, [12, 36]),
        ({"keyframes": 9}, [0, 12, 24, 36]),
    ],
    ids=str,
)
def test_frames_of_a_film_are_those_shown_at_their_time(frames: dict[str, Any], brightness: list[int]) -> None:
    found = array(run("video@1", media.mp4(), frames=frames, dtype="uint8"))
    assert found.shape == (len(brightness), 3, 48, 64)
    expected = np.array(brightness) * 5
    assert np.abs(found.mean(axis=(1, 2, 3)) - expected).max() < 2.5  # half the distance of two frames


@pytest.mark.parametrize("gop", [12, 240], ids=["seeks", "one keyframe"])
def test_frames_of_a_long_film_are_the_same_with_and_without_seeking(gop: int) -> None:
    film = media.mp4(frames=240, gop=gop)
    found = array(run("video@1", film, frames={"uniform": 3}, dtype="uint8"))
    expected = (np.array([40, 120, 200]) * 5) % 256
    assert np.abs(found.mean(axis=(1, 2, 3)) - expected).max() < 2.5


def test_every_frame_of_a_clip_is_cropped_alike() -> None:
    found = array(run("video@1", media.mp4(), 5, frames={"uniform": 2}, crop={"size": [8, 8], "at": "random"}))
    assert found.shape == (2, 3, 8, 8)


def test_sound_is_resampled_mixed_and_cut_to_a_window_of_fixed_length() -> None:
    whole = array(run("audio@1", media.wav()))
    assert whole.shape == (2, 8000)
    assert np.abs(whole[0]).max() == pytest.approx(16_000 / 32_768, abs=0.01)
    mixed = array(run("audio@1", media.wav(), mono=True, rate=8000, window={"seconds": 1.0}))
    assert mixed.shape == (1, 8000)
    assert np.abs(mixed[0, 4100:]).max() == 0
    spectrum = np.abs(np.fft.rfft(mixed[0, :4000]))
    assert np.argmax(spectrum) == pytest.approx(440 * 4000 / 8000, abs=1)


def test_random_window_follows_the_seed() -> None:
    windows = {run("audio@1", media.wav(), seed, window={"seconds": 0.1, "at": "random"}) for seed in range(8)}
    assert len(windows) > 4
    assert run("audio@1", media.wav(), 3, window={"seconds": 0.1, "at": "random"}) in windows


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("image@1", {"resise": 3}, "resise"),
        ("image@1", {"format": "gif"}, "writes no 'gif'"),
        ("image@1", {"dtype": "int3"}, "no dtype"),
        ("image@1", {"dtype": "bfloat16"}, "safetensors"),
        ("audio@1", {"format": "png"}, "writes no"),
    ],
)
def test_parameters_that_are_not_understood_are_refused(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadParameters, match=sentence):
        run(name, media.jpeg(), **params)


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [({"shape_max": (3, 64, 95)}, "shape"), ({"bytes": Bytes(18559)}, "18560"), ({"shape_max": (3, 64)}, "shape")],
    ids=["too wide", "one byte too much", "an axis too many"],
)
def test_output_over_its_declaration_is_refused(bounds: dict[str, Any], sentence: str) -> None:
    output = Output(**{"shape_max": (3, 64, 96), "bytes": Bytes(18560), **bounds})
    with pytest.raises(produce.OutputOverDeclaration, match=sentence):
        produce.produce(np.zeros((3, 64, 96), np.uint8), Wanted("npy", "uint8"), output, "")


def test_extension_is_known_without_running_anything() -> None:
    assert extension_of("") == "npy"
    assert extension_of('{"format":"safetensors"}') == "safetensors"
    with pytest.raises(BadParameters, match="does not exist"):
        extension_of('{"format":"exe"}')


def test_signed_operator_of_ones_own_is_known_with_who_signed_it(tmp_path: Path) -> None:
    _, keys = signed(tmp_path, "double", DECLARATION, DOUBLE)
    registry = load_registry(str(tmp_path), str(keys))
    operator = registry.find("double@1")
    assert (operator.signer, registry.refused) == ("alice", {})
    applied = apply.apply(
        operator.declaration, apply.own(operator.declaration, operator.code), memoryview(b"\x01\x02"),
        params='{"times":3}', seed=0, provenance="",
    )  # fmt: skip
    assert array(applied.file).tolist() == [3, 6]


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("double.py", DOUBLE + "# changed\n", "does not fit its signature"),
        ("double.toml", DECLARATION.replace("4KiB", "8KiB"), "does not fit its signature"),
        ("double.sig", None, "not signed"),
        ("trusted", "", "not trusted"),
    ],
    ids=["code", "declaration", "no signature", "unknown key"],
)
def test_operator_that_is_not_as_it_was_signed_is_refused(tmp_path: Path, file: str, text: str | None, sentence: str) -> None:
    _, keys = signed(tmp_path, "double", DECLARATION, DOUBLE)
    if text is None:
        os.unlink(tmp_path / file)
    else:
        (tmp_path / file).write_text(text)
    registry = load_registry(str(tmp_path), str(keys))
    with pytest.raises(OperatorRefused, match=sentence):
        registry.find("double@1")
    assert registry.find("image").name == "image@1"


def test_unknown_operator_and_unknown_version_are_refused() -> None:
    for name in ("nothing", "image@2"):
        with pytest.raises(OperatorRefused):
            REGISTRY.find(name)


def test_private_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    signing.new_key(str(key))
    key.chmod(0o644)
    with pytest.raises(InvalidConfig, match="others"):
        signing.sign(str(key), b"x")


SAMPLE = Sample("run7", 3, 0, 1, "a", "bins/0.bin", 10, 20, "image@1", '{"b":1, "a":2}', 7, "v1")  # type: ignore[arg-type]


def identity(sample: Sample, **changed: Any) -> Any:
    found = REGISTRY.find("image@1")
    arguments: dict[str, Any] = {"raw": "00", "operator": found.name, "code": found.digest, "libraries": found.libraries}
    return identity_of(sample, **{**arguments, **changed})


def test_identity_names_everything_that_the_bytes_depend_on() -> None:
    told = json.loads(provenance(identity(SAMPLE)))
    assert told["params"] == '{"a":2,"b":1}'
    assert (told["ranges"], told["seed"], told["dataset_version"]) == ([[10, 20]], 7, "v1")
    assert {"numpy", "pillow", "jpeg", "python", "machine"} <= set(told["libraries"])
    assert {"libavcodec", "libswscale"} <= set(REGISTRY.find("video@1").libraries)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"raw": ""}, "raw"),
        ({"operator": "image"}, "operator version"),
        ({"code": ""}, "code"),
        ({"libraries": {"numpy": ""}}, "library versions"),
    ],
)
def test_identity_that_lacks_a_part_says_so(changed: dict[str, Any], part: str) -> None:
    assert missing(identity(SAMPLE)) == []
    assert missing(identity(SAMPLE, **changed)) == [part]


def test_identity_without_a_data_set_version_is_incomplete() -> None:
    sample = Sample("run7", 3, 0, 1, "a", "bins/0.bin", 10, 20, "image@1")  # type: ignore[arg-type]
    assert missing(identity(sample)) == ["dataset_version"]
