"""Requests to a controller are signed, and its refusals read: `vfs/foresight/signing.py`."""

from __future__ import annotations

import pytest

from vfs.errors import Denied, ForemountError, Unavailable
from vfs.foresight.signing import HEADER, refusal_of, signed, signer

SECRETS = {"lake": b"0123456789abcdef", "other": b"fedcba9876543210"}
REFUSED = b'{"error": {"kind": "Denied", "subject": "run7", "reason": "is not yours", "hint": "ask"}}'


def test_first_secret_signs_and_its_sender_is_known_to_who_has_it() -> None:
    (header,) = signed(SECRETS, "POST", "/v1/events", b"[]").values()
    assert signer(SECRETS, header, "POST", "/v1/events", b"[]") == "lake"
    assert signer(SECRETS, header, "POST", "/v1/events", b"[1]") is None
    assert signer({"lake": b"another secret of lake"}, header, "POST", "/v1/events", b"[]") is None


def test_without_a_secret_nothing_is_signed() -> None:
    assert signed({}, "GET", "/v1/offers", b"") == {}
    assert list(signed(SECRETS, "GET", "/v1/offers", b"")) == [HEADER]


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (REFUSED, Denied, "run7: is not yours (ask)"),
        (b'{"error": {"kind": "FromTheFuture", "subject": "run7", "reason": "x"}}', ForemountError, "run7: x"),
        (b'{"error": "no"}', Unavailable, "http://a:1: answered with HTTP status 503"),
        (b"[]", Unavailable, "http://a:1: answered with HTTP status 503"),
        (b"<html>", Unavailable, "http://a:1: answered with HTTP status 503"),
    ],
    ids=["refusal", "unknown kind", "no fields", "no error", "no JSON"],
)
def test_refusal_is_what_the_controller_says_or_else_it_counts_as_not_there(
    answer: bytes, kind: type[ForemountError], said: str
) -> None:
    found = refusal_of("http://a:1", 503, answer)
    assert (type(found), str(found)) == (kind, said)
