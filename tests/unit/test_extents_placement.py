"""Who serves a version: `vfs/extents/placement.py`."""

from __future__ import annotations

import pytest

from vfs.extents.placement import Candidate, is_same, may_serve, precedes_origin, rank, served_here
from vfs.model import SiteName, Version
from vfs.policy.written import SiteOrder

FAR, NEAR, NEARER, DISK = SiteName("far"), SiteName("near"), SiteName("nearer"), SiteName("disk")
ORIGIN = Candidate(FAR, is_origin=True, expected_s=0.2)
SLOW = Candidate(NEAR, is_origin=False, expected_s=0.05)
FAST = Candidate(NEARER, is_origin=False, expected_s=0.01)
HERE = Candidate(DISK, is_origin=False, is_local=True)
TIME = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("order", "candidates", "expected"),
    [
        (["nearest", "origin"], [ORIGIN, SLOW, FAST], [NEARER, NEAR, FAR]),
        (["nearest", "origin"], [ORIGIN, SLOW, HERE, FAST], [DISK, NEARER, NEAR, FAR]),
        (["origin", "nearest"], [SLOW, ORIGIN], [FAR, NEAR]),
        (["near", "nearest", "origin"], [ORIGIN, FAST, SLOW], [NEAR, NEARER, FAR]),
        (["far", "near"], [SLOW, FAST, ORIGIN], [FAR, NEAR]),
        (["near"], [ORIGIN, SLOW], [NEAR]),
        (["near"], [ORIGIN], []),
    ],
    ids=[
        "the faster one", "this host before what was measured", "the origin first", "a named one before nearer ones",
        "the origin by its name, others left out", "the origin left out", "nobody has it",
    ],
)  # fmt: skip
def test_sites_are_ranked_by_order_then_by_what_was_measured(
    order: list[str], candidates: list[Candidate], expected: list[SiteName]
) -> None:
    assert [each.site for each in rank(SiteOrder(order), candidates)] == expected


def test_a_site_that_fails_comes_after_all_that_answer() -> None:
    down = Candidate(NEARER, is_origin=False, answers=False, expected_s=0.001)
    ranked = rank(SiteOrder(["nearest", "origin"]), [ORIGIN, down, SLOW])
    assert [each.site for each in ranked] == [NEAR, FAR, NEARER]
    assert ranked[2].reason == (
        "number 1 of the policy's order (nearest, origin), 1 ms expected for 1 MiB, "
        "after those that answer: its last requests failed"
    )


def test_a_site_that_nobody_measured_comes_after_its_equals() -> None:
    unknown = Candidate(NEARER, is_origin=False)
    ranked = rank(SiteOrder(["nearest", "origin"]), [unknown, SLOW, ORIGIN])
    assert [each.site for each in ranked] == [NEAR, NEARER, FAR]
    assert ranked[1].reason.endswith("not measured yet")


@pytest.mark.parametrize(
    ("order", "local", "remote", "expected"),
    [
        (["nearest", "origin"], [DISK], [NEAR], [DISK]),
        (["origin", "nearest"], [DISK], [], []),
        (["near", "nearest", "origin"], [DISK], [NEAR], []),
        (["near", "disk", "origin"], [DISK], [], [DISK]),
        (["origin"], [DISK], [], []),
        (["nearest", "disk"], [DISK, SiteName("shm")], [], [SiteName("shm"), DISK]),
    ],
    ids=["nearest", "after the origin", "after a remote one", "named one that has no replica here", "left out", "two"],
)
def test_files_on_this_host_are_opened_directly_where_no_other_site_comes_first(
    order: list[str], local: list[SiteName], remote: list[SiteName], expected: list[SiteName]
) -> None:
    assert served_here(SiteOrder(order), FAR, local, remote) == expected


def test_a_replica_serves_if_the_order_covers_it_and_is_waited_for_if_it_precedes_the_origin() -> None:
    assert may_serve(SiteOrder(["nearest"]), NEAR)
    assert not may_serve(SiteOrder(["origin", "disk"]), NEAR)
    assert precedes_origin(SiteOrder(["nearest", "origin"]), FAR, NEAR)
    assert precedes_origin(SiteOrder(["near"]), FAR, NEAR)
    assert not precedes_origin(SiteOrder(["origin", "near"]), FAR, NEAR)
    assert not precedes_origin(SiteOrder(["far", "nearest"]), FAR, NEAR)


@pytest.mark.parametrize(
    ("origin", "replica", "etags_agree", "expected"),
    [
        (Version(5, TIME), Version(5, TIME + 999_999_999), False, True),
        (Version(5, TIME), Version(5, TIME + 10**9), False, False),
        (Version(5, TIME), Version(6, TIME), False, False),
        (Version(5, 0), Version(5, 0), False, False),
        (Version(5, TIME, '"a"'), Version(5, TIME + 10**9, '"a"'), True, True),
        (Version(5, TIME, "16401"), Version(5, TIME + 10**9, "16401"), False, False),
        (Version(5, TIME, 'W/"a"'), Version(5, TIME + 10**9, 'W/"a"'), True, False),
        (Version(5, TIME, '"a"'), Version(6, TIME, '"a"'), True, False),
        (Version(5, TIME, '"a"'), Version(5, TIME, '"b"'), True, True),
        (Version(5, TIME, "", 1), Version(5, TIME), False, False),
        (Version(5, TIME), Version(5, TIME, "", 1), False, False),
    ],
    ids=[
        "same second", "next second", "another size", "no time", "same etag", "same file id", "weak etag", "two sizes",
        "servers with their own etags", "origin written lately", "replica written lately",
    ],
)  # fmt: skip
def test_a_replica_is_proven_by_size_and_etag_or_time(
    origin: Version, replica: Version, etags_agree: bool, expected: bool
) -> None:
    assert is_same(origin, replica, etags_agree=etags_agree, times_agree=True) is expected


def test_the_time_of_an_upload_is_no_proof() -> None:
    assert not is_same(Version(5, TIME), Version(5, TIME), etags_agree=True, times_agree=False)
    assert is_same(Version(5, TIME, '"a"'), Version(5, 0, "a"), etags_agree=True, times_agree=False)
