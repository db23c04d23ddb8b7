from __future__ import annotations

import errno
import os

import pytest

from vfs import errors
from vfs.errors import ForemountError, from_failure, to_failure
from vfs.oserrors import Translated, meaning_of


def kinds(base: type[ForemountError]) -> list[type[ForemountError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child) if kind.__module__ == "vfs.errors")]


@pytest.mark.parametrize("kind", kinds(ForemountError), ids=lambda kind: kind.__name__)
def test_every_error_crosses_a_socket_as_itself(kind: type[ForemountError]) -> None:
    sent = kind("subject", "reason", "hint")
    received = from_failure(to_failure(sent))
    assert type(received) is kind
    assert (received.subject, received.reason, received.hint) == ("subject", "reason", "hint")


def test_sentence_has_subject_reason_and_hint() -> None:
    assert str(errors.NotFound("a/b")) == "a/b: no such object"
    assert str(errors.Denied("s", "rejects the token", "renew it")) == "s: rejects the token (renew it)"
    assert str(errors.Unavailable("", "is away")) == "is away"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, errors.NotFound), (errno.EACCES, errors.Denied), (errno.EPERM, errors.Denied),
        (errno.ENOSPC, errors.NoSpace), (errno.EDQUOT, errors.NoSpace), (errno.EIO, errors.Unavailable),
        (errno.ESTALE, errors.Stale), (errno.ENOTEMPTY, errors.DirectoryNotEmpty), (errno.EROFS, errors.ReadOnly),
    ],
)  # fmt: skip
def test_system_failures_have_a_meaning(number: int, kind: type[ForemountError]) -> None:
    assert type(meaning_of(OSError(number, "x"), "f")) is kind


def test_translated_failure_names_the_object_and_keeps_the_cause() -> None:
    with pytest.raises(errors.NotFound) as raised, Translated("lake/f"):
        os.stat("/nonexistent/file")
    assert raised.value.subject == "lake/f"
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_a_kind_that_only_one_room_knows_crosses_the_socket_as_the_one_that_it_refines() -> None:
    class FellSilent(errors.Unavailable):
        pass

    assert type(errors.from_failure(errors.to_failure(FellSilent("far")))) is errors.Unavailable


def test_other_exceptions_pass_untranslated() -> None:
    with pytest.raises(ZeroDivisionError), Translated("f"):
        raise ZeroDivisionError
