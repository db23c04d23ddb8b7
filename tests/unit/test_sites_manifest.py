from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.model import Entry, Kind, SiteName, SitePath, Version
from vfs.sites import manifest
from vfs.sites.manifest import Index, Row, objects_of
from vfs.sites.names import NameFilter

COMPONENT = st.sampled_from(["a", "b", "a.b", "a-b", "a0", "é", "日本", "~", "\U0001f600"])
PATHS = st.lists(st.lists(COMPONENT, min_size=1, max_size=4).map("/".join), max_size=12)


def index_of(paths: list[str]) -> Index:
    index = Index()
    index.add([Row(path, 1) for path in paths])
    index.seal()
    return index


def all_children(index: Index, path: str) -> list[Entry]:
    found, after = index.children(path, "")
    while after:
        page, after = index.children(path, after)
        found += page
    return found


@given(PATHS, st.sampled_from([1, 2, 1000]))
def test_each_child_is_listed_once_whatever_lies_below_it(paths: list[str], page_entries: int) -> None:
    index = index_of(paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "PAGE_ENTRIES", page_entries)
        directories = {""} | {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/") + 1)}
        for directory in directories:
            lead = f"{directory}/" if directory else ""
            expected = {path[len(lead) :].split("/")[0] for path in paths if path.startswith(lead)}
            found = [entry.name for entry in all_children(index, directory)]
            assert sorted(found) == sorted(expected)


@given(PATHS)
def test_an_object_is_found_as_a_file_and_what_lies_above_as_a_directory(paths: list[str]) -> None:
    index = index_of(paths)
    for path in paths:
        entry = index.entry(path)
        assert entry is not None
        assert (entry.name, entry.kind) == (path.rpartition("/")[2], Kind.FILE)
        above = path.rpartition("/")[0]
        if above not in paths:
            assert index.entry(above) == Entry(above.rpartition("/")[2], Kind.DIRECTORY, Version(0))
    assert index.entry("a/missing") is None


def test_the_later_of_two_rows_counts_and_times_are_kept_to_the_nanosecond_that_a_float_holds() -> None:
    index = Index()
    index.add([Row("f", 1, 1.0), Row("f", 2, 1.5, '"e"')])
    index.seal()
    entry = index.entry("f")
    assert entry is not None
    assert entry.version == Version(2, 1_500_000_000, '"e"')


def test_paths_that_posix_cannot_carry_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = NameFilter(SiteName("lake"), SitePath("manifest.json"))
    paths = ["/absolute", "a//b", "a/../b", ".", "", "a/", "x" * 256, "nul\0", "\ud800", "good/path"]
    with caplog.at_level(logging.WARNING):
        kept = objects_of([{"path": path, "size": 1, "extra": True} for path in paths], names, "test")
    assert [row.path for row in kept] == ["good/path"]
    assert len(caplog.records) == 1
