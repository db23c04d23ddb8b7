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
    """Merge.

    By the clock of all processes of this host: `listed_s`, when the files were known, `files_s`, of each when it was open and
    when its tensors were read, `read_s`, when all were, and `ended_s`. `cpu_s`: of this process from the line on stdin.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("into", type=Path)
    given = parser.parse_args()
    print("ready", flush=True)
    sys.stdin.readline()
    before_cpu_s = time.process_time()
    found: dict[str, np.ndarray] = {}
    files = sorted(given.directory.glob("*.safetensors"))
    listed_s, files_s = time.monotonic(), list[tuple[float, float]]()
    for file in files:
        with safe_open(file, framework="np") as shard:
            open_s = time.monotonic()
            found |= {name: shard.get_tensor(name) for name in sorted(shard.keys())}
        files_s.append((open_s, time.monotonic()))
    read_s = time.monotonic()
    save_file(found, given.into)
    ended_s, cpu_s = time.monotonic(), time.process_time() - before_cpu_s
    times = {"listed_s": listed_s, "files_s": files_s, "read_s": read_s, "ended_s": ended_s, "cpu_s": cpu_s}
    print(json.dumps(times | {"digest": digest_of(found)}))
    return 0


def digest_of(tensors: dict[str, np.ndarray]) -> str:
    """Return a digest of names and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + hashlib.sha256(tensors[name].tobytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
