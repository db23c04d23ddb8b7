from __future__ import annotations

import itertools
import json
from html import escape
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.errors import WrongAnswer
from vfs.sites.listings import ROW_CHARS_MAX, HtmlLinks, JsonRows, child_of

ROWS = st.lists(st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.none(), max_size=3), max_size=8)
CUTS = st.lists(st.integers(0, 400), max_size=6)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def rows_of(body: bytes, cuts: list[int], *, is_wrapped: bool = False) -> list[object]:
    rows = JsonRows("test", is_wrapped=is_wrapped)
    found: list[object] = []
    for piece in pieces(body, cuts):
        found += rows.feed(piece)
    return found + rows.feed(b"", last=True)


@given(ROWS, CUTS, st.sampled_from([None, 1]), st.booleans())
def test_rows_are_the_same_however_the_body_is_cut(
    rows: list[object], cuts: list[int], indent: int | None, is_ascii: bool
) -> None:
    body = json.dumps(rows, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    assert rows_of(body, cuts) == json.loads(body.decode("utf-8", "surrogateescape"))


@given(ROWS, CUTS)
def test_what_surrounds_the_array_is_passed_over_where_it_is_wrapped(rows: list[object], cuts: list[int]) -> None:
    body = json.dumps({"FileStatuses": {"FileStatus": rows}}).encode()
    assert rows_of(body, cuts, is_wrapped=True) == rows


@given(ROWS.filter(bool), st.data())
def test_a_body_that_is_cut_anywhere_never_passes_for_a_whole_one(rows: list[object], data: st.DataObject) -> None:
    body = json.dumps(rows).encode()
    with pytest.raises(WrongAnswer):
        rows_of(body[: data.draw(st.integers(0, len(body) - 1))], [])


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'["a"]', b"[{},]x", b"[{}{}]", b"[{}]]", b"[{} ,", b"nginx", b'[{"a":}]']
)
def test_what_is_no_array_of_objects_raises(body: bytes) -> None:
    with pytest.raises(WrongAnswer):
        rows_of(body, [])


def test_a_row_without_end_raises_instead_of_filling_the_memory() -> None:
    rows = JsonRows("test")
    rows.feed(b'[{"name": "')
    with pytest.raises(WrongAnswer):
        for _ in range(3):
            rows.feed(b"x" * ROW_CHARS_MAX)


def test_names_that_are_no_utf8_come_with_surrogates() -> None:
    assert rows_of(b'[{"name": "\xff"}]', []) == [{"name": "\udcff"}]


PAGE = "http://host/lake/a%20b/"


@pytest.mark.parametrize(
    ("href", "child"),
    [
        ("file", ("file", False)),
        ("sub/", ("sub", True)),
        ("./file", ("file", False)),
        ("100%25", ("100%", False)),
        ("%C3%A9", ("é", False)),
        ("a%2Fb", ("a/b", False)),
        ("%FF", ("\udcff", False)),
        ("a%23b%3F", ("a#b?", False)),
        ("/lake/a%20b/file", ("file", False)),
        ("http://host/lake/a%20b/file", ("file", False)),
        ("file#part", ("file", False)),
        ("../", None),
        ("/", None),
        ("", None),
        ("?C=N;O=D", None),
        ("file?download=1", None),
        ("sub/file", None),
        ("/lake/other/file", None),
        ("http://elsewhere/lake/a%20b/file", None),
        ("https://host/lake/a%20b/file", None),
        ("mailto:me@host", None),
        ("#top", None),
        ("http://[broken", None),
    ],
)
def test_only_links_to_direct_children_count(href: str, child: tuple[str, bool] | None) -> None:
    assert child_of(PAGE, href) == child


NAMES = st.lists(
    st.text(min_size=1, max_size=12).filter(lambda name: "/" not in name and name not in (".", "..") and "\0" not in name),
    unique=True,
    max_size=8,
)


@given(NAMES.filter(lambda names: all(name.isprintable() for name in names)), CUTS)
def test_links_are_the_same_however_the_page_is_cut(names: list[str], cuts: list[int]) -> None:
    rows = "".join(f'<tr><td><a href="{escape(quote(name))}">{escape(name)}</a> 1K\n' for name in names)
    body = f"<!DOCTYPE html><html><title>Index</title><!-- x --><a href='../'>up</a>{rows}</html>".encode()
    links = HtmlLinks("test", PAGE)
    found = [link for piece in pieces(body, cuts) for link in links.take(piece)] + links.take(b"", last=True)
    assert found == [(name, False) for name in names]


def test_a_name_that_is_linked_twice_is_listed_once() -> None:
    links = HtmlLinks("test", PAGE)
    assert links.take(b'<a href="f"><img></a><a href="f">f</a><a name="x"><a href>', last=True) == [("f", False)]


def test_a_tag_without_end_raises_instead_of_filling_the_memory() -> None:
    links = HtmlLinks("test", PAGE)
    with pytest.raises(WrongAnswer):
        links.take(b'<a href="' + b"x" * ROW_CHARS_MAX)
