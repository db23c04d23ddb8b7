"""The journal of staged writes: what it holds after crashes at each place, and what the agent sees of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vfs.errors import Busy, Corrupt
from vfs.model import LakePath, SitePath, Version
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.journal import JournalReader, JournalWriter, journal_path
from vfs.namespace.staged import NAMELESS, NOWHERE, At, Drop, Staged, StagedKind, Upload, UploadState

TOP = Staged(id=1, parent=NOWHERE, name="ckpt/run", kind=StagedKind.DIRECTORY, through=True)
DIRECTORY = Staged(id=2, parent=1, name="step_1", kind=StagedKind.DIRECTORY)


def file(number: int, name: str, parent: int = 2) -> Staged:
    return Staged(id=number, parent=parent, name=name, kind=StagedKind.FILE, content=number, seq=1)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[JournalWriter]:
    opened = JournalWriter(str(tmp_path), fresh=True)
    yield opened
    opened.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[JournalReader]:
    opened = JournalReader(str(tmp_path))
    yield opened
    opened.close()


def again(writer: JournalWriter, tmp_path: Path, *, fresh: bool = False) -> JournalWriter:
    """Return the next worker's writer."""
    writer.close()
    return JournalWriter(str(tmp_path), fresh=fresh)


def test_reader_sees_what_was_appended_and_which_nodes_changed(writer: JournalWriter, reader: JournalReader) -> None:
    writer.append([TOP, DIRECTORY])
    writer.append([file(3, "a")])
    assert reader.poll().anew
    assert [node.id for node in reader.nodes] == [1, 2, 3]
    assert not reader.poll()
    writer.append([Drop(3)])
    polled = reader.poll()
    assert (polled.changed, polled.anew) == ({3}, False)
    assert reader.nodes.get(3) is None


def test_path_follows_a_rename_of_the_directory_above(writer: JournalWriter) -> None:
    writer.append([TOP, DIRECTORY, file(3, "a")])
    assert writer.nodes.path(writer.nodes.get(3) or TOP) == "ckpt/run/step_1/a"
    writer.append([Staged(id=2, parent=1, name="final", kind=StagedKind.DIRECTORY)])
    assert writer.nodes.path(writer.nodes.get(3) or TOP) == LakePath("ckpt/run/final/a")
    assert writer.nodes.child(1, "step_1") is None


def test_rename_over_a_name_leaves_one_node_there(writer: JournalWriter) -> None:
    writer.append([TOP, DIRECTORY, file(3, "a"), file(4, "b")])
    writer.append([file(4, "a"), Drop(3)])
    assert [(node.id, node.name) for node in writer.nodes.children(2)] == [(4, "a")]


def test_nameless_file_has_no_path_and_is_no_child(writer: JournalWriter) -> None:
    writer.append([TOP, DIRECTORY, file(3, "a")])
    writer.append([file(3, "a", parent=NAMELESS)])
    assert writer.nodes.children(2) == []
    assert writer.nodes.path(writer.nodes.get(3) or TOP) is None


def test_next_worker_finds_nodes_and_request_numbers(writer: JournalWriter, tmp_path: Path) -> None:
    writer.append([TOP], request=71)
    writer.append([DIRECTORY], request=73)
    after = again(writer, tmp_path)
    assert len(after.nodes) == 2
    assert list(after.requests) == [71, 73]
    after.close()


def test_request_numbers_of_an_earlier_mount_say_nothing(writer: JournalWriter, tmp_path: Path) -> None:
    writer.append([TOP], request=71)
    after = again(writer, tmp_path, fresh=True)
    assert list(after.nodes) == [TOP]
    assert not after.requests
    after.close()


def test_numbers_are_not_used_again_after_drop_and_compaction(writer: JournalWriter, tmp_path: Path) -> None:
    writer.append([TOP, file(9, "a", parent=1)])
    writer.append([Drop(9)])
    writer.compact()
    after = again(writer, tmp_path)
    assert after.next_id() == 10
    after.close()


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 13, 40])
def test_log_that_breaks_off_keeps_every_frame_before(writer: JournalWriter, tmp_path: Path, kept: int) -> None:
    writer.append([TOP, DIRECTORY])
    path = journal_path(str(tmp_path))
    whole = os.stat(path).st_size
    writer.append([file(3, "a")])
    os.truncate(path, whole + kept)
    after = again(writer, tmp_path)
    assert [node.id for node in after.nodes] == [1, 2]
    after.append([file(4, "b")])
    after = again(after, tmp_path)
    assert [node.id for node in after.nodes] == [1, 2, 4]
    after.close()


def test_flipped_bit_ends_the_log_before_its_frame(writer: JournalWriter, tmp_path: Path) -> None:
    writer.append([TOP, DIRECTORY])
    at = os.stat(journal_path(str(tmp_path))).st_size + 20
    writer.append([file(3, "a")])
    with open(journal_path(str(tmp_path)), "r+b") as log:
        log.seek(at)
        byte = log.read(1)[0]
        log.seek(at)
        log.write(bytes([byte ^ 1]))
    after = again(writer, tmp_path)
    assert [node.id for node in after.nodes] == [1, 2]
    after.close()


def test_reader_that_comes_upon_half_a_frame_takes_it_when_it_is_whole(
    writer: JournalWriter, reader: JournalReader, tmp_path: Path
) -> None:
    writer.append([TOP, DIRECTORY])
    reader.poll()
    path = journal_path(str(tmp_path))
    before = os.stat(path).st_size
    writer.append([file(3, "a")])
    raw = Path(path).read_bytes()[before:]
    os.truncate(path, before + 15)
    assert not reader.poll()
    with open(path, "ab") as log:
        log.write(raw[15:])
    assert reader.poll().changed == {3}


def test_compaction_keeps_nodes_and_requests_and_readers_start_anew(
    writer: JournalWriter, reader: JournalReader, tmp_path: Path
) -> None:
    writer.close()
    writer = JournalWriter(str(tmp_path), fresh=False, compact_bytes=1000)
    writer.append([TOP, DIRECTORY], request=5)
    for _ in range(2000):
        writer.append([file(3, "a")])
    reader.poll()
    assert writer.wants_compaction
    before = os.stat(journal_path(str(tmp_path))).st_size
    writer.compact()
    assert os.stat(journal_path(str(tmp_path))).st_size < before / 100
    assert not writer.wants_compaction
    writer.append([file(4, "b")])
    assert reader.poll().anew
    assert [node.id for node in reader.nodes] == [1, 2, 3, 4]
    after = again(writer, tmp_path)
    assert list(after.requests) == [5]
    after.close()


def test_second_mount_on_a_staging_directory_is_refused(writer: JournalWriter, tmp_path: Path) -> None:
    with pytest.raises(Busy, match="another mount"):
        JournalWriter(str(tmp_path), fresh=True)


def test_log_of_another_version_is_left_alone(writer: JournalWriter, tmp_path: Path) -> None:
    writer.close()
    foreign = b"FMSTAGE1" + (99).to_bytes(4, "little") + bytes(8)
    Path(journal_path(str(tmp_path))).write_bytes(foreign)
    with pytest.raises(Corrupt, match="format"):
        JournalWriter(str(tmp_path), fresh=True)
    assert Path(journal_path(str(tmp_path))).read_bytes() == foreign


def test_records_of_uploads_are_kept_and_counted(tmp_path: Path) -> None:
    agent = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    begun = Upload(1, UploadState.UPLOADING, resume=b"part 3")
    done = Upload(1, UploadState.DONE, At(SitePath("run/a"), Version(5, etag="e")))
    before = agent.uploads_serial()
    agent.put_upload(3, begun)
    assert agent.upload(3) == begun
    assert agent.uploads_serial() != before
    agent.put_upload(3, done)
    agent.put_upload(258, begun)
    assert agent.uploads() == {3: done, 258: begun}
    agent.drop_upload(3)
    assert agent.upload(3) is None
    agent.close()
