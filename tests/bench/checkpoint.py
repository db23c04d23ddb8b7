"""A checkpoint in the shape that large models have: most tensors are tiny, most bytes are in few."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SMALL_BYTES = 16 << 10
VECTORS = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "q_norm", "k_norm", "gate.bias", "mlp.down.bias")
BIASES = ("attn.q.bias", "attn.k.bias", "attn.v.bias", "attn.o.bias")
SQUARES = ("attn.q", "attn.k", "attn.v", "attn.o")


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    files: list[Path]
    tensors: int
    small: int
    bytes: int


def write_checkpoint(directory: Path, *, layers: int, width: int, vocabulary: int, shards: int = 2) -> Written:
    """Write a float16 transformer with `layers` * 18 + 1 tensors, two thirds of them below 16 KiB; equal every time.

    Args:
        width: of the model; below 4,096, so that its float32 vectors stay small.
        shards: files that the layers are spread over.
    """
    assert width * 4 < SMALL_BYTES and layers >= shards
    rng = np.random.default_rng(0)
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(shards)]
    for layer in range(layers):
        part, prefix = parts[layer * shards // layers], f"model.layers.{layer}."
        for name in (*VECTORS, *BIASES):
            part[prefix + name] = rng.standard_normal(width, dtype=np.float32)
        for name in SQUARES:
            part[prefix + name] = matrix(rng, width, width)
        part[prefix + "mlp.up"] = matrix(rng, 4 * width, width)
        part[prefix + "mlp.down"] = matrix(rng, width, 4 * width)
    parts[0]["model.embed"] = matrix(rng, vocabulary, width)
    files = []
    directory.mkdir(parents=True, exist_ok=True)
    for index, part in enumerate(parts, 1):
        files.append(directory / f"model-{index:05d}-of-{shards:05d}.safetensors")
        save_file(part, files[-1])
    tensors = [tensor for part in parts for tensor in part.values()]
    small = sum(tensor.nbytes < SMALL_BYTES for tensor in tensors)
    return Written(files, len(tensors), small, sum(os.path.getsize(file) for file in files))


def matrix(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random half precision numbers."""
    return rng.standard_normal((rows, columns), dtype=np.float32).astype(np.float16)
