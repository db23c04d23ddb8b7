"""Sound, with PyAV: decode, resample, mix to mono, cut a window. `audio@1`."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import av
import msgspec
import numpy as np

from vfs.samples.operators.made import Made
from vfs.samples.operators.media import opened, single_threaded
from vfs.samples.operators.produce import Array

SAMPLES_MAX = 1 << 27


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of fixed length; what is shorter is filled up with silence at its end."""

    seconds: float
    at: Literal["start", "centre", "random"] = "start"


class AudioParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `audio@1`; without any, it decodes. Values are -1 to 1.

    Attributes:
        rate: samples a second; None: as it is.
        mono: mix the channels.
    """

    rate: int | None = None
    mono: bool = False
    window: Window | None = None


def audio(raw: memoryview, params: dict[str, Any], rng: np.random.Generator) -> Made:
    """Operator `audio@1`. The array is float32 (channel, sample)."""
    given = msgspec.convert(params, AudioParams)
    if given.rate is not None and not 100 <= given.rate <= 768_000:
        raise ValueError(f"rate {given.rate} is not between 100 and 768000")
    pieces: list[Array] = []
    count = 0
    with opened(raw) as container:
        stream = container.streams.audio[0]
        single_threaded(stream)
        rate = given.rate or stream.rate
        resampler = av.AudioResampler(format="fltp", layout="mono" if given.mono else stream.layout.name, rate=rate)
        for frame in itertools.chain(container.decode(stream), [None]):  # None: what the resampler still holds
            for piece in resampler.resample(frame):
                pieces.append(piece.to_ndarray())
                count += pieces[-1].shape[-1]
                if count > SAMPLES_MAX:
                    raise ValueError("the sound is too long")
    if not pieces:
        raise ValueError("no sound can be decoded")
    whole = np.concatenate(pieces, axis=-1)
    return Made(_cut(whole, given.window, rate, rng), seconds=count / rate)


def _cut(whole: Array, window: Window | None, rate: int, rng: np.random.Generator) -> Array:
    """Return the window. Pure."""
    if window is None:
        return whole
    size = round(window.seconds * rate)
    if not 0 < size <= SAMPLES_MAX:
        raise ValueError(f"a window of {window.seconds} s is no window")
    spare = whole.shape[-1] - size
    if spare < 0:
        return np.pad(whole, ((0, 0), (0, -spare)))
    start = spare // 2 if window.at == "centre" else 0
    if window.at == "random":
        start = int(rng.integers(0, spare + 1))
    return whole[:, start : start + size]
