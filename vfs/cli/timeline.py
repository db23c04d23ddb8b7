"""When each rank's steps were prepared and read, and who waited for what: as lines, or a picture.

Pure: no I/O, no clock. In the picture each rank is a lane, time runs to the right. The upper bar of a lane is preparation,
the lower one reading: green as far as its samples were ready, orange as far as they were raw; red at its start: waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vfs.cli import png

LEGEND = "blue: prepared, green: read transformed, orange: read raw, red: waited"
_WIDTH, _LANE = 1200, 22
_PREPARING, _READING = (2, 7), (9, 19)
"""Rows of a lane, [first, end)."""
_WHITE, _GRID = (255, 255, 255), (230, 230, 230)
_BLUE, _GREEN, _ORANGE, _RED = (120, 160, 220), (90, 170, 90), (240, 160, 60), (200, 40, 40)
Group = dict[str, Any]


def as_rows(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return a header and a row for each group that was read: step, rank, lead, wait, samples, and why some were raw."""
    rows: list[tuple[str, ...]] = [("STEP", "RANK", "LEAD", "WAITED", "READY", "BYTES", "RAW")]
    for group in sorted(groups, key=lambda group: (group["step"], group["rank"])):
        if group["entered_s"] is None:
            continue
        lead = "-" if group["prepared_s"] is None else f"{group['entered_s'] - group['prepared_s']:+.3f}s"
        raw = ", ".join(f"{reason}: {count}" for reason, count in sorted(group["raw"].items()))
        ready = f"{group['ready']}/{group['samples'] or len(group['raw']) + group['ready']}"
        waited = f"{group['waited_s']:.3f}s"
        rows.append((str(group["step"]), str(group["rank"]), lead, waited, ready, str(group["size"]), raw or "-"))
    return rows


def as_png(groups: Sequence[Group]) -> bytes:
    """Return the picture; empty of bars where nothing was read or prepared."""
    ranks = sorted({group["rank"] for group in groups})
    times = [group[name] for group in groups for name in ("asked_s", "entered_s", "left_s") if group[name] is not None]
    first, last = min(times, default=0.0), max([*times, 0.0] if _is_open(groups) else times, default=1.0)
    scale = (_WIDTH - 1) / max(last - first, 1e-6)
    height = max(1, len(ranks)) * _LANE
    pixels = bytearray(bytes(_WHITE) * _WIDTH * height)

    def bar(lane: int, rows: tuple[int, int], start_s: float, end_s: float, colour: tuple[int, int, int]) -> None:
        left = int((start_s - first) * scale)
        right = max(left + 1, int((end_s - first) * scale))
        for row in range(lane * _LANE + rows[0], lane * _LANE + rows[1]):
            at = 3 * (row * _WIDTH + left)
            width = min(right, _WIDTH) - left
            pixels[at : at + 3 * width] = bytes(colour) * width

    for lane in range(len(ranks)):
        bar(lane, (_LANE - 1, _LANE), first, last, _GRID)
    for group in groups:
        lane = ranks.index(group["rank"])
        if group["asked_s"] is not None and group["prepared_s"] is not None:
            bar(lane, _PREPARING, group["asked_s"], group["prepared_s"], _BLUE)
        if group["entered_s"] is not None:
            _reading(bar, lane, group, last)
    return png.encode(_WIDTH, height, pixels)


def _reading(bar: Any, lane: int, group: Group, last: float) -> None:
    start, end = group["entered_s"], last if group["left_s"] is None else group["left_s"]
    raw = sum(group["raw"].values())
    ready_until = start + (end - start) * group["ready"] / max(1, group["ready"] + raw)
    bar(lane, _READING, start, end, _ORANGE if raw else _GREEN)
    if group["ready"]:
        bar(lane, _READING, start, ready_until, _GREEN)
    if group["waited_s"]:
        bar(lane, (_READING[0], _READING[0] + 4), start, min(end, start + group["waited_s"]), _RED)


def _is_open(groups: Sequence[Group]) -> bool:
    return any(group["entered_s"] is not None and group["left_s"] is None for group in groups)
