"""The policy by lake path, as the agent's services ask it."""

from __future__ import annotations

import math
from pathlib import Path

from vfs.agent.rules import PathRules
from vfs.extents.fair import Priority
from vfs.extents.layout import Identity
from vfs.model import LakePath, ObjectKey, SiteName, SitePath, Version
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.facts import Access
from vfs.policy.inforce import InForce
from vfs.policy.store import PolicyStore
from vfs.usage import NOBODY, CallerFacts

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


def rules(tmp_path: Path, document: str = DOCUMENT) -> PathRules:
    (tmp_path / "own.toml").write_text(document)
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


CALLERS = """
format = 1
[[rules]]
name = "batch"
match = { job = "batch" }
set = { cache = "stream", bandwidth = "1MB/s" }
[[rules]]
name = "slow"
match = { job = "slow" }
set = { cache = "keep", bandwidth = "1KB/s" }
"""
OBJECT = Identity(SiteName("far"), SitePath("m/a"), Version(1 << 20))


def test_file_is_fetched_as_for_the_fastest_of_those_who_have_it_open(tmp_path: Path) -> None:
    found = rules(tmp_path, CALLERS)
    assert found.rate_of(OBJECT, Priority.FOREGROUND) == ("default", math.inf)
    found.opened(OBJECT.key, CallerFacts(job="slow"))
    assert found.rate_of(OBJECT, Priority.PREFETCH) == ("own/slow", 1e3)
    found.opened(OBJECT.key, CallerFacts(job="batch"))
    found.opened(OBJECT.key, NOBODY)
    assert found.rate_of(OBJECT, Priority.PREFETCH) == ("own/batch", 1e6)
    found.opened(OBJECT.key, CallerFacts(job="slow"))
    assert found.rate_of(OBJECT, Priority.FOREGROUND) == ("own/batch", 1e6)
    found.opened(OBJECT.key, CallerFacts(job="urgent"))
    assert found.rate_of(OBJECT, Priority.FOREGROUND) == ("default", math.inf)


def test_cached_file_is_kept_as_for_who_opened_it_last(tmp_path: Path) -> None:
    found = rules(tmp_path, CALLERS)
    assert found.keep_of(OBJECT) == "normal"
    for job, keep in (("slow", "keep"), ("batch", "stream"), ("slow", "keep"), ("other", "normal"), ("batch", "stream")):
        found.opened(OBJECT.key, CallerFacts(job=job))
        assert found.keep_of(OBJECT) == keep
    found.closed(OBJECT.key)
    assert found.keep_of(OBJECT) == "stream"
    assert found.rate_of(OBJECT, Priority.FOREGROUND) == ("own/batch", 1e6)  # the others have left


def test_openers_of_countless_objects_are_forgotten_oldest_first(tmp_path: Path) -> None:
    found = rules(tmp_path, CALLERS)
    found.opened(OBJECT.key, CallerFacts(job="batch"))
    for number in range(9_999):
        found.opened(ObjectKey(str(number)), CallerFacts(job="slow"))
    assert found.keep_of(OBJECT) == "stream"
    found.opened(ObjectKey("one more"), CallerFacts(job="slow"))
    assert found.keep_of(OBJECT) == "normal"


def test_path_outside_all_mounts_has_the_values_of_no_site(tmp_path: Path) -> None:
    found = rules(tmp_path).decision(LakePath("nowhere"), Access.PREFETCH, 1 << 20)
    assert found.values.prefetch == "sequential"
