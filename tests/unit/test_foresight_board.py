"""What people see of foresight: `vfs/foresight/board.py`."""

from __future__ import annotations

import msgspec

from vfs.foresight.board import BUCKET_S, BUCKETS, COPIES_SHOWN, EVALUATIONS_SHOWN, Heat, Latest, board_of
from vfs.foresight.model import HintId, JobName, LedgerEntry, Mechanism, Phase, ReplicaId, ReplicaRecord
from vfs.model import LakePath, SiteName, SitePath

A, B = ReplicaId("a"), ReplicaId("b")


def replica(name: str, site: str, **fields: object) -> ReplicaRecord:
    record = ReplicaRecord(
        id=ReplicaId(name),
        hint=HintId("h"),
        job=JobName("run7"),
        mechanism=Mechanism.HOT_FILES,
        path=LakePath("ckpt/step_1"),
        site=SiteName(site),
        root=SitePath("copies"),
        phase=Phase.PUBLISHED,
        bytes=10,
    )
    return msgspec.structs.replace(record, **fields)


def entry(made_ns: int) -> LedgerEntry:
    return LedgerEntry(
        hint=HintId(str(made_ns)),
        job=JobName("run7"),
        mechanism=Mechanism.CHECKPOINTS,
        path=LakePath("ckpt"),
        site=SiteName("eval"),
        made_ns=made_ns,
    )


def test_copy_is_as_hot_as_its_most_readers_at_a_time() -> None:
    heat = Heat()
    for mount in ("m1", "m2", "m3"):
        heat.begins(A, mount, 1000.0)
    heat.ends(A, "m1", 1001.0)
    heat.begins(B, "m1", 1001.0)
    assert {name: readers[-1] for name, readers in heat.over_time(1002.0).items()} == {A: 3, B: 1}


def test_who_reads_on_counts_in_every_piece_of_time_until_it_stops() -> None:
    heat = Heat()
    heat.begins(A, "m1", 1000.0)
    heat.begins(A, "m2", 1000.0 + 2 * BUCKET_S)
    heat.ends(A, "m1", 1000.0 + 3 * BUCKET_S)
    heat.ends(A, "m2", 1000.0 + 3 * BUCKET_S)
    found = heat.over_time(1000.0 + 5 * BUCKET_S)[A]
    assert (len(found), found[-6:]) == (BUCKETS, [1, 1, 2, 2, 0, 0])


def test_what_was_read_long_ago_is_shown_no_more() -> None:
    heat = Heat()
    heat.begins(A, "m1", 1000.0)
    heat.ends(A, "m1", 1001.0)
    assert heat.over_time(1000.0 + (BUCKETS + 1) * BUCKET_S) == {}


def test_readers_that_a_new_watch_does_not_name_are_gone() -> None:
    heat = Heat()
    heat.begins(A, "m1", 1000.0)
    heat.nobody(1001.0)
    assert heat.over_time(1001.0 + 2 * BUCKET_S)[A][-2:] == [0, 0]


def test_only_the_records_that_changed_last_are_kept() -> None:
    latest = Latest[LedgerEntry](2)
    for number in (1, 2, 1, 3):
        latest.put(str(number), entry(number))
    latest.remove("1")
    assert [each.made_ns for each in latest.values()] == [3]


def test_copies_lie_on_the_map_by_rack_with_their_phases() -> None:
    replicas = [
        replica("a", "n1"),
        replica("b", "n2", phase=Phase.COPYING),
        replica("c", "n3"),
        replica("d", "n4", path=LakePath("ckpt/step_2"), made_ns=5),
    ]
    racks = {SiteName("n1"): "r1", SiteName("n2"): "r1", SiteName("n3"): "r2"}
    board = board_of("c1", [], replicas, {A: [0, 2], ReplicaId("gone"): [9]}, racks)
    assert board.racks == ["-", "r1", "r2"]
    assert [row.path for row in board.map] == ["ckpt/step_2", "ckpt/step_1"]
    assert [(each.rack, each.sites, each.phases, each.bytes) for each in board.map[1].racks] == [
        ("r1", ["n1", "n2"], {Phase.COPYING: 1, Phase.PUBLISHED: 1}, 20),
        ("r2", ["n3"], {Phase.PUBLISHED: 1}, 10),
    ]
    assert [(row.site, row.rack, row.readers) for row in board.heat] == [("n1", "r1", [0, 2])]


def test_board_is_bounded_and_shows_the_newest() -> None:
    replicas = [replica(f"{number:03}", "n1") for number in range(2 * COPIES_SHOWN)]
    heat = {each.id: [int(each.id)] for each in replicas}
    board = board_of("", [entry(number) for number in range(3 * EVALUATIONS_SHOWN)], replicas, heat, {})
    assert [each.made_ns for each in board.evaluations][:2] == [3 * EVALUATIONS_SHOWN - 1, 3 * EVALUATIONS_SHOWN - 2]
    assert len(board.evaluations) == EVALUATIONS_SHOWN
    assert [row.readers[0] for row in board.heat] == list(range(2 * COPIES_SHOWN - 1, COPIES_SHOWN - 1, -1))
