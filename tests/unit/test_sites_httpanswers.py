from __future__ import annotations

import pytest

from vfs.errors import ForemountError, NotFound, Stale, WrongAnswer
from vfs.model import Version
from vfs.sites.http import SKIP_BYTES_MAX, check_answer
from vfs.sites.httpanswers import check_range, conditions, seconds_of, total_size, version_from

DATE = "Mon, 02 Nov 2026 10:00:00 GMT"
DATE_S = 1_793_613_600
V = Version(100, DATE_S * 10**9, '"v1"')
SAME = {"ETag": '"v1"', "Last-Modified": DATE}


def test_an_http_date_is_read_and_nonsense_is_zero() -> None:
    assert seconds_of(DATE) == DATE_S
    assert [seconds_of(text) for text in ("", "yesterday", "Mon, 99 Nov 2026 10:00:00 GMT")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("etag", "answered_s", "expected"),
    [
        pytest.param('"v1"', DATE_S, Version(100, DATE_S * 10**9, '"v1"'), id="telling-etag-is-part-of-the-version"),
        pytest.param(f'"{DATE_S:x}-64"', DATE_S + 2, Version(100, DATE_S * 10**9), id="nginx-etag-says-nothing-more"),
        pytest.param(f'W/"{DATE_S:x}-64"', DATE_S + 2, Version(100, DATE_S * 10**9), id="nginx-weak-etag"),
        pytest.param("", DATE_S + 2, Version(100, DATE_S * 10**9), id="two-seconds-old-is-settled"),
        pytest.param("", DATE_S + 1, Version(100, DATE_S * 10**9, "", 1), id="one-second-old-is-racy"),
        pytest.param("", DATE_S - 9, Version(100, DATE_S * 10**9, "", 1), id="from-the-future-is-racy"),
        pytest.param("", 0, Version(100, DATE_S * 10**9), id="no-date-no-doubt"),
    ],
)
def test_a_version_is_size_time_and_a_telling_etag(etag: str, answered_s: int, expected: Version) -> None:
    assert version_from(100, DATE_S, etag, answered_s) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (V, {"If-Match": '"v1"'}),
        (Version(100, DATE_S * 10**9 + 5, 'W/"v1"'), {"If-Unmodified-Since": DATE}),
        (Version(100, DATE_S * 10**9), {"If-Unmodified-Since": DATE}),
        (Version(100), {}),
    ],
)
def test_the_strongest_condition_is_sent(version: Version, expected: dict[str, str]) -> None:
    assert conditions(version) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("bytes 0-9/100", 100), ("bytes */7", 7), ("bytes 0-9/*", None), ("", None), ("bytes 0-9/-1", None)],
)
def test_the_total_size_is_taken_from_content_range(text: str, expected: int | None) -> None:
    assert total_size(text) == expected


@pytest.mark.parametrize(
    "text", ["bytes 0-8/100", "bytes 1-10/100", "bytes 0-9/*", "bytes */100", "items 0-9/100", "", "bytes=0-9/100"]
)
def test_any_other_range_is_refused(text: str) -> None:
    check_range("bytes 0-9/100", 0, 10, "test")
    with pytest.raises(WrongAnswer):
        check_range(text, 0, 10, "test")


RANGE = {"Content-Range": "bytes 10-19/100", "Content-Length": "10"}


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        pytest.param(206, SAME | RANGE, (0, True), id="the-range"),
        pytest.param(206, RANGE, (0, True), id="no-identity-stated"),
        pytest.param(206, SAME | {"Content-Range": "bytes 10-19/100"}, (0, True), id="no-length-stated"),
        pytest.param(206, {"ETag": 'W/"v1"'} | RANGE, (0, True), id="weak-form-of-the-same-etag"),
        pytest.param(200, SAME | {"Content-Length": "100"}, (10, False), id="the-whole"),
        pytest.param(200, SAME, (10, False), id="the-whole-without-length"),
        pytest.param(206, SAME | RANGE | {"ETag": '"v2"'}, Stale, id="other-etag"),
        pytest.param(206, SAME | RANGE | {"Last-Modified": "Mon, 02 Nov 2026 10:00:01 GMT"}, Stale, id="other-time"),
        pytest.param(206, {"Content-Range": "bytes 10-19/101"}, Stale, id="other-size"),
        pytest.param(200, {"Content-Length": "101"}, Stale, id="whole-of-another-size"),
        pytest.param(206, SAME | {"Content-Range": "bytes 10-19/101"}, WrongAnswer, id="other-size-under-the-same-etag"),
        pytest.param(206, SAME | RANGE | {"Content-Length": "9"}, WrongAnswer, id="length-contradicts-range"),
        pytest.param(206, SAME, WrongAnswer, id="no-range-stated"),
        pytest.param(206, SAME | RANGE | {"Content-Encoding": "br"}, WrongAnswer, id="encoded"),
        pytest.param(206, SAME | {"Content-Type": "multipart/byteranges; boundary=x"}, WrongAnswer, id="parts"),
        pytest.param(416, {"Content-Range": "bytes */5"}, Stale, id="refused-because-shorter"),
        pytest.param(416, {"Content-Range": "bytes */100"}, WrongAnswer, id="refused-without-reason"),
        pytest.param(412, {}, Stale, id="condition-failed"),
        pytest.param(404, {}, NotFound, id="gone"),
        pytest.param(204, SAME, WrongAnswer, id="no-content"),
        pytest.param(304, SAME, WrongAnswer, id="not-modified"),
    ],
)
def test_an_answer_is_believed_only_if_everything_fits(
    status: int, headers: dict[str, str], expected: tuple[int, bool] | type[ForemountError]
) -> None:
    if isinstance(expected, tuple):
        assert check_answer(status, headers, V, 10, 10, "test") == expected
        return
    with pytest.raises(ForemountError) as raised:
        check_answer(status, headers, V, 10, 10, "test")
    assert type(raised.value) is expected


def test_a_whole_object_must_end_where_the_range_does() -> None:
    assert check_answer(200, {"Content-Length": "100"}, V, 0, 100, "test") == (0, True)
    assert check_answer(200, {"Content-Length": "100"}, V, 90, 10, "test") == (90, True)


def test_too_much_to_skip_is_refused() -> None:
    big = Version(SKIP_BYTES_MAX + 10)
    assert check_answer(200, {}, big, SKIP_BYTES_MAX, 1, "test") == (SKIP_BYTES_MAX, False)
    with pytest.raises(WrongAnswer):
        check_answer(200, {}, big, SKIP_BYTES_MAX + 1, 1, "test")
