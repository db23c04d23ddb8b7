"""How a copy is carried out: `vfs/foresight/transfers.py`."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.checkpoints.manifest import ManifestFile
from vfs.extents.layout import BLOCK
from vfs.foresight.transfers import (
    PACK_FILES,
    TINY_BYTES,
    batches,
    pieces_of_content,
    place_in_copy,
    place_in_ranges,
    share_of_cpu_s,
    whole_blocks,
)
from vfs.model import SitePath, Version

SIZE = 50 * BLOCK + 77
spans = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 9 * BLOCK)), min_size=1, max_size=8)


def file(name: str, size: int) -> ManifestFile:
    return ManifestFile(name, size, "", SitePath(name), Version(size))


def test_large_files_go_first_and_alone_and_tiny_ones_together() -> None:
    files = [file("t1", 10), file("l1", TINY_BYTES), file("t2", 0), file("l2", 10 * TINY_BYTES)]
    assert [[each.path for each in batch] for batch in batches(files)] == [["l2"], ["l1"], ["t1", "t2"]]


@pytest.mark.parametrize(
    ("own", "moved", "share_s"),
    [
        pytest.param(100, 100, 8.0, id="alone"),
        pytest.param(100, 400, 2.0, id="beside-others"),
        pytest.param(0, 400, 0.0, id="empty-file-beside-others"),
        pytest.param(0, 0, 8.0, id="nothing-moved-at-all"),
        pytest.param(500, 400, 8.0, id="more-than-was-counted"),
    ],
)
def test_cpu_time_goes_to_bytes(own: int, moved: int, share_s: float) -> None:
    assert share_of_cpu_s(8.0, own, moved) == share_s


def test_many_tiny_files_make_few_batches() -> None:
    found = batches([file(f"{index:04}", 1000) for index in range(1000)])
    assert [len(batch) for batch in found] == [PACK_FILES] * 3 + [232]


def test_nothing_is_nothing() -> None:
    assert batches([]) == []


def test_each_kind_of_path_has_its_place_in_the_copy() -> None:
    root = SitePath("copies/r1")
    assert place_in_copy(root, "deep/file") == "copies/r1/deep/file"
    assert place_in_copy(root, "/other/file") == "copies/r1/=lake/other/file"
    assert place_in_copy(root, "") == "copies/r1/content"


@settings(max_examples=40, deadline=None)
@given(spans)
def test_whole_blocks_cover_what_was_asked_in_disjoint_ranges(ranges: list[tuple[int, int]]) -> None:
    found = whole_blocks(ranges, SIZE)
    covered = {block for start, length in found for block in range(start // BLOCK, -(-(start + length) // BLOCK))}
    wanted = {block for start, length in ranges for block in range(start // BLOCK, -(-min(SIZE, start + length) // BLOCK))}
    assert covered == wanted
    assert all(start % BLOCK == 0 and (length % BLOCK == 0 or start + length == SIZE) for start, length in found)
    assert all(one[0] + one[1] < other[0] for one, other in itertools.pairwise(found))


@settings(max_examples=40, deadline=None)
@given(spans, st.integers(0, SIZE - 1), st.integers(1, 4 * BLOCK))
def test_what_lies_in_a_copy_is_found_where_it_was_put(ranges: list[tuple[int, int]], offset: int, length: int) -> None:
    held = whole_blocks(ranges, SIZE)
    at = place_in_ranges(held, offset, length)
    inside = any(start <= offset and offset + length <= start + size for start, size in held)
    assert (at is not None) == inside
    if at is not None:
        assert pieces_of_content(held, at, length) == [(offset, length)]


@settings(max_examples=40, deadline=None)
@given(spans)
def test_the_content_of_a_copy_is_its_ranges_one_after_another(ranges: list[tuple[int, int]]) -> None:
    held = whole_blocks(ranges, SIZE)
    total = sum(length for _, length in held)
    assert pieces_of_content(held, 0, total) == held


def test_a_copy_of_the_whole_file_holds_everything_where_it_was() -> None:
    assert place_in_ranges([], 5, 10) == 5
    assert pieces_of_content([], 5, 10) == [(5, 10)]
