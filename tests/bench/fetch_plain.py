"""Fetches files over HTTP with aiohttp and nothing else, in ranges, onto the disk; prints one JSON line.

    python -m tests.bench.fetch_plain URL SIZE [URL SIZE …] --into DIRECTORY

What one Python loop does on this machine without digests, books, predictions and a kernel that asks: a floor for the agent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path

import aiohttp

RANGE_BYTES = 8 << 20
AT_ONCE = 16
READ_BUFFER_BYTES = 1 << 20


def main() -> int:
    """Fetch and time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    given = parser.parse_args()
    files = {url: int(size) for url, size in zip(given.sources[::2], given.sources[1::2], strict=True)}
    begun = time.perf_counter()
    asyncio.run(fetch(files, given.into))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "bytes": sum(files.values()), "cpu_s": used.ru_utime + used.ru_stime}))
    return 0


async def fetch(files: dict[str, int], into: Path) -> None:
    """Fetch all files, some ranges at a time."""
    turns = asyncio.Semaphore(AT_ONCE)
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=READ_BUFFER_BYTES) as session:

        async def fetch_range(url: str, target: int, start: int, end: int) -> None:
            headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
            async with turns, session.get(url, headers=headers) as answer:
                assert answer.status == 206
                while piece := await answer.content.readany():
                    start += os.pwrite(target, piece, start)
            assert start == end

        async with asyncio.TaskGroup() as group:
            for url, size in files.items():
                target = os.open(into / url.rpartition("/")[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                for start in range(0, size, RANGE_BYTES):
                    group.create_task(fetch_range(url, target, start, min(start + RANGE_BYTES, size)))


if __name__ == "__main__":
    sys.exit(main())
