"""PNG with zlib alone, since Pillow is no dependency of the commands.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
import zlib


def encode(width: int, height: int, pixels: bytes | bytearray) -> bytes:
    """Return an image of `height` rows of `width` pixels of three bytes: red, green, blue."""
    assert len(pixels) == 3 * width * height
    lines = b"".join(b"\0" + pixels[at : at + 3 * width] for at in range(0, len(pixels), 3 * width))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
