from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.model import NAME_BYTES_MAX, SiteName, SitePath, Version, can_posix_carry, join, object_key, split

SITE, PATH = SiteName("s"), SitePath("a/b")


def test_key_of_a_version_never_changes() -> None:
    # Written out: an accidental change would empty every cache.
    assert object_key(SITE, PATH, Version(5, 7, "e", 1)) == "50f2f9c8fca3f1604203fd7db4e26d8e"
    assert len(object_key(SITE, PATH, Version(5))) == 32


@pytest.mark.parametrize(
    "other",
    [Version(6, 7, "e", 1), Version(5, 8, "e", 1), Version(5, 7, "f", 1), Version(5, 7, "e", 2)],
    ids=["size", "mtime", "etag", "generation"],
)
def test_each_part_of_a_version_makes_another_key(other: Version) -> None:
    assert object_key(SITE, PATH, Version(5, 7, "e", 1)) != object_key(SITE, PATH, other)


def test_fields_do_not_run_into_each_other() -> None:
    assert object_key(SiteName("a"), SitePath("bc"), Version(1)) != object_key(SiteName("ab"), SitePath("c"), Version(1))


@pytest.mark.parametrize(
    ("parent", "name", "joined"), [("", "", ""), ("", "a", "a"), ("a", "", "a"), ("a/b", "c", "a/b/c")], ids=repr
)
def test_join(parent: str, name: str, joined: str) -> None:
    assert join(parent, name) == joined


@given(st.lists(st.text("ab", min_size=1), min_size=1).map("/".join))
def test_split_undoes_join(path: str) -> None:
    assert join(*split(path)) == path


@pytest.mark.parametrize(
    ("name", "carried"),
    [
        ("a", True), ("ü", True), ("a b\n", True), ("...", True), ("x" * NAME_BYTES_MAX, True), ("x" * 256, False),
        ("ü" * 128, False), ("", False), (".", False), ("..", False), ("a/b", False), ("a\0b", False), ("\udcff", False),
    ],
)  # fmt: skip
def test_names_that_linux_can_show(name: str, carried: bool) -> None:
    assert can_posix_carry(name) is carried
