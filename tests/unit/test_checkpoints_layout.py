"""Layouts, and what a safetensors header has to be to become one."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from vfs.checkpoints import safetensors
from vfs.checkpoints.layout import Layout, Member, NoLayout, build, run, want


def parse(body: bytes) -> Layout:
    return run(safetensors.layout(len(body)), lambda offset, length: body[offset : offset + length])


def written(header: Any, payload: int = 0) -> bytes:
    """Return a file with this header, JSON bytes or a value."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(payload)


def entry(start: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def test_members_are_found_by_offset() -> None:
    layout = build("tar", 100, (0, 10), [("b", 30, 20), ("a", 10, 20), ("c", 60, 40)])
    assert layout.members == (Member("a", 10, 20), Member("b", 30, 20), Member("c", 60, 40))
    assert [member.name for member in layout.at(0, 10)] == []
    assert [member.name for member in layout.at(0, 11)] == ["a"]
    assert [member.name for member in layout.at(29, 2)] == ["a", "b"]
    assert [member.name for member in layout.at(50, 10)] == []
    assert [member.name for member in layout.at(49, 12)] == ["b", "c"]
    assert [member.name for member in layout.at(99, 1000)] == ["c"]
    assert layout.at(20, 0) == []


def test_members_without_a_byte_are_left_out() -> None:
    assert build("tar", 10, (0, 0), [("a", 5, 0), ("b", 5, 5)]).names == ("b",)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        pytest.param([("a", -1, 5)], "outside", id="negative offset"),
        pytest.param([("a", 0, -5)], "outside", id="negative length"),
        pytest.param([("a", 5, 6)], "outside", id="one byte over the file"),
        pytest.param([("a", 1.0, 2)], "outside", id="a float"),
        pytest.param([("a", float("nan"), 2)], "outside", id="not a number"),
        pytest.param([("a", True, 2)], "outside", id="a bool"),
        pytest.param([("a", 0, 5), ("b", 4, 2)], "overlaps", id="overlap of one byte"),
        pytest.param([("a", 0, 5), ("a", 5, 5)], "one name", id="one name twice"),
        pytest.param([("a" * 5000, 0, 5)], "5000 characters", id="a long name"),
    ],
)
def test_items_that_contradict_each_other_make_no_layout(items: list[tuple[str, int, int]], reason: str) -> None:
    with pytest.raises(NoLayout, match=reason):
        build("tar", 10, (0, 0), items)


def test_a_range_that_leaves_the_file_is_not_asked_for() -> None:
    with pytest.raises(NoLayout, match="ends before"):
        run(want(5, 6, 10), lambda offset, length: bytes(length))


def test_a_short_answer_makes_no_layout() -> None:
    with pytest.raises(NoLayout, match="3 bytes came instead of 5"):
        run(want(0, 5, 10), lambda offset, length: b"123")


def test_layout_of_a_file_by_the_official_writer() -> None:
    body = save({"w": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.uint8), "none": np.zeros(0, np.float32)})
    start = 8 + int.from_bytes(body[:8], "little")
    layout = parse(body)
    assert layout.members == (Member("w", start, 60), Member("b", start + 60, 7))
    assert layout.header == (0, start)
    assert layout.size == len(body)


def test_a_header_is_asked_for_in_two_ranges_at_most() -> None:
    body = save({f"model.layers.{index}.weight": np.zeros(4, np.float32) for index in range(3000)})
    asked = []
    parser = safetensors.layout(len(body))
    offset, length = next(parser)
    with pytest.raises(StopIteration):
        while True:
            asked.append((offset, length))
            offset, length = parser.send(body[offset : offset + length])
    assert len(asked) == 2
    assert asked[0] == (0, 128 * 1024)
    assert sum(length for _, length in asked) == 8 + int.from_bytes(body[:8], "little")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", "no safetensors header", id="empty"),
        pytest.param(b"\2\0\0\0\0\0\0\0{", "no safetensors header", id="nine bytes"),
        pytest.param(b"PK\3\4" + bytes(100), "no safetensors header", id="something else"),
        pytest.param(b"\xff" * 8 + b"{" + bytes(100), "no safetensors header", id="header longer than the file"),
        pytest.param(written(b'{"a":'), "can't be decoded", id="cut JSON"),
        pytest.param(written(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "can't be decoded", id="deep nesting"),
        pytest.param(written(b'{"a":{"data_offsets":[0,1e999]}}', 1), "can't be decoded", id="infinite"),
        pytest.param(written(b'{"a":{"data_offsets":[0,NaN]}}', 1), "can't be decoded", id="not a number"),
        pytest.param(written(b'{"\xff":{"data_offsets":[0,1]}}', 1), "can't be decoded", id="name in no encoding"),
        pytest.param(written({"a": {"dtype": "U8"}}), "can't be decoded", id="no offsets"),
        pytest.param(written({"a": entry(-1, 4)}, 4), "negative", id="negative offset"),
        pytest.param(written({"a": entry(4, 0)}, 4), "outside", id="end before begin"),
        pytest.param(written({"a": entry(0, 5)}, 4), "outside", id="over the file"),
        pytest.param(written({"a": entry(0, 2**70)}, 4), "can't be decoded|outside", id="number of 70 bits"),
        pytest.param(written({"a": entry(0, 3), "b": entry(2, 4)}, 4), "overlaps", id="overlap"),
        pytest.param(written({"a": entry(0, 1), "b": entry(2, 4)}, 4), "hole", id="hole"),
        pytest.param(written({"a": entry(0, 3)}, 4), "end at", id="bytes that belong to nobody"),
        pytest.param(written(b'{"a":{"data_offsets":[0,2]},"a":{"data_offsets":[2,4]}}', 4), "hole", id="one name twice"),
    ],
)
def test_a_hostile_header_makes_no_layout(body: bytes, reason: str) -> None:
    with pytest.raises(NoLayout, match=reason):
        parse(body)


def test_a_header_of_100_mb_is_never_asked_for() -> None:
    first = (100_000_000).to_bytes(8, "little") + b"{" + b" " * (128 * 1024 - 9)
    parser = safetensors.layout(200_000_000)
    assert next(parser) == (0, 128 * 1024)
    with pytest.raises(NoLayout, match="a header of 100000000 bytes"):
        parser.send(first)


def test_a_hundred_thousand_tensors_take_less_than_three_seconds() -> None:
    header = {f"model.layers.{index}.mlp.weight": entry(index, index + 1) for index in range(100_000)}
    body = written(header, 100_000)
    begin = time.process_time()
    assert len(parse(body)) == 100_000
    assert time.process_time() - begin < 3


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"\x40" + bytes(7) + b"{" + tail))
@settings(max_examples=300)
def test_any_bytes_make_a_layout_or_none(body: bytes) -> None:
    try:
        layout = parse(body)
    except NoLayout:
        return
    assert all(member.end <= len(body) for member in layout)


@given(st.data(), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=200)
def test_a_header_with_one_wrong_byte_makes_a_layout_inside_the_file_or_none(
    data: st.DataObject, position: int, value: int
) -> None:
    body = bytearray(written({name: entry(at, at + 10) for at, name in zip(range(0, 50, 10), "abcde", strict=True)}, 50))
    body[position % len(body)] = value
    try:
        layout = parse(bytes(body))
    except NoLayout:
        return
    assert layout.members[-1].end == len(body) if len(layout) else True


def test_an_index_names_the_tensors_of_each_shard() -> None:
    body = json.dumps({"metadata": {"total_size": 9}, "weight_map": {"a": "x.safetensors", "b": "y", "c": "x.safetensors"}})
    found = run(safetensors.shards(len(body)), lambda offset, length: body.encode()[offset : offset + length])
    assert found == {"x.safetensors": ("a", "c"), "y": ("b",)}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"weight_map":{"a":1}}', b'{"weight_map":{"a":"../x"}}', b'{"weight_map":{"a":""}}']
)
def test_an_index_that_is_none_or_leaves_its_directory_is_refused(body: bytes) -> None:
    with pytest.raises(NoLayout):
        run(safetensors.shards(len(body)), lambda offset, length: body[offset : offset + length])
