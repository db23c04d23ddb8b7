"""What the headers of HTTP answers say about an object, and whether an answer may be believed.

Pure: no I/O, no clock. The rule for versions is explained in `http.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime

from vfs.errors import Denied, ForemountError, NoSpace, NotFound, Stale, Throttled, Unavailable, WrongAnswer
from vfs.model import Version

RACY_S = 2
"""A file written less than this before the answer may be written again with the same Last-Modified. One second is the
resolution, the second one covers clocks that are read a few ms apart (RFC 9110, 8.8.2.2)."""
RACY = 1
"""`Version.generation` of such a file."""
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


@functools.lru_cache(4096)
def seconds_of(date: str) -> int:
    """Return an HTTP date as seconds since the epoch, 0 where there is none."""
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return 0


def version_from(size: int, modified_s: int, etag: str, answered_s: int) -> Version:
    """Return the version of an object.

    Args:
        modified_s: Last-Modified, 0 where unknown.
        etag: as the server sent it, "" where unknown.
        answered_s: the server's Date, 0 where unknown.
    """
    if repeats_size_and_time(etag, size, modified_s):
        etag = ""
    is_racy = not etag and bool(modified_s) and bool(answered_s) and answered_s - modified_s < RACY_S
    return Version(size, modified_s * 10**9, etag, RACY if is_racy else 0)


def repeats_size_and_time(etag: str, size: int, modified_s: int) -> bool:
    """Return whether the ETag is the one that nginx makes from the two: it then says nothing more."""
    return etag.removeprefix("W/") == f'"{modified_s:x}-{size:x}"'


def conditions(version: Version) -> dict[str, str]:
    """Return the request headers that let the server refuse another version: cheaper than an answer thrown away.

    A weak ETag never matches in If-Match (RFC 9110, 13.1.1), so it is not sent.
    """
    if version.etag and not version.etag.startswith("W/"):
        return {"If-Match": version.etag}
    if version.mtime_ns:
        return {"If-Unmodified-Since": formatdate(version.mtime_ns // 10**9, usegmt=True)}
    return {}


def check_version(headers: Mapping[str, str], size: int | None, version: Version, subject: str) -> None:
    """Refuse an answer about another version.

    Args:
        size: of the whole object as the answer states it, None where it does not.

    Raises:
        Stale: ETag, Last-Modified or size are others.
        WrongAnswer: the same strong ETag with another size.
    """
    etag = headers.get("ETag", "")
    if version.etag and etag and etag.removeprefix("W/") != version.etag.removeprefix("W/"):
        raise Stale(subject)
    modified_s = seconds_of(headers.get("Last-Modified", ""))
    if version.mtime_ns and modified_s and modified_s != version.mtime_ns // 10**9:
        raise Stale(subject)
    if size is not None and size != version.size:
        if etag and etag == version.etag and not etag.startswith("W/"):
            raise WrongAnswer(subject, f"states {size} bytes, {version.size} before, under the same ETag")
        raise Stale(subject)


def total_size(content_range: str) -> int | None:
    """Return the size of the whole object that Content-Range states, None where it states none."""
    matched = _CONTENT_RANGE.fullmatch(content_range.strip())
    return int(matched[3]) if matched else None


def stated_size(status: int, headers: Mapping[str, str]) -> int | None:
    """Return the size of the whole object that a 200 or 206 states, None where it states none."""
    if status == 206:
        return total_size(headers.get("Content-Range", ""))
    return int(headers["Content-Length"]) if headers.get("Content-Length", "").isdigit() else None


def check_range(content_range: str, offset: int, length: int, subject: str) -> None:
    """Refuse a partial answer of any other range.

    Raises:
        WrongAnswer: it is another one.
    """
    matched = _CONTENT_RANGE.fullmatch(content_range.strip())
    if matched is None or matched[1] is None or (int(matched[1]), int(matched[2])) != (offset, offset + length - 1):
        raise WrongAnswer(subject, f"answered {content_range[:80]!r} to the range {offset}-{offset + length - 1}")


def check_encoding(headers: Mapping[str, str], subject: str) -> None:
    """Refuse a body that is not the object's own bytes.

    Raises:
        WrongAnswer: it is encoded or split into parts.
    """
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise WrongAnswer(subject, f"is sent with Content-Encoding {encoding[:40]}, though identity was asked")
    if headers.get("Content-Type", "").lower().startswith("multipart/byteranges"):
        raise WrongAnswer(subject, "is sent in several parts, though one range was asked")


def error_of(status: int, subject: str) -> ForemountError:
    """Return what a status that brings no object means."""
    match status:
        case 401 | 403:
            return Denied(subject, f"answered {status}", "check the site's credentials")
        case 404 | 410:
            return NotFound(subject)
        case 412:
            return Stale(subject)
        case 429:
            return Throttled(subject)
        case 413 | 507:
            return NoSpace(subject, f"answered {status}")
        case 408 | 425:
            return Unavailable(subject, f"answered {status}")
        case _ if status >= 500:
            return Unavailable(subject, f"answered {status}")
        case _:
            return WrongAnswer(subject, f"answered {status}")
