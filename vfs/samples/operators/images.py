"""Image operators, with Pillow: decode, resize, crop, flip, normalise. `image@1` does them in this order."""

from __future__ import annotations

import io
import math
from typing import Any, Literal

import msgspec
import numpy as np
from PIL import Image

from vfs.samples.operators.made import Made
from vfs.samples.operators.produce import Array

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
"""Of Pillow's decoders those that training data comes in; the others are only there to be attacked."""
PIXELS_MAX = 1 << 28
_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Filter = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
Box = tuple[float, float, float, float]


class Crop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part is kept.

    Attributes:
        size: (height, width).
        at: "centre"; "random": anywhere; "resized": a random part of the area, `scale` of it and of a shape in `ratio`,
            scaled to `size`.
    """

    size: tuple[int, int]
    at: Literal["centre", "random", "resized"] = "centre"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)


class Normalise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """(value / 255 - mean) / std, by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class ImageParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `image@1`; without any, it decodes.

    Attributes:
        mode: RGB, or L for grey.
        resize: the short side, or (height, width).
        filter: of everything that is scaled, with antialiasing.
        flip: left to right.
        normalise: without it values stay 0 to 255.
        layout: order of the axes: channel, height, width, or channels last.
    """

    mode: Literal["RGB", "L"] = "RGB"
    resize: int | tuple[int, int] | None = None
    filter: Filter = "bilinear"
    crop: Crop | None = None
    flip: Literal["no", "random", "always"] = "no"
    normalise: Normalise | None = None
    layout: Literal["chw", "hwc"] = "chw"


class View(msgspec.Struct, frozen=True):
    """What to do with every picture of this size: chosen once for a clip.

    Attributes:
        scaled: (width, height) to scale to first, or None.
        box: to cut out then, or None.
        size: (width, height) to scale the box to, or None.
    """

    scaled: tuple[int, int] | None
    box: Box | None
    size: tuple[int, int] | None
    flip: bool


def image(raw: memoryview, params: dict[str, Any], rng: np.random.Generator) -> Made:
    """Operator `image@1`."""
    given = msgspec.convert(params, ImageParams)
    Image.MAX_IMAGE_PIXELS = PIXELS_MAX
    with Image.open(io.BytesIO(raw), formats=FORMATS) as opened:
        width, height = opened.size
        if width * height > PIXELS_MAX:
            raise ValueError(f"{width} x {height} pixels are too many")
        picture = opened.convert(given.mode)
    made = apply_view(picture, choose_view(given, picture.size, rng), given.filter)
    return Made(as_array([made], given)[0], pixels=width * height)


def choose_view(params: ImageParams, size: tuple[int, int], rng: np.random.Generator) -> View:
    """Return what is to be done with pictures of this size (width, height), drawing what is random. Pure."""
    scaled = _scaled_size(params.resize, size)
    width, height = scaled or size
    crop, box, target = params.crop, None, None
    if crop is not None:
        tall, wide = crop.size
        if crop.at == "resized":
            box, target = _random_part(width, height, crop, rng), (wide, tall)
        elif wide > width or tall > height:
            raise ValueError(f"a crop of {tall} x {wide} does not fit into {height} x {width}")
        else:
            centre = crop.at == "centre"
            left = (width - wide) // 2 if centre else int(rng.integers(0, width - wide + 1))
            top = (height - tall) // 2 if centre else int(rng.integers(0, height - tall + 1))
            box = left, top, left + wide, top + tall
    flip = params.flip == "always" or (params.flip == "random" and bool(rng.integers(0, 2)))
    return View(scaled, box, target, flip)


def apply_view(picture: Image.Image, view: View, kind: Filter) -> Image.Image:
    """Return the picture as the view says."""
    if view.scaled is not None:
        picture = picture.resize(view.scaled, _FILTERS[kind])
    if view.box is not None and view.size is not None:
        picture = picture.resize(view.size, _FILTERS[kind], box=view.box)
    elif view.box is not None:
        picture = picture.crop(tuple(int(edge) for edge in view.box))  # type: ignore[arg-type]  # four of them
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view.flip else picture


def as_array(pictures: list[Image.Image], params: ImageParams) -> Array:
    """Return pictures of one size as one array, the picture first, then the axes as `layout` says."""
    values: Array = np.stack([np.asarray(picture) for picture in pictures])
    if values.ndim == 3:
        values = values[..., None]
    if params.normalise is not None:
        channels = values.shape[-1]
        mean, std = (np.asarray(each, dtype=np.float32) for each in (params.normalise.mean, params.normalise.std))
        if mean.shape != (channels,) or std.shape != (channels,):
            raise ValueError(f"normalise: needs {channels} means and deviations")
        values = (values.astype(np.float32) / np.float32(255) - mean) / std
    return np.moveaxis(values, -1, 1) if params.layout == "chw" else values


def _scaled_size(resize: int | tuple[int, int] | None, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return (width, height) after `resize`; None: it stays."""
    if resize is None:
        return None
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    short = min(size)
    return max(1, resize * size[0] // short), max(1, resize * size[1] // short)


def _random_part(width: int, height: int, crop: Crop, rng: np.random.Generator) -> Box:
    """Return a random part of the area; the largest one in the middle of an allowed shape where ten draws do not fit."""
    low, high = (math.log(edge) for edge in crop.ratio)
    for _ in range(10):
        area = width * height * rng.uniform(*crop.scale)
        ratio = math.exp(rng.uniform(low, high))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - tall + 1))
            return left, top, left + wide, top + tall
    ratio = min(max(width / height, crop.ratio[0]), crop.ratio[1])
    wide, tall = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall
