"""Reads one file in a shape that loaders have; prints one JSON line with time, bytes and whether they were right.

    python -m tests.bench.read_bytes FILE SOURCE whole|forked|random|handles [--count N] [--length BYTES]

whole: 1 MiB after the other. forked: four children share the parent's descriptor, each reads a quarter. random: reads of
`length` at places drawn from a seed. handles: as many opens as `count`, one read of `length` on each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
CHILDREN = 4
THREADS = 16
"""That go through the handles: one alone would wait for 500 round trips."""


def main() -> int:
    """Read, then compare with the source: outside the time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("source")
    parser.add_argument("shape", choices=("whole", "forked", "random", "handles"))
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--length", type=int, default=MIB)
    given = parser.parse_args()
    size = os.path.getsize(given.source)
    chance = random.Random(11)
    places = [chance.randrange(0, size - given.length) & ~4095 for _ in range(given.count)]
    begun = time.perf_counter()
    fds = [os.open(given.file, os.O_RDONLY) for _ in range(given.count if given.shape == "handles" else 1)]
    if given.shape == "forked":
        right = forked(fds[0], given.source, size)
        seconds = time.perf_counter() - begun
    else:
        wanted = (
            [(at, MIB) for at in range(0, size, MIB)] if given.shape == "whole" else [(at, given.length) for at in places]
        )
        with ThreadPoolExecutor(THREADS if given.shape == "handles" else 1) as pool:
            found = list(pool.map(lambda read: os.pread(fds[read[0] % len(fds)], read[1][1], read[1][0]), enumerate(wanted)))
        seconds = time.perf_counter() - begun
        right = check(given.source, wanted, found)
        size = sum(map(len, found))
    print(json.dumps({"seconds": seconds, "bytes": size, "right": right}), flush=True)
    if given.shape == "handles":
        sys.stdin.readline()  # they stay open until somebody has looked
    return 0


def check(source: str, wanted: list[tuple[int, int]], found: list[bytes]) -> bool:
    """Return whether what was read is what the source holds."""
    fd = os.open(source, os.O_RDONLY)
    try:
        return all(os.pread(fd, length, at) == piece for (at, length), piece in zip(wanted, found, strict=True))
    finally:
        os.close(fd)


def forked(fd: int, source: str, size: int) -> bool:
    """Read a quarter in each of four children; return whether all of them saw the right bytes."""
    quarter = -(-size // CHILDREN // MIB) * MIB
    children = []
    for child in range(CHILDREN):
        pid = os.fork()
        if not pid:
            wanted = [(at, MIB) for at in range(child * quarter, min(size, (child + 1) * quarter), MIB)]
            found = [os.pread(fd, length, at) for at, length in wanted]
            os._exit(0 if check(source, wanted, found) else 1)
        children.append(pid)
    return not any(os.waitpid(pid, 0)[1] for pid in children)


if __name__ == "__main__":
    sys.exit(main())
