"""What listings say: rows of a JSON array and links of an HTML page, taken from a body as it arrives.

Pure: no I/O, no clock. Nothing here holds more than the row or tag that is not complete yet.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from vfs.errors import WrongAnswer

ROW_CHARS_MAX = 64 << 10
"""No row or tag is longer; a path has 4096 bytes at most, escaped sixfold 24 KiB."""
LINKS_REMEMBERED = 1024
"""A page that links a file twice (icon and name) does so in neighbouring cells."""
_WRAPPING = re.compile(r"[\s{}:\"\w]*")
_BETWEEN = re.compile(r"[ \t\r\n]*")


class JsonRows:
    """Takes the elements of one JSON array out of its text, piece by piece.

    Bytes in, rows out. Names that are no UTF-8 come with surrogate escapes.
    """

    def __init__(self, subject: str, *, is_wrapped: bool = False) -> None:
        """Args:
        is_wrapped: the array lies in an object: what surrounds it, keys and braces, is passed over.
        """
        self._subject = subject
        self._is_wrapped = is_wrapped
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._wants = "["
        self._rows = 0

    def feed(self, received: bytes, *, last: bool = False) -> list[dict[str, Any]]:
        """Return the objects that are complete now, in order.

        Args:
            last: nothing follows.

        Raises:
            WrongAnswer: it is no array of objects, or it ends too early.
        """
        self._text += self._decoder.decode(received, last)
        at, rows = 0, []
        while True:
            at = _skip_space(self._text, at)
            if at == len(self._text):
                break
            if self._wants != "row":
                if self._is_wrapped and self._wants in ("[", "end"):
                    at = self._pass_wrapping(at)
                    if at == len(self._text):
                        break
                at = self._take_mark(at)
                continue
            if self._text[at] == "]" and not self._rows:
                self._wants = "end"
                at += 1
                continue
            row, end = self._take_row(at, last)
            if row is None:
                break
            rows.append(row)
            at = end
        self._text = self._text[at:]
        if last and self._wants != "end":
            raise WrongAnswer(self._subject, "the listing ends in the middle")
        return rows

    def _pass_wrapping(self, at: int) -> int:
        """Return where the wrapping ends: at the array's bracket, or at the end of what has arrived."""
        matched = _WRAPPING.match(self._text, at)
        assert matched is not None
        return matched.end()

    def _take_mark(self, at: int) -> int:
        """Step over "[", or over "," or "]" after a row."""
        mark = self._text[at]
        if self._wants == "[" and mark == "[":
            self._wants = "row"
        elif self._wants == "," and mark in ",]":
            self._wants = "row" if mark == "," else "end"
        else:
            raise WrongAnswer(self._subject, f"the listing is no JSON array: {mark!r} where {self._wants!r} belongs")
        return at + 1

    def _take_row(self, at: int, last: bool) -> tuple[dict[str, Any] | None, int]:
        """Return the next row and where it ends, or None while it is not complete."""
        if self._text[at] != "{":
            raise WrongAnswer(self._subject, "the listing holds something other than objects")
        try:
            row, end = self._scan(self._text, at)
        except json.JSONDecodeError as exc:
            if last or len(self._text) - at > ROW_CHARS_MAX:
                raise WrongAnswer(self._subject, "the listing is no JSON") from exc
            return None, at
        self._wants = ","
        self._rows += 1
        return row, end


def _skip_space(text: str, at: int) -> int:
    matched = _BETWEEN.match(text, at)
    assert matched is not None
    return matched.end()


class HtmlLinks(HTMLParser):
    """Takes the links to direct children out of a directory page, piece by piece.

    Links that lead elsewhere are left out: parents, other hosts, deeper paths, sort orders with a query.
    """

    def __init__(self, subject: str, url: str) -> None:
        """Args:
        url: of the page, ending in a slash; links are relative to it.
        """
        super().__init__(convert_charrefs=True)
        self._subject = subject
        self._url = url
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._found: list[tuple[str, bool]] = []
        self._recent: deque[str] = deque(maxlen=LINKS_REMEMBERED)

    def take(self, received: bytes, *, last: bool = False) -> list[tuple[str, bool]]:
        """Return (name, is_directory) of the links that are complete now, in order, each name once.

        Raises:
            WrongAnswer: a tag does not end.
        """
        self.feed(self._decoder.decode(received, last))
        if len(self.rawdata) > ROW_CHARS_MAX:
            raise WrongAnswer(self._subject, "the listing is no HTML")
        if last:
            self.close()
        found, self._found = self._found, []
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        child = child_of(self._url, href) if href else None
        if child and child[0] not in self._recent:
            self._recent.append(child[0])
            self._found.append(child)


def child_of(url: str, href: str) -> tuple[str, bool] | None:
    """Return (decoded name, written with a slash) if the link leads to a direct child of the page, else None."""
    try:
        page, target = urlsplit(url), urlsplit(urljoin(url, href))
    except ValueError:
        return None
    if target.query or (target.scheme, target.netloc) != (page.scheme, page.netloc):
        return None
    here = [unquote(part) for part in page.path.split("/")[:-1]]
    parts = [unquote(part, errors="surrogateescape") for part in target.path.split("/")]
    if parts[: len(here)] != here:
        return None
    match parts[len(here) :]:
        case [name] if name:
            return name, False
        case [name, ""] if name:
            return name, True
        case _:
            return None
