"""Curves as an SVG, with a logarithmic scale on both axes. Pure: values in, text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLOURS = ("#b3261e", "#0b57d0", "#146c2e", "#7a4f01")


def curves(title: str, across: str, places: Sequence[float], lines: Mapping[str, Sequence[float]]) -> str:
    """Return a drawing of lines over the same places; all numbers > 0."""
    values = [value for line in lines.values() for value in line]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))

    def x(place: float) -> float:
        share = (math.log10(place) - math.log10(places[0])) / (math.log10(places[-1]) - math.log10(places[0]))
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{title}</text>',
    ]
    for place in places:
        drawn.append(f'<line x1="{x(place):.1f}" y1="{TOP}" x2="{x(place):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        drawn.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{place:,}</text>')
    step = float(low)
    while step <= high:
        drawn.append(f'<line x1="{LEFT}" y1="{y(step):.1f}" x2="{WIDTH - RIGHT}" y2="{y(step):.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step:g}</text>')
        step *= 10
    drawn.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{across}</text>')
    for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in zip(places, line, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last = f"{line[-1]:.0f}" if line[-1] >= 10 else f"{line[-1]:.2g}"
        drawn.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y(line[-1]) + 4:.1f}" fill="{colour}">{name}, {last}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"
