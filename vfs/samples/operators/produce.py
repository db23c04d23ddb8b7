"""Writes the arrays that an operator returns as one file, within the bounds of its declaration."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vfs.errors import ForemountError
from vfs.samples.operators.declare import Output, Wanted

Array = npt.NDArray[Any]
Arrays = Array | dict[str, Array]
ONE = "data"
"""Name of the array where there is one without a name."""
PROVENANCE = "foremount.provenance"
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_NARROWER = {"float64", "float32", "float16", "bfloat16"}


class OutputOverDeclaration(ForemountError):
    """The operator's output is not what it declares."""


def produce(arrays: Arrays, wanted: Wanted, output: Output, provenance: str) -> bytes:
    """Return the file. The same arrays and arguments give the same bytes.

    Raises:
        OutputOverDeclaration: too large, or of another kind than declared.
    """
    named = arrays if isinstance(arrays, dict) else {ONE: arrays}
    _check_shapes(named, output)
    if sum(array.size for array in named.values()) > output.bytes:  # no dtype takes less than a byte
        raise OutputOverDeclaration("operator", f"makes more than its {output.bytes} bytes")
    match wanted.format:
        case "npy":
            made = _npy(_only(named), wanted.dtype)
        case "safetensors":
            made = _safetensors(named, wanted.dtype, provenance)
        case "ppm" | "png":
            made = _picture(_only(named), wanted.format)
    if len(made) > output.bytes:
        raise OutputOverDeclaration("operator", f"makes {len(made)} bytes and declares {output.bytes}")
    return made


def _check_shapes(named: dict[str, Array], output: Output) -> None:
    for name, array in named.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise OutputOverDeclaration("operator", "returns something else than arrays by name")
        bounds = output.shape_max
        if array.ndim != len(bounds) or any(size > bound for size, bound in zip(array.shape, bounds, strict=True)):
            raise OutputOverDeclaration("operator", f"makes an array of shape {array.shape} and declares {bounds}")


def _only(named: dict[str, Array]) -> Array:
    if len(named) != 1:
        raise OutputOverDeclaration("operator", f"makes {len(named)} arrays", 'format = "safetensors" can hold them')
    return next(iter(named.values()))


def converted(array: Array, dtype: str) -> Array:
    """Return the array in this dtype, little-endian and contiguous; bfloat16 as its bits in uint16, rounded to even.

    Raises:
        OutputOverDeclaration: that would be more than rounding.
    """
    kept = array.dtype.name == dtype
    if not kept and not (dtype in _NARROWER and array.dtype.kind in "fiu"):
        raise OutputOverDeclaration("operator", f"makes {array.dtype.name} where {dtype} is asked for")
    if dtype == "bfloat16":
        return _bfloat16(array.astype(np.float32))
    return np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))


def _bfloat16(array: Array) -> Array:
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype("<u2")


def _npy(array: Array, dtype: str) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, converted(array, dtype), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _safetensors(named: dict[str, Array], dtype: str, provenance: str) -> bytes:
    """Return a safetensors file: u64 length, JSON, the tensors by name.

    Written here and not by the library: that one orders metadata differently in each process, and its bytes may change
    with its version.
    """
    header: dict[str, Any] = {"__metadata__": {PROVENANCE: provenance}} if provenance else {}
    body = bytearray()
    for name in sorted(named):
        values = converted(named[name], dtype)
        start = len(body)
        body += values.tobytes()
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(values.shape), "data_offsets": [start, len(body)]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _picture(array: Array, kind: str) -> bytes:
    from PIL import Image

    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise OutputOverDeclaration("operator", f"makes no picture: {array.dtype} {array.shape}", 'layout = "hwc"')
    file = io.BytesIO()
    pixels = array[:, :, 0] if array.shape[2] == 1 else array
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format=kind.upper())
    return file.getvalue()
