"""Merges the shards of a checkpoint into one file with the unmodified safetensors library; prints one JSON line.

    python -m tests.bench.merge DIRECTORY INTO

Begins when a line comes on stdin: what is measured has no imports in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def main() -> int:
    """Merge; `read_s`, when all tensors were read, and `ended_s` are by the clock of all processes of this host."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("into", type=Path)
    given = parser.parse_args()
    print("ready", flush=True)
    sys.stdin.readline()
    found: dict[str, np.ndarray] = {}
    for file in sorted(given.directory.glob("*.safetensors")):
        with safe_open(file, framework="np") as shard:
            found |= {name: shard.get_tensor(name) for name in sorted(shard.keys())}
    read_s = time.monotonic()
    save_file(found, given.into)
    ended_s = time.monotonic()
    print(json.dumps({"read_s": read_s, "ended_s": ended_s, "digest": digest_of(found)}))
    return 0


def digest_of(tensors: dict[str, np.ndarray]) -> str:
    """Return a digest of names and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + hashlib.sha256(tensors[name].tobytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
