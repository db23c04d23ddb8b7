"""The INIT exchange: a request recorded from Linux 6.18, and round trips."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.keeper import init_codec as codec

RECORDED_6_18 = bytes.fromhex(
    "680000001a000000020000000000000000000000000000000000000000000000"
    "0000000000000000070000002d00000000000200fbffff73fd05000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000"
)
"""Read from /dev/fuse after mount(2) as root: FUSE 7.45, all 64-bit flags that this kernel was built with."""


def test_recorded_request_is_decoded_field_by_field() -> None:
    offer = codec.decode_request(RECORDED_6_18)
    assert (offer.unique, offer.major, offer.minor, offer.max_readahead) == (2, 7, 45, 128 << 10)
    assert offer.flags == 0x000005FD_73FFFFFB


def test_everything_wanted_is_agreed_on_with_linux_6_18() -> None:
    agreed = codec.negotiate(codec.decode_request(RECORDED_6_18), why_no_passthrough="")
    assert agreed.flags == codec.WANTED_FLAGS | codec.FUSE_PASSTHROUGH
    assert (agreed.passthrough, agreed.resend, agreed.max_stack_depth, agreed.why_no_passthrough) == (True, True, 1, "")
    assert (agreed.major, agreed.minor) == (7, 40)


def test_reply_is_the_structure_of_the_kernel_header() -> None:
    offer = codec.decode_request(RECORDED_6_18)
    reply = codec.encode_reply(offer.unique, codec.negotiate(offer, why_no_passthrough=""))
    assert struct.unpack_from("<IiQ", reply) == (80, 0, 2)
    assert struct.unpack_from("<IIIIHHIIHHIIH", reply, 16) == (
        7, 40, 16 << 20,
        0x50C4_3029,  # INIT_EXT KILLPRIV_V2 CACHE_SYMLINKS MAX_PAGES PARALLEL_DIROPS READDIRPLUS AUTO_INVAL …
        256, 192, 1 << 20, 1, 256, 0,
        0xA0,  # HAS_RESEND PASSTHROUGH
        1, 0,
    )  # fmt: skip
    assert len(reply) == 80


def test_host_reason_against_passthrough_leaves_it_out_and_is_kept() -> None:
    agreed = codec.negotiate(codec.decode_request(RECORDED_6_18), why_no_passthrough="no CAP_SYS_ADMIN")
    assert (agreed.passthrough, agreed.max_stack_depth, agreed.why_no_passthrough) == (False, 0, "no CAP_SYS_ADMIN")


def test_kernel_without_passthrough_is_named_as_the_reason() -> None:
    offer = codec.InitRequest(2, 7, 39, 0, codec.WANTED_FLAGS & ~codec.FUSE_HAS_RESEND)
    agreed = codec.negotiate(offer, why_no_passthrough="")
    assert not agreed.passthrough
    assert not agreed.resend
    assert agreed.max_stack_depth == 0
    assert "Linux 6.9" in agreed.why_no_passthrough
    assert agreed.minor == 39


def test_writeback_cache_is_never_agreed_on() -> None:
    agreed = codec.negotiate(codec.InitRequest(2, 7, 45, 0, (1 << 64) - 1), why_no_passthrough="")
    assert not agreed.flags & codec.FUSE_WRITEBACK_CACHE
    assert not agreed.flags & codec.FUSE_READDIRPLUS_AUTO


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        pytest.param(b"", "only 0 bytes", id="nothing"),
        pytest.param(RECORDED_6_18[:55], "only 55 bytes", id="shorter than the oldest INIT"),
        pytest.param(RECORDED_6_18[:-1], "announces 104 bytes and has 103", id="cut by one byte"),
        pytest.param(b"\x68\0\0\0\x03" + RECORDED_6_18[5:], "opcode 3 instead of 26", id="another request"),
        pytest.param(RECORDED_6_18[:44] + b"\x23" + RECORDED_6_18[45:], "FUSE 7.35", id="a kernel before 5.17"),
        pytest.param(RECORDED_6_18[:40] + b"\x08" + RECORDED_6_18[41:], "FUSE 8.45", id="another major version"),
        pytest.param(b"\x38" + RECORDED_6_18[1:56], "FUSE 7.45", id="new version in the old size"),
    ],
)
def test_unusable_request_is_refused_with_the_reason(message: bytes, sentence: str) -> None:
    with pytest.raises(codec.UnusableInit, match=sentence):
        codec.decode_request(message)


def test_worker_gets_the_old_short_form_without_extension_flag() -> None:
    agreed = codec.negotiate(codec.decode_request(RECORDED_6_18), why_no_passthrough="")
    message = codec.worker_init_request(agreed)
    assert struct.unpack("<IIQQIIIHHIIII", message) == (56, 26, 2, 0, 0, 0, 0, 0, 0, 7, 31, 16 << 20, 0x10C4_3029)


@given(
    unique=st.integers(0, 2**64 - 1),
    minor=st.integers(36, 60),
    readahead=st.integers(0, 2**32 - 1),
    flags=st.integers(0, 2**64 - 1),
)
def test_any_offer_survives_decoding_and_only_offered_flags_are_agreed_on(
    unique: int, minor: int, readahead: int, flags: int
) -> None:
    message = struct.pack("<IIQQIIIHH", 104, 26, unique, 0, 0, 0, 0, 0, 0)
    message += struct.pack("<IIIII", 7, minor, readahead, flags & 0xFFFFFFFF, flags >> 32).ljust(64, b"\0")
    offer = codec.decode_request(message)
    assert offer == codec.InitRequest(unique, 7, minor, readahead, flags)
    agreed = codec.negotiate(offer, why_no_passthrough="")
    assert agreed.flags & ~flags == 0
    assert agreed.passthrough == (agreed.max_stack_depth == 1) == (agreed.why_no_passthrough == "")
    again = codec.Negotiated.from_text(agreed.to_text())
    assert again == agreed
    answered, decoded = codec.decode_reply(codec.encode_reply(unique, agreed))
    assert answered == unique
    assert decoded == codec.Negotiated.from_text(agreed.to_text().replace(agreed.why_no_passthrough, ""))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"major": 7}', '"x"'])
def test_text_that_is_no_negotiated_init_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        codec.Negotiated.from_text(text)


def test_reply_with_an_errno_or_of_another_size_is_refused() -> None:
    with pytest.raises(codec.UnusableInit, match="80 bytes"):
        codec.decode_reply(b"\0" * 79)
    with pytest.raises(codec.UnusableInit, match="errno 5"):
        codec.decode_reply(struct.pack("<IiQ", 80, -5, 2).ljust(80, b"\0"))
