"""Files of samples on the disk: `vfs/samples/spool.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vfs.errors import WrongAnswer
from vfs.samples import stream
from vfs.samples.model import Envelope, Form, Reason
from vfs.samples.spool import Arriving, Ready, Spool

GROUP = ("run", 3, 1)


def opened(tmp_path: Path, cap_bytes: int = 1 << 20) -> Spool:
    return Spool.open(str(tmp_path / "spool"), cap_bytes, grace_s=0.0)


def sample(slot: int, body: bytes, form: Form = Form.TRANSFORMED) -> Ready:
    return Ready(slot, form, "npy", stream.digest_of(body), len(body))


def streamed(*samples: tuple[int, bytes, Form]) -> bytes:
    found = b""
    for slot, body, form in samples:
        reason = Reason.CPU if form is Form.RAW else None
        envelope = Envelope(3, 1, slot, form, "npy", len(body), stream.digest_of(body), "{}", reason)
        found += stream.head(envelope) + body
    return found + stream.END


def test_raw_bytes_that_were_asked_for_longest_ago_make_room(tmp_path: Path) -> None:
    spool = opened(tmp_path, 250)
    files = {key: spool.keep_raw(key, key.encode() * 50) for key in ("aa", "bb")}
    assert spool.raw_file("aa") == files["aa"]
    spool.keep_raw("cc", b"c" * 100)
    assert spool.raw_file("bb") == ""
    assert not os.path.exists(files["bb"])
    assert Path(spool.raw_file("aa")).read_bytes() == b"aa" * 50
    assert spool.used == 200


def test_raw_bytes_that_were_just_asked_for_stay_over_the_budget(tmp_path: Path) -> None:
    spool = Spool.open(str(tmp_path / "spool"), 100, grace_s=3600.0)
    files = [spool.keep_raw(key, b"x" * 100) for key in ("aa", "bb")]
    assert all(os.path.exists(file) for file in files)


def test_groups_that_are_over_go_before_raw_bytes(tmp_path: Path) -> None:
    spool = opened(tmp_path, 250)
    spool.keep_raw("aa", b"x" * 100)
    spool.keep(GROUP, sample(0, b"y" * 100), b"y" * 100)
    group = spool.group(GROUP)
    assert group is not None
    group.over = True
    spool.keep_raw("bb", b"z" * 100)
    assert spool.group(GROUP) is None
    assert spool.raw_file("aa")


def test_what_is_prepared_and_not_read_yet_is_never_dropped_for_room(tmp_path: Path) -> None:
    spool = opened(tmp_path, 50)
    spool.keep(GROUP, sample(0, b"y" * 100), b"y" * 100)
    assert spool.find(GROUP, 0) is not None
    assert not spool.has_room()


def test_a_stream_in_any_pieces_becomes_files(tmp_path: Path) -> None:
    bodies = {0: b"a" * 1000, 1: b"", 2: b"raw bytes"}
    text = streamed((0, bodies[0], Form.TRANSFORMED), (1, bodies[1], Form.TRANSFORMED), (2, bodies[2], Form.RAW))
    for size in (1, 7, 300, len(text)):
        spool = opened(tmp_path / str(size))
        arriving = Arriving(spool, GROUP, {0: "k0", 1: "k1", 2: "k2"}, "node")
        found = [ready for at in range(0, len(text), size) for ready in arriving.feed(text[at : at + size])]
        arriving.end()
        assert [(ready.slot, ready.form, ready.key) for ready in found] == [
            (0, Form.TRANSFORMED, stream.digest_of(bodies[0])),
            (1, Form.TRANSFORMED, stream.digest_of(b"")),
            (2, Form.RAW, "k2"),
        ]
        assert {ready.slot: Path(ready.file).read_bytes() for ready in found} == bodies
        assert found[2].reason is Reason.CPU


def test_bytes_that_are_not_those_of_their_envelope_never_become_a_file(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    text = bytearray(streamed((0, b"a" * 100, Form.TRANSFORMED)))
    text[-20] ^= 1
    with pytest.raises(WrongAnswer, match="step 3, rank 1, slot 0"):
        Arriving(spool, GROUP, {0: "k0"}, "node").feed(bytes(text))
    assert spool.find(GROUP, 0) is None
    assert [files for _, _, files in os.walk(tmp_path / "spool/groups") if files] == []


def test_a_stream_that_was_cut_keeps_what_was_complete(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    arriving = Arriving(spool, GROUP, {0: "k0", 1: "k1"}, "node")
    text = streamed((0, b"a" * 100, Form.TRANSFORMED), (1, b"b" * 100, Form.TRANSFORMED))
    arriving.feed(text[:-60])
    with pytest.raises(WrongAnswer, match="ends in the middle"):
        arriving.end()
    arriving.discard()
    assert spool.find(GROUP, 0) is not None
    assert spool.find(GROUP, 1) is None


def test_a_sample_of_another_group_is_refused(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(WrongAnswer, match="not of this group"):
        Arriving(spool, ("run", 4, 1), {0: "k0"}, "node").feed(streamed((0, b"a", Form.TRANSFORMED)))


def test_a_transformed_sample_is_not_replaced_by_a_raw_one(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    Arriving(spool, GROUP, {0: "k0"}, "node").feed(streamed((0, b"made", Form.TRANSFORMED)))
    Arriving(spool, GROUP, {0: "k0"}, "node").feed(streamed((0, b"raw", Form.RAW)))
    found = spool.find(GROUP, 0)
    assert found is not None
    assert Path(found.file).read_bytes() == b"made"
    assert spool.used == 4


def test_a_spool_of_another_boot_is_empty(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.keep(GROUP, sample(0, b"made"), b"made")
    assert opened(tmp_path).find(GROUP, 0) is not None
    (tmp_path / "spool/boot").write_text("another")
    assert opened(tmp_path).find(GROUP, 0) is None


def test_a_file_that_was_cut_short_is_not_found_again(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    kept = spool.keep(GROUP, sample(0, b"made"), b"made")
    os.truncate(kept.file, 2)
    assert opened(tmp_path).find(GROUP, 0) is None
    assert not os.path.exists(kept.file)
