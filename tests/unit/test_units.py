from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.units import Bytes, Seconds, decode_unit, encode_unit, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("1B", 1), ("64KiB", 65536), ("1.5MB", 1_500_000), ("200 GiB", 200 << 30), (" 1tib ", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("5min", 300), ("2h", 7200), ("7d", 604800), ("1.5 s", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1 GiB GiB", "1XB", "0x10", "1e3", "1.GiB", "½"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (size|quantity)"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "30S", "1 week", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (duration|quantity)"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (200 << 30, "200 GiB"), (3 << 50, "3.07e+03 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1 << 50))
def test_bytes_survive_being_written_and_read(size: int) -> None:
    assert decode_unit(Bytes, encode_unit(Bytes(size))) == size
    assert parse_size(str(size)) == size


def test_plain_numbers_are_bytes_and_seconds() -> None:
    assert decode_unit(Bytes, 17) == 17
    assert decode_unit(Seconds, 1.5) == 1.5
    assert decode_unit(Seconds, "1m") == 60


def test_other_types_are_not_decoded() -> None:
    with pytest.raises(NotImplementedError):
        decode_unit(int, 1)
    with pytest.raises(NotImplementedError):
        encode_unit(object())
