"""How many readers one copy bears at a time, from what its server has seen: throughput and waiting at each number of readers.

Pure: no I/O, no clock; time is an argument.

A copy bears as many as still get READER_RATE each, or half of what one gets alone where that is less. Until some have got
less, only a lower bound is known: as many as there have been. Afterwards the limit is what the server sends at most, divided
by that rate.
"""

from __future__ import annotations

import msgspec

READER_RATE = 8e6
"""Bytes a second: 156 readers of 10 Gbit/s have that each, which is what the paper's figure comes to."""
KNOWN_S = 0.5
"""Less time at a number of readers says nothing of it."""
KEPT_S = 600.0
"""So much time is remembered in full, and what came before at half its weight."""


class Bearing(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        readers: at a time.
        is_limit: more get too little; else more have not been seen.
    """

    readers: int
    is_limit: bool

    def beside(self, stated: int) -> int:
        """Return the number to reckon with where a configuration states another one."""
        return self.readers if self.is_limit else max(stated, self.readers)


class Loads:
    """Bytes and time by the number of readers, in powers of two.

    Attributes:
        _levels: by power: [bytes, seconds, seconds * readers].
        _readers_max: at any time of those that are remembered.
    """

    def __init__(self) -> None:
        self._levels: dict[int, list[float]] = {}
        self._readers = self._readers_max = 0
        self._since_s = 0.0

    def changed(self, readers: int, now_s: float) -> None:
        """Note how many readers there are from now on."""
        if self._readers:
            level = self._level()
            level[1] += now_s - self._since_s
            level[2] += (now_s - self._since_s) * self._readers
        self._readers, self._since_s = readers, now_s
        self._readers_max = max(self._readers_max, readers)
        if sum(level[1] for level in self._levels.values()) > KEPT_S:
            self._levels = {power: [each / 2 for each in level] for power, level in self._levels.items()}
            self._readers_max = max(1 << max(self._levels), readers)

    def sent(self, size: int) -> None:
        """Note bytes that the readers there are have got."""
        self._level()[0] += size

    def bearing(self) -> Bearing | None:
        """Return how many readers it bears; None: too little has been seen."""
        known = {power: level for power, level in self._levels.items() if level[1] >= KNOWN_S and level[0]}
        if not known:
            return None
        each = {power: level[0] / level[2] for power, level in known.items()}
        enough = min(READER_RATE, each[min(each)] / 2)
        if min(each.values()) >= enough:
            return Bearing(self._readers_max, is_limit=False)
        most = max(level[0] / level[1] for level in known.values())
        return Bearing(max(1, int(most / enough)), is_limit=True)

    def _level(self) -> list[float]:
        return self._levels.setdefault(max(1, self._readers).bit_length() - 1, [0.0, 0.0, 0.0])


def written(bearing: Bearing) -> str:
    """Return it as a header says it: "12", or ">=12" where more have not been seen."""
    return f"{'' if bearing.is_limit else '>='}{bearing.readers}"


def read(text: str) -> Bearing | None:
    """Return what a header says; None: nothing that makes sense."""
    digits = text.removeprefix(">=")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9 or not int(digits):
        return None
    return Bearing(int(digits), is_limit=not text.startswith(">="))
