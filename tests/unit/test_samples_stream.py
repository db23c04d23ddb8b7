from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.errors import WrongAnswer
from vfs.samples import stream
from vfs.samples.model import Envelope, Form, Reason


def envelope(slot: int, body: bytes, reason: Reason | None = None) -> Envelope:
    form = Form.RAW if reason else Form.TRANSFORMED
    return Envelope(3, 1, slot, form, "npy", len(body), stream.digest_of(body), '{"seed":1}', reason)


def encoded(bodies: list[bytes]) -> bytes:
    return b"".join(stream.head(envelope(slot, body)) + body for slot, body in enumerate(bodies)) + stream.END


def decoded(decoder: stream.Decoder, pieces: list[bytes]) -> list[tuple[Envelope, bytes]]:
    found: list[tuple[Envelope, bytearray]] = []
    for piece in pieces:
        for item in decoder.feed(piece):
            if isinstance(item, Envelope):
                found.append((item, bytearray()))
            else:
                found[-1][1].extend(item)
    return [(each, bytes(body)) for each, body in found]


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 600), max_size=8))
def test_group_comes_out_as_it_went_in_however_it_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    text = encoded(bodies)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    decoder = stream.Decoder("group")
    found = decoded(decoder, [text[start:end] for start, end in itertools.pairwise(edges)])
    decoder.finish()
    assert found == [(envelope(slot, body), body) for slot, body in enumerate(bodies)]


@pytest.mark.parametrize("missing", [1, 4, 5, 9])
def test_stream_that_was_cut_is_not_taken_for_a_group(missing: int) -> None:
    decoder = stream.Decoder("group")
    decoded(decoder, [encoded([b"one", b"two"])[:-missing]])
    with pytest.raises(WrongAnswer, match="middle of a group"):
        decoder.finish()


def test_bytes_of_another_sample_are_refused_before_their_last_piece_is_given_out() -> None:
    decoder = stream.Decoder("group")
    text = stream.head(envelope(0, b"right")) + b"wrong" + stream.END
    given_out: list[object] = []
    with pytest.raises(WrongAnswer, match="slot 0"):
        given_out.extend(decoder.feed(text))
    assert given_out == [envelope(0, b"right")]


@pytest.mark.parametrize(
    "text",
    [b"<html>not found</html>", b"\x05\0\0\0hello" + stream.END, stream.END + b"x"],
    ids=["another protocol", "no envelope", "after the end"],
)
def test_what_is_no_group_is_refused(text: bytes) -> None:
    with pytest.raises(WrongAnswer):
        decoded(stream.Decoder("group"), [text])


def test_why_a_sample_is_raw_travels_along() -> None:
    sent = envelope(0, b"jpeg", Reason.CPU)
    found = decoded(stream.Decoder("group"), [stream.head(sent) + b"jpeg" + stream.END])
    assert found == [(sent, b"jpeg")]
