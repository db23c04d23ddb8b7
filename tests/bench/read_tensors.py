"""Reads tensors of a checkpoint one by one with the unmodified safetensors library; prints one JSON line.

    python -m tests.bench.read_tensors DIRECTORY [--only TEXT] [--order name|reverse] [--threads N] [--within SECONDS]

A process of its own for each measurement: no page, no connection and no import is shared with the one before. With --within
it stops at the first tensor after so many seconds: `"is_whole": false`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import threading
import time
from pathlib import Path

import numpy as np
from safetensors import safe_open


def main() -> int:
    """Read, time and digest; the digest does not depend on the order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--order", choices=("name", "reverse"), default="name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--within", type=float, default=math.inf)
    given = parser.parse_args()
    start = time.perf_counter()
    found: dict[str, bytes] = {}
    wanted = 0
    files = sorted(given.directory.glob("*.safetensors"))
    for file in reversed(files) if given.order == "reverse" else files:
        names = names_in(file, given.only)
        if given.order == "reverse":
            names.reverse()
        readers = [
            threading.Thread(target=read, args=(file, names[index :: given.threads], found, start + given.within))
            for index in range(given.threads)
        ]  # fmt: skip
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        wanted += len(names)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + hashlib.sha256(found[name]).digest())
    size = sum(len(tensor) for tensor in found.values())
    is_whole = len(found) == wanted
    said = {"seconds": seconds, "tensors": len(found), "bytes": size, "digest": digest.hexdigest(), "is_whole": is_whole}
    print(json.dumps(said))
    return 0


def names_in(file: Path, only: str) -> list[str]:
    """Return the tensors to read in name order."""
    with safe_open(file, framework="np") as shard:
        return sorted(name for name in shard.keys() if only in name)  # noqa: SIM118


def read(file: Path, names: list[str], into: dict[str, bytes], until_s: float) -> None:
    """Read some tensors of a shard, none that would begin after `until_s`."""
    with safe_open(file, framework="np") as shard:
        for name in names:
            if time.perf_counter() > until_s:
                return
            into[name] = np.ascontiguousarray(shard.get_tensor(name)).tobytes()


if __name__ == "__main__":
    sys.exit(main())
