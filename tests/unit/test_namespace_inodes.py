from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vfs.errors import Corrupt, Stale
from vfs.model import Ino, Kind, Version
from vfs.namespace.inodes import ROOT, InodeTable, Row


def row(parent: int, name: bytes, identity: str = "v1", kind: Kind = Kind.FILE) -> Row:
    return Row(parent, name, kind, identity, Version(3), 0o100444, 0, 0, 1, "")


@pytest.fixture
def table(tmp_path: Path) -> Iterator[InodeTable]:
    opened = InodeTable(str(tmp_path / "inodes"), fresh=True)
    yield opened
    opened.close()


def reopened(table: InodeTable, tmp_path: Path, **options: int) -> InodeTable:
    table.close()
    return InodeTable(str(tmp_path / "inodes"), fresh=False, **options)


def test_table_of_another_format_is_not_taken_over(table: InodeTable, tmp_path: Path) -> None:
    table.close()
    with lmdb.open(str(tmp_path / "inodes"), max_dbs=2) as env, env.begin(write=True, db=env.open_db(b"names")) as txn:
        txn.put(b"format", b"2")
    with pytest.raises(Corrupt, match="written as format 2"):
        InodeTable(str(tmp_path / "inodes"), fresh=False)


def test_same_identity_keeps_its_number_and_takes_new_attributes(table: InodeTable) -> None:
    first = table.remember(row(ROOT, b"a"), 1)
    changed = row(ROOT, b"a")
    changed.mode = 0o100400
    again = table.remember(changed, 1)
    assert again.ino == first.ino
    assert (again.row.mode, again.row.lookups) == (0o100400, 2)


def test_names_are_told_piece_by_piece_and_each_once(table: InodeTable) -> None:
    directory = table.remember(row(ROOT, b"d", kind=Kind.DIRECTORY), 1)
    table.remember(row(directory.ino, b"inner"), 1)
    table.remember(row(ROOT, b"a"), 1)
    table.unlink(ROOT, b"a")
    table.remember(row(ROOT, b"b"), 1)
    found, mark = [], b""
    while True:
        names, mark = table.names(mark, 1)
        assert len(names) <= 1
        found += names
        if not mark:
            break
    assert found == [(ROOT, b"b"), (ROOT, b"d"), (directory.ino, b"inner")]


def test_table_without_names_tells_none(table: InodeTable) -> None:
    assert table.names(b"", 10) == ([], b"")


def test_another_identity_under_the_same_name_gets_another_number_and_the_old_one_lives_on(table: InodeTable) -> None:
    old = table.remember(row(ROOT, b"a"), 1)
    new = table.remember(row(ROOT, b"a", "v2"), 1)
    assert new.ino != old.ino
    assert table.get(old.ino).row.identity == "v1"
    child = table.child(ROOT, b"a")
    assert child is not None
    assert child.ino == new.ino


def test_another_kind_under_the_same_name_gets_another_number(table: InodeTable) -> None:
    file = table.remember(row(ROOT, b"a"), 1)
    assert table.remember(row(ROOT, b"a", kind=Kind.DIRECTORY), 1).ino != file.ino


def test_forgetting_the_last_reference_drops_the_inode(table: InodeTable) -> None:
    inode = table.remember(row(ROOT, b"a"), 2)
    assert table.forget(inode.ino, 1) is None
    assert table.forget(inode.ino, 1) is inode
    with pytest.raises(Stale):
        table.get(inode.ino)
    assert table.child(ROOT, b"a") is None
    assert len(table) == 0


def test_forgetting_the_old_version_leaves_the_name_to_the_new_one(table: InodeTable) -> None:
    old = table.remember(row(ROOT, b"a"), 1)
    new = table.remember(row(ROOT, b"a", "v2"), 1)
    table.forget(old.ino, 1)
    child = table.child(ROOT, b"a")
    assert child is not None
    assert child.ino == new.ino


def test_forgetting_what_is_unknown_is_no_error(table: InodeTable) -> None:
    assert table.forget(Ino(4711), 1) is None


def test_the_root_is_never_dropped(table: InodeTable) -> None:
    table.forget(ROOT, 1000)
    assert table.get(ROOT).row.kind is Kind.DIRECTORY


def test_open_inode_is_not_dropped(table: InodeTable) -> None:
    inode = table.remember(row(ROOT, b"a"), 1)
    inode.opens = 1
    assert table.forget(inode.ino, 1) is None
    assert table.get(inode.ino) is inode


def test_number_of_a_dropped_inode_is_not_used_again_by_the_next_worker(table: InodeTable, tmp_path: Path) -> None:
    dropped = table.remember(row(ROOT, b"a"), 1).ino
    table.forget(dropped, 1)
    following = reopened(table, tmp_path)
    assert following.remember(row(ROOT, b"b"), 1).ino > dropped
    last = following.remember(row(ROOT, b"c"), 1).ino
    following.forget(last, 1)
    third = reopened(following, tmp_path)
    assert third.remember(row(ROOT, b"d"), 1).ino > last
    third.close()


def test_next_worker_knows_what_the_kernel_was_told(table: InodeTable, tmp_path: Path) -> None:
    directory = table.remember(row(ROOT, b"d", kind=Kind.DIRECTORY), 1)
    file = table.remember(row(directory.ino, b"f"), 1)
    file.row.cached, file.row.backing = True, 7
    table.save(file)
    following = reopened(table, tmp_path)
    known = following.get(file.ino)
    assert (known.row.cached, known.row.backing, known.inherited) == (True, 7, True)
    assert following.path(file.ino) == "d/f"
    following.close()


def test_inherited_inode_stays_however_often_it_is_forgotten(table: InodeTable, tmp_path: Path) -> None:
    ino = table.remember(row(ROOT, b"a"), 1).ino
    following = reopened(table, tmp_path)
    assert following.forget(ino, 1000) is None
    assert following.get(ino).row.name == b"a"
    following.close()


def test_fresh_table_holds_nothing_of_an_earlier_mount(table: InodeTable, tmp_path: Path) -> None:
    ino = table.remember(row(ROOT, b"a"), 1).ino
    table.close()
    fresh = InodeTable(str(tmp_path / "inodes"), fresh=True)
    with pytest.raises(Stale):
        fresh.get(ino)
    assert len(fresh) == 0
    fresh.close()


def test_memory_holds_no_more_inodes_than_the_limit_and_counts_survive_leaving_it(tmp_path: Path) -> None:
    table = InodeTable(str(tmp_path / "inodes"), fresh=True, hot_max=10)
    inodes = [table.remember(row(ROOT, b"%d" % index), 1).ino for index in range(100)]
    for ino in inodes:
        table.remember(row(ROOT, table.get(ino).row.name), 2)
        assert len(list(table.hot())) <= 10
    assert {table.get(ino).row.lookups for ino in inodes} == {3}
    for ino in inodes:
        table.forget(ino, 3)
    assert len(table) == 0
    table.close()


def test_open_inodes_stay_in_memory_beyond_the_limit(tmp_path: Path) -> None:
    table = InodeTable(str(tmp_path / "inodes"), fresh=True, hot_max=10)
    held = [table.remember(row(ROOT, b"%d" % index), 1) for index in range(20)]
    for inode in held:
        table.get(inode.ino).opens = 1
    for index in range(20, 60):
        table.remember(row(ROOT, b"%d" % index), 1)
    assert all(table.get(inode.ino).opens == 1 for inode in held)
    table.close()


def test_renamed_directory_takes_what_lies_below_along(table: InodeTable) -> None:
    directory = table.remember(row(ROOT, b"d", kind=Kind.DIRECTORY), 1)
    file = table.remember(row(directory.ino, b"f"), 1)
    other = table.remember(row(ROOT, b"o", kind=Kind.DIRECTORY), 1)
    table.rename(ROOT, b"d", other.ino, b"e")
    assert table.path(file.ino) == "o/e/f"
    assert table.child(ROOT, b"d") is None


def test_rename_over_a_name_leaves_the_replaced_inode_to_its_holders(table: InodeTable) -> None:
    source = table.remember(row(ROOT, b"new", "n"), 1)
    target = table.remember(row(ROOT, b"old", "o"), 1)
    table.rename(ROOT, b"new", ROOT, b"old")
    child = table.child(ROOT, b"old")
    assert child is source
    assert table.get(target.ino).row.identity == "o"


def test_exchanged_names_stand_for_each_others_inodes(table: InodeTable) -> None:
    one, two = table.remember(row(ROOT, b"1", "1"), 1), table.remember(row(ROOT, b"2", "2"), 1)
    table.exchange(ROOT, b"1", ROOT, b"2")
    assert (table.child(ROOT, b"1"), table.child(ROOT, b"2")) == (two, one)
    assert (table.path(one.ino), table.path(two.ino)) == ("2", "1")


def test_unlinked_name_stands_for_nothing_and_its_inode_lives_on(table: InodeTable) -> None:
    inode = table.remember(row(ROOT, b"a"), 1)
    table.unlink(ROOT, b"a")
    assert table.child(ROOT, b"a") is None
    assert table.get(inode.ino) is inode


def test_path_carries_bytes_that_are_not_utf8(table: InodeTable) -> None:
    inode = table.remember(row(ROOT, b"\xff"), 1)
    assert os.fsencode(table.path(inode.ino, b"\xfe")) == b"\xff/\xfe"


def test_batch_is_written_at_once_or_not_at_all(table: InodeTable) -> None:
    with pytest.raises(RuntimeError), table.batch():
        table.remember(row(ROOT, b"a"), 1)
        raise RuntimeError
    assert len(table) == 0


def test_reader_slots_of_killed_workers_are_cleared(tmp_path: Path) -> None:
    directory = str(tmp_path / "inodes")
    InodeTable(directory, fresh=True).close()
    for _ in range(130):  # LMDB has 126 slots
        pid = os.fork()
        if not pid:
            try:
                InodeTable(directory, fresh=False).get(Ino(4711))
            except Stale:
                os._exit(0)  # as a kill: nothing is closed
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    survivor = InodeTable(directory, fresh=False)
    assert survivor.remember(row(ROOT, b"a"), 1).ino
    survivor.close()
    assert lmdb.version()


class InodeMachine(RuleBasedStateMachine):
    """The table against a dictionary, over restarts and with a memory of four inodes."""

    names = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])

    @initialize()
    def start(self) -> None:
        import tempfile

        self.scratch = tempfile.TemporaryDirectory()
        self.table = InodeTable(f"{self.scratch.name}/inodes", fresh=True, hot_max=4)
        self.current: dict[bytes, tuple[Ino, str]] = {}
        self.identities: dict[Ino, str] = {}
        self.lookups: dict[Ino, int] = {}
        self.inherited: set[Ino] = set()
        self.used: set[Ino] = set()

    @rule(name=names, version=st.sampled_from(["v1", "v2"]))
    def look_up(self, name: bytes, version: str) -> None:
        inode = self.table.remember(row(ROOT, name, version), 1)
        if name in self.current and self.current[name][1] == version:
            assert inode.ino == self.current[name][0]
        else:
            assert inode.ino not in self.used
        self.used.add(inode.ino)
        self.current[name] = inode.ino, version
        self.identities[inode.ino] = version
        self.lookups[inode.ino] = self.lookups.get(inode.ino, 0) + 1

    @rule(name=names)
    def forget_all(self, name: bytes) -> None:
        if name not in self.current:
            return
        ino = self.current[name][0]
        dropped = self.table.forget(ino, self.lookups.pop(ino, 0))
        assert (dropped is None) == (ino in self.inherited)
        if ino not in self.inherited:
            del self.identities[ino], self.current[name]
        else:
            self.lookups[ino] = 0

    @rule(name=names, other=names)
    def rename(self, name: bytes, other: bytes) -> None:
        if name == other or name not in self.current:
            return
        self.table.rename(ROOT, name, ROOT, other)
        self.current[other] = self.current.pop(name)

    @rule()
    def restart(self) -> None:
        self.table.close()
        self.table = InodeTable(f"{self.scratch.name}/inodes", fresh=False, hot_max=4)
        self.inherited = set(self.identities)

    @invariant()
    def knows_what_the_kernel_knows(self) -> None:
        if not hasattr(self, "table"):
            return
        for ino, identity in self.identities.items():
            assert self.table.get(ino).row.identity == identity
        for name, (ino, _) in self.current.items():
            child = self.table.child(ROOT, name)
            assert child is not None
            assert child.ino == ino
        assert len(list(self.table.hot())) <= 4

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()
            self.scratch.cleanup()


TestInodeMachine = InodeMachine.TestCase
TestInodeMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
