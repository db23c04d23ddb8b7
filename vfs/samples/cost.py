"""How long a transform will take, learned from those that were done; and in which order to start them.

Pure: no I/O, no clock. One small least-squares fit for each operator, parameters and codec over what is known before
decoding: bytes always; pixels and seconds of media from the last time the sample was decoded, else from how many of them a
byte of this codec usually holds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

_WINDOW = 256
_REFIT_EVERY = 8
_SAMPLES_KNOWN = 100_000
_GUESS_S_PER_BYTE = 2e-8
"""Before anything was seen: a JPEG decodes at some 50 MB/s of its own bytes (Pillow, one core, 2026-11)."""
_RIDGE = 1e-3
_FLOOR = 0.1
"""Of the mean cost: what a fit may not fall below, it would be no time at all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a transform was done on, and took."""

    bytes: int
    pixels: int
    seconds: float
    cpu_s: float


@dataclass(slots=True)
class _Fit:
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    weights: tuple[float, ...] | None = None
    fresh: int = 0

    def add(self, seen: Seen) -> None:
        self.seen.append(seen)
        self.fresh += 1
        if self.weights is None or self.fresh >= _REFIT_EVERY:
            self.weights, self.fresh = _solve(self.seen), 0

    def predict(self, size: int, known: tuple[int, float] | None) -> float:
        if self.weights is None:
            return size * _GUESS_S_PER_BYTE
        if known is None:
            total = sum(each.bytes for each in self.seen) or 1
            known = (
                size * sum(each.pixels for each in self.seen) // total,
                size * sum(each.seconds for each in self.seen) / total,
            )
        mean = sum(each.cpu_s for each in self.seen) / len(self.seen)
        return max(_FLOOR * mean, float(np.dot(self.weights, _features(size, *known))))


class CostModel:
    """Predicts CPU seconds.

    Attributes:
        error: mean of |predicted - taken| / taken over the latest transforms, 0.0 before the first.
    """

    def __init__(self) -> None:
        self.error = 0.0
        self._fits: dict[tuple[str, str, str], _Fit] = {}
        self._known: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()
        self._count = 0

    def predict(self, kind: tuple[str, str, str], place: tuple[str, int], size: int) -> float:
        """Return seconds.

        Args:
            kind: operator, its parameters, codec.
            place: source and offset of the raw bytes.
            size: raw bytes.
        """
        fit = self._fits.get(kind)
        return size * _GUESS_S_PER_BYTE if fit is None else fit.predict(size, self._known.get(place))

    def learn(self, kind: tuple[str, str, str], place: tuple[str, int], seen: Seen) -> None:
        """Take in what a transform took."""
        wrong = abs(self.predict(kind, place, seen.bytes) - seen.cpu_s) / max(seen.cpu_s, 1e-4)
        self._count += 1
        self.error += (wrong - self.error) / min(self._count, _WINDOW)
        self._fits.setdefault(kind, _Fit()).add(seen)
        self._known[place] = seen.pixels, seen.seconds
        self._known.move_to_end(place)
        if len(self._known) > _SAMPLES_KNOWN:
            self._known.popitem(last=False)


def start_by(step: int, cost_s: float, *, consumed: int, step_s: float) -> float:
    """Return when a transform has to start at the latest, in seconds from now: smallest first.

    So the heavy samples of a step begin before its light ones, and one that takes longer than a step begins before
    everything of the step in front of it.

    Args:
        consumed: the step being consumed.
        step_s: how long a step lasts.
    """
    return (step - consumed) * step_s - cost_s


def codec_of(source: str) -> str:
    """Return what the bytes probably are, by the name of the file that holds them."""
    name = source.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name else ""


def _features(size: int, pixels: int, seconds: float) -> tuple[float, ...]:
    return 1.0, size / 1e6, pixels / 1e6, seconds


def _solve(seen: deque[Seen]) -> tuple[float, ...]:
    """Return the weights that fit best; the ridge keeps features that never vary from running away."""
    features = np.array([_features(each.bytes, each.pixels, each.seconds) for each in seen])
    taken = np.array([each.cpu_s for each in seen])
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    scaled = features / scale
    left = scaled.T @ scaled + _RIDGE * np.eye(scaled.shape[1])
    return tuple(float(weight) for weight in np.linalg.solve(left, scaled.T @ taken) / scale)
