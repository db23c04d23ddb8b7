from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs import config
from vfs.config import Replica
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import MountPoint, MountTable, build_mount_table


def point(prefix: str, root: str = "") -> MountPoint:
    return MountPoint(LakePath(prefix), SiteName(f"site of {prefix}"), SitePath(root))


def found(table: MountTable, path: str) -> str | None:
    covering = table.find(LakePath(path))
    return None if covering is None else covering.prefix


def test_longest_prefix_wins() -> None:
    table = MountTable([point(""), point("data"), point("data/images/small"), point("data/images")])
    assert [found(table, path) for path in ("", "other", "data", "data/x", "data/images/x", "data/images/small/y")] == [
        "", "", "data", "data", "data/images", "data/images/small",
    ]  # fmt: skip


def test_prefix_covers_whole_components_only() -> None:
    table = MountTable([point("data")])
    assert found(table, "database") is None
    assert found(table, "data") == "data"


def test_path_that_only_leads_to_mounts_is_covered_by_none() -> None:
    table = MountTable([point("a/b/c"), point("a/d")])
    assert found(table, "a") is None
    assert table.leads_to_mounts(LakePath("a"))
    assert table.leads_to_mounts(LakePath("a/b"))
    assert not table.leads_to_mounts(LakePath("a/x"))


def test_prefix_and_root_lead_to_mounts() -> None:
    table = MountTable([point("a/b")])
    assert table.leads_to_mounts(LakePath(""))
    assert table.leads_to_mounts(LakePath("a/b"))
    assert not table.leads_to_mounts(LakePath("a/b/c"))


def test_children_are_the_next_components_of_prefixes_below() -> None:
    table = MountTable([point(""), point("a/b/c"), point("a/d"), point("e")])
    assert table.children(LakePath("")) == {"a", "e"}
    assert table.children(LakePath("a")) == {"b", "d"}
    assert table.children(LakePath("a/b")) == {"c"}
    assert table.children(LakePath("a/b/c")) == set()


@pytest.mark.parametrize(
    ("prefix", "root", "path", "expected"),
    [
        ("", "", "x/y", "x/y"),
        ("", "deep/root", "x", "deep/root/x"),
        ("a/b", "", "a/b/c", "c"),
        ("a/b", "r", "a/b", "r"),
        ("a/b", "", "a/b", ""),
    ],
    ids=["whole site", "root of a site", "prefix", "prefix itself with root", "prefix itself"],
)
def test_site_path_is_the_root_and_what_lies_below_the_prefix(prefix: str, root: str, path: str, expected: str) -> None:
    assert point(prefix, root).site_path(LakePath(path)) == expected
    assert point(prefix, root).lake_path(SitePath(expected)) == path


def test_what_lies_beside_the_root_of_a_site_is_nowhere_in_the_lake() -> None:
    assert point("a", "deep/root").lake_path(SitePath("deep/rooted")) is None


_parts = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map("/".join)


@given(st.sets(_parts, max_size=6), _parts)
def test_no_prefix_that_covers_a_path_is_longer_than_the_found_one(prefixes: set[str], path: str) -> None:
    table = MountTable([point(prefix) for prefix in prefixes])
    covering = [prefix for prefix in prefixes if not prefix or f"{path}/".startswith(f"{prefix}/")]
    assert found(table, path) == (max(covering, key=len) if covering else None)


@given(st.sets(_parts, max_size=6))
def test_every_prefix_can_be_reached_from_the_root_by_children(prefixes: set[str]) -> None:
    table = MountTable([point(prefix) for prefix in prefixes])
    for prefix in prefixes:
        parts = prefix.split("/") if prefix else []
        for depth, part in enumerate(parts):
            assert part in table.children(LakePath("/".join(parts[:depth])))


def test_table_of_a_configuration_names_local_directories_and_the_status_files() -> None:
    loaded = config.parse("""
        [sites.disk]
        kind = "local"
        path = "/srv/data"
        [sites.web]
        kind = "http"
        url = "http://127.0.0.1/"
        [[mounts]]
        prefix = "/"
        site = "disk"
        root = "/inner/"
        writable = true
        [[mounts]]
        prefix = "/web/"
        site = "web"
        replicas = ["disk:copies", "disk"]
    """)
    web, status, disk = build_mount_table(loaded, "/run/x/public").points
    assert (disk.prefix, disk.local_root, disk.writable) == ("", "/srv/data/inner", True)
    assert (web.prefix, web.local_root, web.local_replicas) == (
        "web",
        None,
        (("disk", "/srv/data/copies"), ("disk", "/srv/data")),
    )
    assert web.replicas == (
        Replica(SiteName("disk"), SitePath("copies")),
        Replica(SiteName("disk"), SitePath("")),
    )
    assert (status.prefix, status.local_root, status.writable) == (".foremount", "/run/x/public", False)
