"""Film, with PyAV: frames by time or keyframe, then the image operators on each. `video@1`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import msgspec
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream
from PIL import Image

from vfs.samples.operators.images import PIXELS_MAX, ImageParams, apply_view, as_array, choose_view
from vfs.samples.operators.made import Made
from vfs.samples.operators.media import opened, single_threaded

FRAMES_MAX = 4096
_SEEK_S = 2
"""A frame that lies further ahead is worth a seek: a group of pictures lasts some seconds."""
_EXACT = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
"""The same colours from every instruction set."""


class Frames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which frames; exactly one of the three.

    Attributes:
        uniform: so many, each from the middle of an equal part of the film.
        fps: so many a second, `count_max` at most.
        keyframes: so many of the keyframes, evenly; all where there are fewer.
    """

    uniform: int | None = None
    fps: float | None = None
    keyframes: int | None = None
    count_max: int = 64


class VideoParams(ImageParams, frozen=True, forbid_unknown_fields=True):
    """Parameters of `video@1`: those of `image@1`, and which frames."""

    frames: Frames = Frames(uniform=8)


def video(raw: memoryview, params: dict[str, Any], rng: np.random.Generator) -> Made:
    """Operator `video@1`."""
    given = msgspec.convert(params, VideoParams)
    pictures, view, decoded, width, height = [], None, 0, 0, 0
    with opened(raw) as container:
        stream = container.streams.video[0]
        single_threaded(stream)
        times = _times(container, stream, given.frames)
        for frame, count in _frames_at(container, stream, times):
            if frame.width * frame.height > PIXELS_MAX:
                raise ValueError("a frame has too many pixels")
            if view is None:
                width, height = frame.width, frame.height
                view = choose_view(given, (width, height), rng)
            picture = _picture(frame, (width, height)).convert(given.mode)
            pictures.append(apply_view(picture, view, given.filter))
            decoded = count
    return Made(as_array(pictures, given), pixels=width * height * decoded, seconds=float(times[-1]))


def _times(container: InputContainer, stream: VideoStream, frames: Frames) -> list[Fraction]:
    """Return when the frames are to be taken, in seconds of the stream's clock, ascending.

    Raises:
        ValueError: no such frames.
    """
    asked = [frames.uniform, frames.fps, frames.keyframes]
    if sum(each is not None for each in asked) != 1 or any(each is not None and each <= 0 for each in asked):
        raise ValueError("frames: needs one of uniform, fps, keyframes, greater than 0")
    start, length = _span(container, stream)
    if frames.uniform is not None:
        count = min(frames.uniform, FRAMES_MAX)
        return [start + length * Fraction(2 * index + 1, 2 * count) for index in range(count)]
    if frames.fps is not None:
        count = max(1, min(int(float(length) * frames.fps), frames.count_max, FRAMES_MAX))
        return [start + index / Fraction(frames.fps).limit_denominator(1_000_000) for index in range(count)]
    found = _keyframes(container, stream)
    assert frames.keyframes is not None
    count = min(frames.keyframes, len(found), FRAMES_MAX)
    return [found[len(found) * (2 * index + 1) // (2 * count)] for index in range(count)]


def _span(container: InputContainer, stream: VideoStream) -> tuple[Fraction, Fraction]:
    """Return start and length in seconds."""
    base = stream.time_base or Fraction(1, av.time_base)
    if stream.duration is not None:
        length = stream.duration * base
    elif container.duration is not None:
        length = Fraction(container.duration, av.time_base)
    else:
        raise ValueError("the file does not tell how long it is")
    return (stream.start_time or 0) * base, length


def _keyframes(container: InputContainer, stream: VideoStream) -> list[Fraction]:
    """Return the times of the keyframes, without decoding."""
    base = stream.time_base or Fraction(1, av.time_base)
    found = [packet.pts * base for packet in container.demux(stream) if packet.is_keyframe and packet.pts is not None]
    if not found:
        raise ValueError("the film has no keyframe")
    container.seek(0)
    return sorted(found)


def _frames_at(
    container: InputContainer, stream: VideoStream, times: list[Fraction]
) -> Iterator[tuple[VideoFrame, int]]:  # fmt: skip
    """Yield for each time the frame that is shown then, and how many were decoded up to it.

    A film that ends early shows its last frame; one that begins late its first.
    """
    base = stream.time_base or Fraction(1, av.time_base)
    decoding, count, may_seek = container.decode(stream), 0, True
    shown: VideoFrame | None = None
    ahead: VideoFrame | None = None
    for time in times:
        at = _time(ahead or shown)
        if may_seek and (at is None or time - at > _SEEK_S):
            container.seek(int(time / base), stream=stream, backward=True)
            decoding, shown = container.decode(stream), None
            ahead = next(decoding, None)
            count += 1
            landed = _time(ahead)
            may_seek = at is None or (landed is not None and landed > at)  # else keyframes are too rare for it
        while ahead is None or (_time(ahead) or 0) <= time:
            shown = ahead or shown
            ahead = next(decoding, None)
            if ahead is None:
                break
            count += 1
        found = shown or ahead
        if found is None:
            raise ValueError("no frame can be decoded")
        yield found, count


def _time(frame: VideoFrame | None) -> Fraction | None:
    if frame is None or frame.pts is None or frame.time_base is None:
        return None
    return frame.pts * frame.time_base


def _picture(frame: VideoFrame, size: tuple[int, int]) -> Image.Image:
    """Return the frame in the size of the first one: a stream may change it on its way."""
    same = frame.reformat(width=size[0], height=size[1], format="rgb24", interpolation=_EXACT, threads=1)
    return Image.fromarray(same.to_ndarray())
