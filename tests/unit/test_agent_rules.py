"""The policy by lake path, as the agent's services ask it."""

from __future__ import annotations

from pathlib import Path

from vfs.agent.rules import PathRules
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce
from vfs.policy.store import PolicyStore

DOCUMENT = """
format = 1
[[rules]]
name = "models"
match = { site = "far", size = ">=1MiB", access = "prefetch" }
set = { prefetch = "whole", read_ahead = "1GiB" }
[[rules]]
name = "notes"
match = { path = "models/notes/**" }
set = { prefetch = "off", read_ahead = "1GiB", staleness = "close-to-open", listing_ttl = "3s" }
"""


def rules(tmp_path: Path) -> PathRules:
    (tmp_path / "own.toml").write_text(DOCUMENT)
    points = [
        MountPoint(LakePath("models"), SiteName("far"), SitePath("m")),
        MountPoint(LakePath("x"), SiteName("near"), SitePath("")),
    ]
    return PathRules(InForce(PolicyStore([str(tmp_path / "own.toml")]), host="h"), MountTable(points))


def test_prefetch_rule_says_mode_and_window(tmp_path: Path) -> None:
    found = rules(tmp_path)
    assert found.prefetch_rule(LakePath("models/big"), 1 << 20) == ("whole", 1 << 30)
    assert found.prefetch_rule(LakePath("models/small"), 1 << 10) == ("sequential", 64 << 20)
    assert found.prefetch_rule(LakePath("x/big"), 1 << 20) == ("sequential", 64 << 20)
    assert found.prefetch_rule(LakePath("models/a.safetensors"), 1 << 10) == ("tensor", 256 << 20)


def test_prefetch_that_is_off_has_no_window(tmp_path: Path) -> None:
    assert rules(tmp_path).prefetch_rule(LakePath("models/notes/big"), 1 << 20) == ("off", 0)


def test_belief_is_that_of_the_path(tmp_path: Path) -> None:
    found = rules(tmp_path)
    assert (found.version_ttl_s(LakePath("models/notes/a"), 1), found.listing_ttl_s(LakePath("models/notes"))) == (0, 3)
    assert (found.version_ttl_s(LakePath("models/a"), 1), found.listing_ttl_s(LakePath("models"))) == (60, 60)


def test_path_outside_all_mounts_has_the_values_of_no_site(tmp_path: Path) -> None:
    found = rules(tmp_path).decision(LakePath("nowhere"), Access.PREFETCH, 1 << 20)
    assert found.values.prefetch == "sequential"
