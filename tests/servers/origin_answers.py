"""What the origin understands of a request, and the listings that it answers with."""

from __future__ import annotations

import asyncio
import email.utils
import html
import json
import os
import re
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LISTING_ROWS = 500
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Request:
    """One parsed request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


class BadRequest(Exception):
    """Not HTTP/1.1, or a path that leaves the root."""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Return the next request of a connection."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    try:
        method, target, _ = lines[0].split(" ")
    except ValueError:
        raise BadRequest from None
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path = urllib.parse.unquote(target.partition("?")[0], errors="surrogateescape")
    return Request(method, path, headers, body)


def locate(root: Path, path: str) -> Path:
    """Return the file that a decoded path means."""
    if ".." in path.split("/"):
        raise BadRequest
    return root / path.strip("/")


def etag_of(info: os.stat_result) -> str:
    """Return a strong ETag that changes with every write."""
    return f'"{info.st_mtime_ns:x}.{info.st_size:x}.{info.st_ino:x}"'


def has_moved_on(request: Request, info: os.stat_result) -> bool:
    """Return whether If-Match or If-Unmodified-Since forbids an answer."""
    wanted = request.headers.get("if-match")
    if wanted is not None:
        return wanted != "*" and etag_of(info) not in [tag.strip() for tag in wanted.split(",")]
    since = request.headers.get("if-unmodified-since")
    return since is not None and int(info.st_mtime) > email.utils.parsedate_to_datetime(since).timestamp()


def is_known(request: Request, info: os.stat_result) -> bool:
    """Return whether If-None-Match names the file's ETag."""
    return etag_of(info) in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]


def asked_range(request: Request, info: os.stat_result) -> tuple[int, int] | None:
    """Return the half-open range to send, or None for the whole; one that starts past the end means 416."""
    condition = request.headers.get("if-range")
    matched = _RANGE.fullmatch(request.headers.get("range", ""))
    if matched is None or (condition is not None and condition != etag_of(info)):
        return None
    first, last = matched.groups()
    if not first:
        return max(0, info.st_size - int(last)), info.st_size
    return int(first), min(int(last) + 1, info.st_size) if last else info.st_size


async def json_rows(directory: Path) -> AsyncIterator[bytes]:
    """Yield an nginx autoindex listing in JSON."""
    lead = b"[\n"
    for rows in pages(directory):
        encoded = [json.dumps(json_row(entry), ensure_ascii=False).encode(errors="surrogateescape") for entry in rows]
        yield lead + b",\n".join(encoded)
        lead = b",\n"
        await asyncio.sleep(0)
    yield b"[\n]\n" if lead == b"[\n" else b"\n]\n"


def json_row(entry: os.DirEntry[str]) -> dict[str, Any]:
    """Return one row of the listing."""
    info = entry.stat()
    row = {"name": entry.name, "type": "directory", "mtime": email.utils.formatdate(int(info.st_mtime), usegmt=True)}
    return row if entry.is_dir() else row | {"type": "file", "size": info.st_size, "etag": etag_of(info)}


async def html_rows(directory: Path) -> AsyncIterator[bytes]:
    """Yield a listing that holds nothing but links."""
    yield b'<html><body><a href="../">../</a>\n'
    for rows in pages(directory):
        links = []
        for entry in rows:
            slash = "/" if entry.is_dir() else ""
            href = urllib.parse.quote(entry.name, errors="surrogateescape") + slash
            links.append(f'<a href="{html.escape(href)}">{html.escape(entry.name)}{slash}</a>\n')
        yield "".join(links).encode(errors="surrogateescape")
        await asyncio.sleep(0)
    yield b"</body></html>\n"


def pages(directory: Path) -> Iterator[list[os.DirEntry[str]]]:
    """Yield a directory's entries some at a time; what vanished meanwhile is left out."""
    with os.scandir(directory) as entries:
        page = []
        for entry in entries:
            if os.path.exists(entry.path):
                page.append(entry)
            if len(page) == LISTING_ROWS:
                yield page
                page = []
        if page:
            yield page
