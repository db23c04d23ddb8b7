"""The guard around every handler: what a handler raises as the errno that the caller sees."""

from __future__ import annotations

import errno
import logging

import pytest
import trio

from vfs import errors
from vfs.kernel.account import Account
from vfs.kernel.guard import errno_of, guarded

pyfuse3 = pytest.importorskip("pyfuse3")


def answer(raised: BaseException) -> int:
    """Return the errno that a handler's exception becomes."""

    class Handlers:
        account = Account()

        @guarded
        async def lookup(self) -> None:
            raise raised

    with pytest.raises(pyfuse3.FUSEError) as caught:
        trio.run(Handlers().lookup)
    number: int = caught.value.errno
    return number


@pytest.mark.parametrize(
    "bug",
    [ValueError("x"), AssertionError(), KeyError(1), ExceptionGroup("g", [ValueError()]), OSError(5, "x"), MemoryError()],
    ids=lambda bug: type(bug).__name__,
)  # fmt: skip
def test_bug_in_a_handler_is_eio_and_one_record_with_its_traceback(bug: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert answer(bug) == errno.EIO
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "lookup" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (errors.NotFound("f"), errno.ENOENT), (errors.Stale("f"), errno.ESTALE), (errors.Denied("f"), errno.EACCES),
        (errors.Unavailable("f"), errno.EIO), (errors.DeadlineExceeded("f"), errno.EIO), (errors.Corrupt("f"), errno.EIO),
        (errors.Throttled("f"), errno.EIO), (errors.WrongAnswer("f"), errno.EIO), (errors.NoSpace("f"), errno.ENOSPC),
        (errors.CrossesMounts("f"), errno.EXDEV), (errors.Unsupported("f"), errno.EOPNOTSUPP),
        (errors.ReadOnly("f"), errno.EROFS), (errors.ForemountError("f"), errno.EIO),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_expected_failure_has_its_errno(error: errors.ForemountError, number: int) -> None:
    assert answer(error) == number


def test_outage_is_never_told_as_absence() -> None:
    """D52"""
    outages = (errors.Unavailable, errors.DeadlineExceeded, errors.Throttled, errors.WrongAnswer, errors.Corrupt)
    assert {errno_of(kind("f")) for kind in outages} == {errno.EIO}


def test_errno_of_the_system_is_kept() -> None:
    error = errors.Unavailable("f")
    error.__cause__ = OSError(errno.ETXTBSY, "busy")
    assert errno_of(error) == errno.ETXTBSY


def test_what_programs_provoke_every_second_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer(errors.NotFound("f"))
    assert caplog.records == []


def test_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answer(errors.Unavailable("lake/f", "site x is away"))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "lake/f: site x is away" in record.getMessage()


def test_cancellation_passes() -> None:
    class Handlers:
        account = Account()

        @guarded
        async def read(self) -> bytes:
            await trio.sleep_forever()
            return b""

    async def main() -> None:
        with trio.move_on_after(0) as scope:
            await Handlers().read()
        assert scope.cancelled_caught

    trio.run(main)


def test_own_answer_of_a_handler_passes() -> None:
    assert answer(pyfuse3.FUSEError(errno.ENOSYS)) == errno.ENOSYS
