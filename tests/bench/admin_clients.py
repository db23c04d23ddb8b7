"""`python -m tests.bench.admin_clients SOCKET COUNT`: that many open pages; prints on SIGTERM how many answers came."""

from __future__ import annotations

import asyncio
import random
import signal
import sys

import aiohttp

EVERY_S = 3.0


async def page(session: aiohttp.ClientSession, counts: list[int]) -> None:
    """Behave as one page does."""
    await asyncio.sleep(random.uniform(0, EVERY_S))
    listening = asyncio.ensure_future(listen(session, counts))
    while True:
        async with session.get("http://localhost/v1/overview") as answer:
            await answer.read()
            counts[0 if answer.status == 200 else 1] += 1
        await asyncio.sleep(EVERY_S)
        assert not listening.done() or listening.exception() is None


async def listen(session: aiohttp.ClientSession, counts: list[int]) -> None:
    """Take in events for as long as they come."""
    async with session.get("http://localhost/v1/events") as answer:
        async for line in answer.content:
            counts[0] += line.startswith(b"data: ")


async def main(socket_path: str, count: int) -> None:
    """Run the pages until SIGTERM."""
    counts, ended = [0, 0], asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    connector = aiohttp.UnixConnector(socket_path, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        pages = [asyncio.ensure_future(page(session, counts)) for _ in range(count)]
        await ended.wait()
        for each in pages:
            each.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
    print(*counts, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
