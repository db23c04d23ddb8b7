"""Ranks by phase as a heat map: rows of characters, or a PNG.

Pure: no I/O, no clock. In the PNG each cell is a rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence

from vfs.cli import png

PHASES = ("write", "fsync", "hash", "upload")
_SHADES = " ░▒▓█"
_CELL = 24, 12
"""Width and height in the PNG, pixels."""
_GAP = 2


def shades(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each value as a share of the greatest of its column: phases differ by orders of magnitude, ranks should not."""
    greatest = [max(column) or 1.0 for column in zip(*rows, strict=True)]
    return [[value / most for value, most in zip(row, greatest, strict=True)] for row in rows]


def as_text(labels: Sequence[str], rows: Sequence[Sequence[float]]) -> list[str]:
    """Return a line for each rank: shade and seconds of each phase."""
    if not rows:
        return []
    width = max(len(label) for label in labels)
    lines = [" " * width + "  " + "  ".join(f"{phase:>11}" for phase in PHASES)]
    for label, row, shaded in zip(labels, rows, shades(rows), strict=True):
        cells = [f"{_shade(share) * 2} {value:>7.2f}s" for share, value in zip(shaded, row, strict=True)]
        lines.append(f"{label:>{width}}  " + "  ".join(f"{cell:>11}" for cell in cells))
    return lines


def as_png(rows: Sequence[Sequence[float]]) -> bytes:
    """Return an image with a row for each rank and a column for each phase, from white over orange to black."""
    width, height = _CELL
    pixels = bytearray()
    for row in shades(rows):
        line = b"".join(bytes(_colour(share)) * (width - _GAP) + b"\xff" * 3 * _GAP for share in row)
        pixels += line * (height - _GAP) + b"\xff" * len(line) * _GAP
    return png.encode(width * len(PHASES), height * len(rows), pixels)


def _shade(share: float) -> str:
    return _SHADES[min(len(_SHADES) - 1, round(share * (len(_SHADES) - 1)))]


def _colour(share: float) -> tuple[int, int, int]:
    return round(255 * min(1.0, 2 - 2 * share)), round(255 * (1 - share) ** 1.5), round(255 * (1 - share) ** 4)
