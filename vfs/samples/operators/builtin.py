"""The operators that come with the package: trusted as the package is, their code's digest is part of every identity."""

from __future__ import annotations

from vfs.samples.operators.declare import Declaration, Output
from vfs.units import Bytes

_FLOATS = ("float32", "float16", "bfloat16")
_SIDE_MAX = 1 << 14
_COMMON = ("made.py", "produce.py", "apply.py")

IMAGE = Declaration(
    name="image",
    version="1",
    function="image",
    libraries=("pillow",),
    output=Output(
        formats=("npy", "safetensors", "ppm", "png"),
        dtypes=("float32", "uint8", "float16", "bfloat16"),
        shape_max=(_SIDE_MAX, _SIDE_MAX, _SIDE_MAX),
        bytes=Bytes(256 << 20),
    ),
    time=30.0,
)
VIDEO = Declaration(
    name="video",
    version="1",
    function="video",
    libraries=("pillow", "av"),
    output=Output(
        formats=("npy", "safetensors"),
        dtypes=("float32", "uint8", "float16", "bfloat16"),
        shape_max=(4096, _SIDE_MAX, _SIDE_MAX, _SIDE_MAX),
        bytes=Bytes(1 << 30),
    ),
    time=300.0,
)
AUDIO = Declaration(
    name="audio",
    version="1",
    function="audio",
    libraries=("av",),
    output=Output(dtypes=_FLOATS, shape_max=(64, 1 << 27), bytes=Bytes(1 << 30)),
    time=120.0,
)
SOURCES: dict[str, tuple[str, ...]] = {
    "image": (*_COMMON, "images.py"),
    "video": (*_COMMON, "images.py", "media.py", "video.py"),
    "audio": (*_COMMON, "media.py", "audio.py"),
}
"""Files of this package that decide what comes out."""
MODULES = {name: f"vfs.samples.operators.{files[-1].removesuffix('.py')}" for name, files in SOURCES.items()}
DECLARATIONS = (IMAGE, VIDEO, AUDIO)
