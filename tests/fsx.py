"""Random operations on one file against a model of it in memory: the mix of fsx, of which no package is to be had.

`python -m tests.fsx FILE [--operations N] [--seed S]` ends with status 1 and the last operations where file and model differ.
Left out, since FUSE or pyfuse3 has none: punching holes, zeroing and inserting ranges, copying ranges inside the kernel.

Source: the operations are those of fsx.c (Apple, LTP): read, write, mapped read and write, truncate both ways, close and
open, fsync; sizes and offsets are drawn anew for each.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

SIZE_MAX = 256 << 10
LENGTH_MAX = 64 << 10
_SHOWN = 20


class Differs(AssertionError):
    """File and model are not the same."""


class Fsx:
    """One run.

    Attributes:
        model: what the file must hold.
        done: the last operations, for the message.
    """

    def __init__(self, path: Path, seed: int, *, between: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self._between = between
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.model = bytearray()
        self.done: deque[str] = deque(maxlen=_SHOWN)

    def run(self, operations: int) -> None:
        """Do so many operations, then compare the whole file."""
        choices = [self._read, self._write, self._map_read, self._map_write, self._truncate, self._reopen, self._sync]
        try:
            for _ in range(operations):
                self._chance.choices(choices, [30, 30, 10, 10, 8, 5, 1])[0]()
                self._between()
            self._compare("end", 0, self._path.read_bytes(), len(self.model))
        finally:
            os.close(self._fd)

    def _note(self, what: str) -> None:
        self.done.append(what)

    def _range(self) -> tuple[int, int]:
        """Return a range inside the file, its length at least 1."""
        start = self._chance.randrange(len(self.model))
        return start, self._chance.randint(1, min(LENGTH_MAX, len(self.model) - start))

    def _compare(self, what: str, start: int, found: bytes, length: int) -> None:
        expected = bytes(self.model[start : start + length])
        if found != expected:
            at = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), len(found))
            raise Differs(
                f"{what}: {len(found)} bytes at {start}, {len(expected)} expected, first difference at {start + at}; "
                + "; ".join(self.done)
            )

    def _read(self) -> None:
        if self.model:
            start, length = self._range()
            self._note(f"read {start}+{length}")
            self._compare("read", start, os.pread(self._fd, length, start), length)

    def _write(self) -> None:
        start = self._chance.randrange(SIZE_MAX)
        content = self._chance.randbytes(self._chance.randint(1, min(LENGTH_MAX, SIZE_MAX - start)))
        self._note(f"write {start}+{len(content)}")
        assert os.pwrite(self._fd, content, start) == len(content)
        self._extend(start)
        self.model[start : start + len(content)] = content

    def _extend(self, size: int) -> None:
        self.model.extend(bytes(max(size - len(self.model), 0)))

    def _map_read(self) -> None:
        if self.model:
            start, length = self._range()
            self._note(f"map read {start}+{length}")
            with mmap.mmap(self._fd, 0, prot=mmap.PROT_READ) as mapped:
                self._compare("map read", start, mapped[start : start + length], length)

    def _map_write(self) -> None:
        if self.model:
            start, length = self._range()
            content = self._chance.randbytes(length)
            self._note(f"map write {start}+{length}")
            with mmap.mmap(self._fd, 0) as mapped:
                mapped[start : start + length] = content
                mapped.flush()
            self.model[start : start + length] = content

    def _truncate(self) -> None:
        size = self._chance.randrange(SIZE_MAX)
        self._note(f"truncate {size}")
        os.ftruncate(self._fd, size)
        del self.model[size:]
        self._extend(size)
        if os.fstat(self._fd).st_size != size:
            raise Differs(f"size {os.fstat(self._fd).st_size} after; " + "; ".join(self.done))

    def _reopen(self) -> None:
        self._note("close and open")
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR)

    def _sync(self) -> None:
        self._note("fsync")
        os.fsync(self._fd)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser("python -m tests.fsx")
    parser.add_argument("file", type=Path)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        Fsx(given.file, given.seed).run(given.operations)
    except Differs as exc:
        print(exc)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
