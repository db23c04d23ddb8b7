from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs import wire
from vfs.errors import Failure, NotFound, Stale, from_failure, to_failure
from vfs.frames import FRAME_BYTES_MAX, BrokenFrame, Failed, FrameBuffer, Request, Response
from vfs.model import Entry, Kind, LakePath, ObjectKey, Version

KEY = ObjectKey("0" * 32)
VERSION = Version(5, 7, "etag", 1)


@pytest.mark.parametrize(
    "call",
    [
        wire.Hello(1, passthrough=False, why_not="no shim"),
        wire.Stat(LakePath("a/ü")),
        wire.List(LakePath(""), 3, 4),
        wire.OpenObject(LakePath("a"), VERSION),
        wire.Need(KEY, 1 << 40, 5, 2),
        wire.CloseObject(KEY),
        wire.Counters({"read": 2.0}),
    ],
    ids=lambda call: type(call).__name__,
)
def test_call_arrives_as_it_was_sent(call: wire.Call) -> None:
    (body,) = FrameBuffer().feed(wire.DIALECT.request(9, call))
    assert wire.DIALECT.decode_request(body) == Request(9, call)


@pytest.mark.parametrize(
    "answer",
    [
        wire.Welcome(3),
        wire.Found(None),
        wire.Found(Entry("n", Kind.FILE, VERSION, 0o644)),
        wire.Found(Entry("n", Kind.SYMLINK, Version(0), None, "target")),
        wire.Listed(1, 2, complete=True),
        wire.Opened("/cache/v1"),
        wire.Opened("/cache/v1", wire.CopyHere("/lake", "copies/1/a", Version(3, 5))),
        wire.Ready("/cache/v1"),
        Failed(Failure("NotFound", "x", "no such object", "")),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_answer_arrives_as_it_was_sent(answer: wire.Answer) -> None:
    (body,) = FrameBuffer().feed(wire.DIALECT.response(9, answer))
    assert wire.DIALECT.decode_response(body) == Response(9, answer)


@given(st.lists(st.binary(max_size=50), max_size=6), st.data())
def test_frames_are_found_however_the_stream_is_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    frames, got, at = FrameBuffer(), list[bytes](), 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        got += frames.feed(stream[at : at + step])
        at += step
    assert got == bodies


def test_length_over_the_limit_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(BrokenFrame, match="announces"):
        FrameBuffer().feed(struct.pack("<I", FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x92\x01", b"\x92\x01\x92\xa4Stat\xc0"], ids=["empty", "junk", "cut", "null path"]
)
def test_body_that_is_no_message_is_a_broken_frame(body: bytes) -> None:
    with pytest.raises(BrokenFrame):
        wire.DIALECT.decode_request(body)


@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoders_raise_anything_else(body: bytes) -> None:
    for decode in (wire.DIALECT.decode_request, wire.DIALECT.decode_response):
        try:
            decode(body)
        except BrokenFrame:
            continue


def test_error_crosses_with_its_kind_and_hint() -> None:
    error = from_failure(to_failure(Stale("f", "was replaced", "open it again")))
    assert type(error) is Stale
    assert str(error) == "f: was replaced (open it again)"


def test_error_of_an_unknown_kind_is_an_error_all_the_same() -> None:
    error = from_failure(Failure("FromTheFuture", "f", "why", ""))
    assert not isinstance(error, NotFound)
    assert str(error) == "f: why"
