"""What film and sound share: a container that PyAV reads from memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import av
from av.container import InputContainer

_DEMUXERS = "mov,mp4,m4a,matroska,webm,avi,mpegts,mpeg,flv,ogg,wav,flac,mp3,aac,h264,hevc"
"""Those that training data comes in. Others open further files by name, or are only there to be attacked."""


class _Reader(io.RawIOBase):
    """Bytes in memory as a file, without a copy of them."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._raw) if size is None or size < 0 else self._at + size
        found = bytes(self._raw[self._at : end])
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._raw)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


@contextlib.contextmanager
def opened(raw: memoryview) -> Iterator[InputContainer]:
    """Yield the container; nothing but `raw` is opened, and by one thread."""
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
    with av.open(_Reader(raw), mode="r", options=options, metadata_errors="ignore") as container:
        yield container


def single_threaded(stream: Any) -> None:
    """Decode in this thread: a sandbox has no other."""
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
