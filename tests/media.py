"""Small real media for tests: a JPEG, an H.264 clip in MP4, a WAV. Made by the libraries that training uses, from a seed."""

from __future__ import annotations

import functools
import io
import math
import struct
import wave

import numpy as np


@functools.cache
def jpeg(seed: int = 0, width: int = 96, height: int = 64) -> bytes:
    """Return a picture with edges and gradients."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([(rows * 3 + seed * 40) % 256, (columns * 2) % 256, (rows + columns) % 256], axis=-1)
    pixels[rng.integers(0, height // 2) :, rng.integers(0, width // 2) :, seed % 3] = 255
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


@functools.cache
def mp4(frames: int = 48, width: int = 64, height: int = 48, gop: int = 12) -> bytes:
    """Return an H.264 clip of 24 frames a second; frame i is grey of brightness 5 * i, modulo 256."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=24, options={"g": str(gop), "keyint_min": str(gop), "sc_threshold": "0"}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(frames):
            pixels = np.full((height, width, 3), 5 * index % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


@functools.cache
def wav(seconds: float = 0.5, rate: int = 16_000, channels: int = 2) -> bytes:
    """Return a tone of 440 Hz, half as loud in the second channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        for index in range(round(seconds * rate)):
            value = 16_000 * math.sin(2 * math.pi * 440 * index / rate)
            sound.writeframes(struct.pack(f"<{channels}h", *(int(value / (1 + channel)) for channel in range(channels))))
    return file.getvalue()


def mutated(raw: bytes, seed: int) -> bytes:
    """Return a broken copy: bytes changed, a part cut out, doubled, or the end missing."""
    rng = np.random.default_rng(seed)
    found = bytearray(raw)
    kind = seed % 4
    if kind == 0:
        for at in rng.integers(0, len(found), size=int(rng.integers(1, 40))):
            found[at] = int(rng.integers(0, 256))
    elif kind == 1:
        del found[int(rng.integers(1, len(found))) :]
    elif kind == 2:
        start = int(rng.integers(0, len(found)))
        del found[start : start + int(rng.integers(1, 200))]
    else:
        start = int(rng.integers(0, min(len(found), 400)))
        found[start:start] = rng.bytes(int(rng.integers(1, 64)))
    return bytes(found)
