"""Sizes and durations as people write them in documents: "200GiB", "1.5MB", "30s", "2h".

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from typing import Any

_SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50,
}  # fmt: skip
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class Bytes(int):
    """A size in bytes, written with a unit: "64KiB", "10GB"."""


class Seconds(float):
    """A duration in seconds, written with a unit: "250ms", "30s", "5m", "2h", "7d"."""


def parse_size(text: str) -> Bytes:
    """Return the size in bytes.

    Raises:
        ValueError: no number, or an unknown unit.
    """
    number, unit = _split(text)
    if unit.upper() not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is no size: write a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return Bytes(float(number) * _SIZE_UNITS[unit.upper()])


def parse_duration(text: str) -> Seconds:
    """Return the duration in seconds.

    Raises:
        ValueError: no number, or a missing or unknown unit.
    """
    number, unit = _split(text)
    if unit not in _TIME_UNITS:
        raise ValueError(f"{text!r} is no duration: write a number with ms, s, m, h or d")
    return Seconds(float(number) * _TIME_UNITS[unit])


def format_size(size: float) -> str:
    """Return the size with a binary unit and three significant digits: "1.50 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def decode_unit(wanted: type, value: Any) -> Any:
    """Turn a document's value into `Bytes` or `Seconds`; the `dec_hook` of every msgspec decoder here.

    Raises:
        ValueError: with what to write instead.
        NotImplementedError: another type is wanted.
    """
    if wanted is Bytes:
        return Bytes(value) if isinstance(value, int) else parse_size(str(value))
    if wanted is Seconds:
        return parse_duration(value) if isinstance(value, str) else Seconds(value)
    raise NotImplementedError(wanted)


def encode_unit(value: Any) -> Any:
    """Turn `Bytes` and `Seconds` back into plain numbers; the `enc_hook` beside `decode_unit`."""
    if isinstance(value, Bytes):
        return int(value)
    if isinstance(value, Seconds):
        return float(value)
    raise NotImplementedError(type(value))


def _split(text: str) -> tuple[str, str]:
    matched = _QUANTITY.fullmatch(text)
    if matched is None:
        raise ValueError(f"{text!r} is no quantity: write a number and a unit, for example 64MiB or 30s")
    return matched[1], matched[2]
