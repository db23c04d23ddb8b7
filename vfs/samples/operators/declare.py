"""What an operator promises: its name, version and parameters, and how large its output may be.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from typing import Any, Literal

import msgspec

from vfs.errors import ForemountError, InvalidConfig
from vfs.samples.identity import canonical
from vfs.units import Bytes, decode_unit, encode_unit

NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,31}")
Format = Literal["npy", "safetensors", "ppm", "png"]
EXTENSIONS: dict[Format, str] = {"npy": "npy", "safetensors": "safetensors", "ppm": "ppm", "png": "png"}
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


class OperatorRefused(ForemountError):
    """There is no such operator here, or none that may be run."""


class BadParameters(OperatorRefused):
    """The operator does not take these parameters."""


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of what comes out. What is larger counts as a failure of the operator: the sample stays raw.

    Attributes:
        formats: that may be asked for; the first is the default.
        dtypes: likewise. bfloat16 can be written as safetensors only.
        shape_max: of each array, axis by axis; arrays of another number of axes are refused.
        bytes: of the whole file.
    """

    formats: tuple[Format, ...] = ("npy", "safetensors")
    dtypes: tuple[str, ...] = ("float32",)
    shape_max: tuple[int, ...]
    bytes: Bytes


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The document that goes with an operator.

    Attributes:
        name, version: another version for whatever changes its output.
        code: file name of the Python source beside the declaration; "" for those that are built in.
        function: in it: `function(raw, params, rng)` returns an array, or a dict of arrays by name.
        libraries: distributions whose versions its output depends on, beside numpy.
        time: seconds for one sample.
    """

    name: str
    version: str
    code: str = ""
    function: str = ""
    libraries: tuple[str, ...] = ()
    output: Output
    time: float = 30.0

    @property
    def full_name(self) -> str:
        """Return "name@version"."""
        return f"{self.name}@{self.version}"


class Wanted(msgspec.Struct, frozen=True):
    """How the arrays of one sample are to be written."""

    format: Format
    dtype: str


def parse_declaration(text: str, name: str) -> Declaration:
    """Return the declaration that a TOML document states; `name` is for messages.

    Raises:
        InvalidConfig: it can't be used.
    """
    try:
        found = msgspec.convert(tomllib.loads(text), Declaration, dec_hook=decode_unit)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as exc:
        raise InvalidConfig(name, f"is no declaration of an operator: {exc}", "see docs/samples.md") from exc
    if not NAME.fullmatch(found.name) or not VERSION.fullmatch(found.version):
        raise InvalidConfig(name, f"{found.full_name!r} is no name and version", "small letters, digits, - and _")
    if not found.code.endswith(".py") or "/" in found.code or not found.function.isidentifier():
        raise InvalidConfig(name, "names no function of a Python file beside it", 'code = "mine.py", function = "mine"')
    if not found.output.formats or not found.output.dtypes or found.output.bytes <= 0 or found.time <= 0:
        raise InvalidConfig(name, "allows no output", "give output.formats, output.dtypes, output.bytes and time")
    unknown = sorted(set(found.output.dtypes) - set(DTYPES))
    if unknown:
        raise InvalidConfig(name, f"has no dtype {unknown[0]!r}", f"one of {', '.join(DTYPES)}")
    return found


def statement(declaration: Declaration, code_digest: str) -> bytes:
    """Return what is signed: the declaration and the digest of its code, in one spelling."""
    return canonical({"declaration": msgspec.to_builtins(declaration, enc_hook=encode_unit), "code": code_digest}).encode()


def digest_of_code(*sources: bytes) -> str:
    """Return the SHA-256 of source files in their order."""
    found = hashlib.sha256()
    for source in sources:
        found.update(len(source).to_bytes(8, "little") + source)
    return found.hexdigest()


def split_name(operator: str) -> tuple[str, str]:
    """Return (name, version) of "name@version"; the version is "" where none is stated."""
    name, _, version = operator.partition("@")
    return name, version


def parameters(params: str, declaration: Declaration) -> tuple[Wanted, dict[str, Any]]:
    """Return how the output is to be written, and the operator's own parameters.

    Raises:
        BadParameters: it is no JSON object, or asks for an output that is not declared.
    """
    found = decode_params(params, declaration.full_name)
    output = declaration.output
    wanted = Wanted(found.pop("format", output.formats[0]), found.pop("dtype", output.dtypes[0]))
    if wanted.format not in output.formats:
        raise BadParameters(declaration.full_name, f"writes no {wanted.format!r}", f"one of {', '.join(output.formats)}")
    if wanted.format not in ("ppm", "png") and wanted.dtype not in output.dtypes:
        raise BadParameters(declaration.full_name, f"has no dtype {wanted.dtype!r}", f"one of {', '.join(output.dtypes)}")
    if wanted.dtype == "bfloat16" and wanted.format != "safetensors":
        raise BadParameters(declaration.full_name, "numpy's files know no bfloat16", 'format = "safetensors"')
    return wanted, found


def decode_params(params: str, name: str) -> dict[str, Any]:
    """Return the JSON object; {} for "".

    Raises:
        BadParameters: it is none.
    """
    try:
        found: dict[str, Any] = msgspec.json.decode(params, type=dict[str, Any]) if params else {}
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise BadParameters(name, f"its parameters are no JSON object: {exc}") from exc
    return found


def extension_of(params: str, default: Format = "npy") -> str:
    """Return the extension of what an operator makes with these parameters, without running or even knowing it.

    Raises:
        BadParameters: they are no JSON object, or name a format that does not exist.
    """
    wanted = decode_params(params, "operator").get("format", default)
    if wanted not in EXTENSIONS:
        raise BadParameters("operator", f"format {wanted!r} does not exist", f"one of {', '.join(EXTENSIONS)}")
    return EXTENSIONS[wanted]
