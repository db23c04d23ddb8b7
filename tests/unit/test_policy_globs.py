"""Path patterns."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.policy.facts import PathGlobs
from vfs.policy.globs import expand_braces, landmarks

MATCHES = [
    ("data/*", "data/a", True), ("data/*", "data", False), ("data/*", "data/a/b", False), ("data/*", "data/", False),
    ("data/**", "data", True), ("data/**", "data/a", True), ("data/**", "data/a/b", True), ("data/**", "data2", False),
    ("data/**", "my/data/a", False),
    ("**", "", True), ("**", "a/b", True),
    ("**/x", "x", True), ("**/x", "a/x", True), ("**/x", "a/b/x", True), ("**/x", "ax", False), ("**/x", "x/a", False),
    ("a/**/b", "a/b", True), ("a/**/b", "a/x/y/b", True), ("a/**/b", "ab", False), ("a/**/b", "a/xb", False),
    ("a/**/**/b", "a/b", True), ("**/a/**", "x/a", True), ("**/a/**", "a/y", True), ("**/a/**", "xa/y", False),
    ("*.png", "x.png", True), ("*.png", "a/x.png", False), ("*.png", ".png", True), ("*.png", "xpng", False),
    ("**/*.png", "a/b/x.png", True), ("**/*.png", "x.PNG", False),
    ("*", "a", True), ("*", "", False), ("a?c", "abc", True), ("a?c", "a/c", False), ("a?c", "ac", False),
    ("[ab]x", "ax", True), ("[ab]x", "cx", False), ("[!ab]x", "cx", True), ("[!ab]x", "ax", False), ("a[!b]c", "a/c", False),
    ("[a-c]", "b", True), ("[a-c]", "d", False), ("[]]", "]", True), ("[*]", "*", True), ("[*]", "a", False),
    ("[[]", "[", True), ("[^a]", "^", True), ("[^a]", "b", False), (r"[\d]", "5", False), (r"[\d]", "\\", True),
    ("*.{jpg,png}", "a.jpg", True), ("*.{jpg,png}", "a.png", True), ("*.{jpg,png}", "a.gif", False),
    ("{a,b/c}/*", "b/c/x", True), ("x{,.gz}", "x", True), ("x{,.gz}", "x.gz", True),
    ("/data/*/", "data/a", True), ("a.b", "axb", False), ("a+(b)|c$", "a+(b)|c$", True),
    ("**/*", "line\nbreak", True), ("*", "line\nbreak", True), ("/", "", True), ("/", "a", False),
    ("ckpt/**/step_?/[!.]*", "ckpt/a/b/step_2/x", True), ("ckpt/**/step_?/[!.]*", "ckpt/step_10/x", False),
    ("ckpt/**/step_?/[!.]*", "ckpt/step_1/.x", False),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES, ids=[f"{p}~{q!r}" for p, q, _ in MATCHES])
def test_pattern_matches_as_the_page_says(pattern, path, expected):
    assert PathGlobs(pattern).matches(path) is expected


@pytest.mark.parametrize(
    "pattern",
    ["", "a//b", "a/./b", "../a", "a**", "**a/b", "a[b", "a{b", "a}b", "{a,{b,c}}", "a}{b", "[z-a]", "{a,b}" * 7],
)
def test_pattern_that_can_not_be_meant_is_refused(pattern):
    with pytest.raises(ValueError, match=r"write|can match nothing|no set|wildcards"):
        PathGlobs(pattern)


def test_braces_stand_for_each_choice_in_order():
    assert expand_braces("{a,b}/x.{c,d}") == ["a/x.c", "a/x.d", "b/x.c", "b/x.d"]


def test_64_expansions_are_allowed_and_65_are_not():
    assert len(expand_braces("{" + ",".join(map(str, range(64))) + "}")) == 64
    with pytest.raises(ValueError, match="64"):
        expand_braces("{" + ",".join(map(str, range(65))) + "}")


def test_many_stars_do_not_take_exponential_time():
    glob = PathGlobs("**/" + "*a" * 4 + "b")
    assert not glob.matches("x/" * 20 + "a" * 120)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ckpt/run7/**", ("ckpt/run7", "", (), "", "prefix")),
        ("**/*.safetensors", ("", "", (), "safetensors", "extension")),
        ("**/.metadata", ("", ".metadata", (), "", "name")),
        ("**/*.tar.gz", ("", "", (), "gz", "")),
        ("data/*.gz", ("data", "", (), "gz", "")),
        ("**/run7/*/x*.pt", ("", "", ("run7",), "pt", "")),
        ("a/*/b/**/c/d", ("a", "d", ("b", "c"), "", "")),
        ("**/*x*", ("", "", (), "", "")),
        ("**/*.", ("", "", (), "", "")),
        ("**/a[.]b", ("", "", (), "", "")),
        ("a/b.c", ("a/b.c", "b.c", (), "", "")),
    ],
)
def test_landmarks_are_the_literal_parts(pattern, expected):
    marks = landmarks(pattern)
    assert (marks.prefix, marks.name, marks.components, marks.extension, marks.decisive) == expected


components = st.text(alphabet="ab.*?[]!-", min_size=1, max_size=5)
patterns = st.lists(st.one_of(components, st.just("**")), min_size=1, max_size=4).map("/".join)
paths = st.lists(st.text(alphabet="ab.-", min_size=1, max_size=4), max_size=5).map("/".join)


@given(patterns, paths)
def test_every_path_that_matches_has_the_landmarks(pattern, path):
    try:
        globs = PathGlobs(pattern)
    except ValueError:
        return
    if globs.matches(path):
        marks = landmarks(globs[0])
        name = path.rpartition("/")[2]
        assert path == marks.prefix or not marks.prefix or path.startswith(marks.prefix + "/")
        assert not marks.name or name == marks.name
        assert not marks.extension or name.rpartition(".")[2] == marks.extension
        assert set(marks.components) <= set(path.split("/"))


decisive = st.lists(st.sampled_from(["a", "b", "**", "*.a", "*.b.a", "*"]), min_size=1, max_size=3).map("/".join)


@given(decisive, paths)
def test_path_that_has_a_decisive_landmark_matches(pattern, path):
    globs = PathGlobs(pattern)
    marks, name = landmarks(globs[0]), path.rpartition("/")[2]
    has = {
        "prefix": path == marks.prefix or path.startswith(marks.prefix + "/"),
        "name": name == marks.name,
        "extension": "." in name and name.rpartition(".")[2] == marks.extension,
    }
    if marks.decisive and has[marks.decisive]:
        assert globs.matches(path)


@given(st.text(alphabet="ab.*?[]{}!-/\\^$+()|", max_size=12))
def test_every_pattern_is_refused_or_compiles(pattern):
    try:
        globs = PathGlobs(pattern)
    except ValueError:
        return
    re.compile(globs.regex, re.DOTALL)
