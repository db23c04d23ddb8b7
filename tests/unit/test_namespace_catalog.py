from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vfs.model import Entry, Kind, LakePath, Version
from vfs.namespace.catalog import Catalog, CatalogWriter, Known, Listing

D = LakePath("some/dir")


def entry(name: str, size: int = 1) -> Entry:
    return Entry(name, Kind.FILE, Version(size))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[CatalogWriter]:
    opened = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    yield opened
    opened.close()


def list_all(writer: CatalogWriter, names: str, now_ns: int) -> Listing:
    listing = writer.begin_listing(D, now_ns)
    listing = writer.extend_listing(D, listing, [entry(name) for name in names], now_ns)
    return writer.complete_listing(D, listing)


def names(catalog: Catalog, generation: int, position: int = 0, limit: int = 100) -> list[str | None]:
    return [found.name if found else None for found in catalog.page(D, generation, position, limit)]


def test_what_was_said_about_a_path_is_known(writer: CatalogWriter) -> None:
    known = Known(entry("f"), 5)
    writer.put(LakePath("some/dir/f"), known)
    assert writer.known(LakePath("some/dir/f")) == known
    assert writer.known(LakePath("some/dir/g")) is None


def test_absence_that_was_stated_is_known_too(writer: CatalogWriter) -> None:
    writer.put(LakePath("x"), Known(None, 5))
    assert writer.known(LakePath("x")) == Known(None, 5)


def test_listing_is_paged_in_the_order_of_arrival(writer: CatalogWriter) -> None:
    listing = writer.begin_listing(D, 1)
    listing = writer.extend_listing(D, listing, [entry("b"), entry("a")], 1)
    listing = writer.extend_listing(D, listing, [entry("c")], 1)
    assert listing == Listing(1, 3, complete=False, begun_ns=1)
    assert names(writer, 1) == ["b", "a", "c"]
    assert names(writer, 1, position=1, limit=1) == ["a"]
    assert names(writer, 1, position=3) == []


def test_directories_do_not_mix(writer: CatalogWriter) -> None:
    list_all(writer, "ab", 1)
    other = writer.begin_listing(LakePath("some/other"), 1)
    writer.extend_listing(LakePath("some/other"), other, [entry("z")], 1)
    assert names(writer, 1) == ["a", "b"]


def test_names_that_the_next_listing_has_not_are_gone(writer: CatalogWriter) -> None:
    list_all(writer, "abc", 1)
    second = list_all(writer, "ac", 2)
    assert (second.generation, second.previous) == (2, 1)
    assert writer.known(LakePath("some/dir/b")) is None
    assert names(writer, 2) == ["a", "c"]


def test_reader_in_the_middle_of_a_listing_goes_on_in_it_and_skips_what_is_gone(writer: CatalogWriter) -> None:
    list_all(writer, "abc", 1)
    list_all(writer, "ca", 2)
    assert names(writer, 1, position=1) == [None, "c"]


def test_generation_before_the_last_complete_one_goes(writer: CatalogWriter) -> None:
    for now_ns in (1, 2, 3):
        list_all(writer, "abc", now_ns)
    assert names(writer, 1) == []
    assert names(writer, 2) == ["a", "b", "c"]


def test_name_that_was_asked_for_singly_is_gone_with_the_next_listing_too(writer: CatalogWriter) -> None:
    list_all(writer, "ab", 1)
    writer.put(LakePath("some/dir/b"), Known(entry("b"), 2))
    list_all(writer, "a", 3)
    assert writer.known(LakePath("some/dir/b")) is None


def test_name_that_was_seen_while_the_listing_ran_stays(writer: CatalogWriter) -> None:
    list_all(writer, "ab", 1)
    second = writer.begin_listing(D, 2)
    writer.put(LakePath("some/dir/b"), Known(entry("b"), 3))
    writer.complete_listing(D, writer.extend_listing(D, second, [entry("a")], 2))
    assert writer.known(LakePath("some/dir/b")) == Known(entry("b"), 3)


def test_abandoned_listing_brings_the_previous_one_back_but_not_as_current(writer: CatalogWriter) -> None:
    list_all(writer, "abc", 1)
    second = writer.extend_listing(D, writer.begin_listing(D, 2), [entry("a")], 2)
    writer.abandon_listing(D, second)
    assert writer.listing(D) == Listing(1, 3, complete=True, begun_ns=0, last=2)
    assert names(writer, 1) == ["a", "b", "c"]
    assert names(writer, 2) == []


@pytest.mark.parametrize("earlier", ["", "abc"], ids=["first listing", "a later listing"])
def test_number_of_an_abandoned_listing_is_not_used_again(writer: CatalogWriter, earlier: str) -> None:
    if earlier:
        list_all(writer, earlier, 1)
    failed = writer.extend_listing(D, writer.begin_listing(D, 2), [entry("x")], 2)
    writer.abandon_listing(D, failed)
    following = list_all(writer, "a", 3)
    assert following.generation == failed.generation + 1
    known = writer.known(LakePath("some/dir/x"))
    assert known is None or known.generation != following.generation


def test_first_listing_that_failed_is_no_complete_empty_one(writer: CatalogWriter) -> None:
    writer.abandon_listing(D, writer.begin_listing(D, 2))
    listing = writer.listing(D)
    assert listing is not None
    assert (listing.complete, listing.previous, listing.count) == (False, 0, 0)


def test_listing_that_a_killed_agent_left_unfinished_is_replaced(writer: CatalogWriter, tmp_path: Path) -> None:
    list_all(writer, "ab", 1)
    writer.extend_listing(D, writer.begin_listing(D, 2), [entry("a")], 2)
    writer.close()
    following = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    third = list_all(following, "b", 3)
    assert (third.generation, third.previous) == (3, 1)
    assert names(following, 1) == [None, "b"]
    assert names(following, 2) == []
    following.close()


def test_reader_sees_what_the_writer_commits(writer: CatalogWriter, tmp_path: Path) -> None:
    # LMDB allows an environment once per process; the worker is another one, as in production.
    list_all(writer, "ab", 1)
    code = (
        "import sys; from vfs.namespace.catalog import Catalog; "
        "print([e.name for e in Catalog(sys.argv[1]).page('some/dir', 1, 0, 10)])"
    )
    assert run_python(code, str(tmp_path / "catalog.lmdb")) == "['a', 'b']"


def test_catalog_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "catalog.lmdb"))
    assert catalog.known(LakePath("x")) is None
    assert catalog.listing(D) is None
    assert catalog.page(D, 1, 0, 10) == []
    catalog.close()


def run_python(code: str, *args: str) -> str:
    import subprocess
    import sys

    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True).stdout.strip()
