"""Saves and loads a checkpoint with the unmodified `torch.distributed.checkpoint`; prints one JSON line.

    python -m tests.bench.read_dcp save|load DIRECTORY [--layers N]

A process of its own for each measurement; torch is imported before the clock starts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

WIDTH = 768
VECTORS = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "q_norm", "k_norm", "q.bias", "k.bias", "v.bias", "o.bias")


def main() -> int:
    """Save, or load, time and digest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("save", "load"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=48)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # it says at length that it runs in one process
    state = tensors(given.layers)
    if given.what == "save":
        given.directory.mkdir(parents=True)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(given.directory), no_dist=True)
    begun = time.perf_counter()
    if given.what == "load":
        for tensor in state.values():
            tensor.zero_()
        begun = time.perf_counter()
        dcp.load(state, storage_reader=dcp.FileSystemReader(given.directory), no_dist=True)
    seconds = time.perf_counter() - begun
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + hashlib.sha256(state[name].view(torch.uint8).numpy().tobytes()).digest())
    size = sum(tensor.nbytes for tensor in state.values())
    print(json.dumps({"seconds": seconds, "tensors": len(state), "bytes": size, "digest": digest.hexdigest()}))
    return 0


def tensors(layers: int) -> dict[str, Any]:
    """Return a transformer's tensors, equal every time: two thirds of them vectors."""
    torch.manual_seed(0)
    found = {"embed": torch.randn(32_000, WIDTH).half()}
    for layer in range(layers):
        prefix = f"layers.{layer}."
        found |= {prefix + name: torch.randn(WIDTH) for name in VECTORS}
        found |= {prefix + name: torch.randn(WIDTH, WIDTH).half() for name in "qkvo"}
        found |= {prefix + "up": torch.randn(4 * WIDTH, WIDTH).half(), prefix + "down": torch.randn(WIDTH, 4 * WIDTH).half()}
    return found


if __name__ == "__main__":
    sys.exit(main())
