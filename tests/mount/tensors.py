"""A checkpoint of 25 MB and a reader that compares it, as a process of its own: what a mapping can't read ends its process.

    python -m tests.mount.tensors FILE names|reverse|rotated

prints a line after each five tensors, twice through the file; exit status 1 after a wrong byte.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

LAYERS = 24
Tensors = dict[str, np.ndarray]


def tensors(seed: int) -> Tensors:
    """Return 49 tensors."""
    chance = np.random.default_rng(seed)
    found: Tensors = {"embed": chance.integers(0, 255, (400, 1024), np.uint8)}
    for layer in range(LAYERS):
        found[f"layers.{layer}.up"] = chance.integers(0, 255, (1001, 1024), np.uint8)
        found[f"layers.{layer}.bias"] = chance.integers(0, 255, 1021, np.uint8)
    return found


def wrong(file: Path, names: list[str], checkpoint: Tensors) -> list[str]:
    """Return the tensors that a mapped file shows otherwise than they were written."""
    with safe_open(file, framework="np") as shard:
        return [name for name in names if not np.array_equal(shard.get_tensor(name), checkpoint[name])]


def main() -> int:
    """Read and compare."""
    checkpoint = tensors(1)
    names = sorted(checkpoint)
    order = {"names": names, "reverse": names[::-1], "rotated": names[LAYERS:] + names[:LAYERS]}[sys.argv[2]]
    for start in [*range(0, len(order), 5)] * 2:
        if found := wrong(Path(sys.argv[1]), order[start : start + 5], checkpoint):
            print(found)
            return 1
        print(start, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
