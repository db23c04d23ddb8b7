"""Readers that check every byte while something dies: held handles, maps, directory streams, new opens."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Readers:
    """`with Readers(root, contents)`: threads read until the block ends; afterwards `check` tells what they saw.

    Args:
        contents: by path relative to `root`; not empty files.
        pause_s: after each pass, to leave the machine to others.

    Attributes:
        errors: system calls that failed and bytes that were wrong, as sentences.
        rounds: completed passes by kind of reader.
        longest_s: the longest that one call took.
    """

    def __init__(self, root: Path, contents: dict[str, bytes], *, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._root = root
        self._contents = contents
        self._stop = threading.Event()
        self._kinds: dict[str, Callable[[random.Random], None]] = {
            "held": self._held, "mapped": self._mapped, "opened": self._opened, "listed": self._listed, "stat": self._stat,
        }  # fmt: skip
        self.errors: list[str] = []
        self.rounds = dict.fromkeys(self._kinds, 0)
        self.longest_s = 0.0
        self._threads = [threading.Thread(target=self._run, args=(kind, seed)) for seed, kind in enumerate(self._kinds)]

    def __enter__(self) -> Readers:
        self._files = {name: open(self._root / name, "rb", buffering=0) for name in self._contents}  # noqa: SIM115
        self._maps = {
            name: mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) for name, file in self._files.items()
        }
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a reader hangs"
        for mapped in self._maps.values():
            mapped.close()
        for file in self._files.values():
            file.close()

    def check(self) -> None:
        """Fail if anything went wrong, or if a kind of reader never came round."""
        assert self.errors == []
        assert all(self.rounds.values()), self.rounds

    def wait_rounds(self, timeout_s: float = 30.0, *, at_least_s: float = 0.0) -> None:
        """Wait until each reader has begun and ended at least one more pass: the mount serves all of them again.

        Args:
            at_least_s: go on reading for so long in any case.
        """
        before = dict(self.rounds)
        begun = time.monotonic()

        def is_over() -> bool:
            came_round = all(self.rounds[kind] >= before[kind] + 2 for kind in before)
            return bool(self.errors) or (came_round and time.monotonic() - begun > at_least_s)

        while not is_over():
            assert time.monotonic() < begun + timeout_s, f"readers make no progress: {before} {self.rounds}"
            time.sleep(0.005)

    def _run(self, kind: str, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._kinds[kind](chance)
            except (OSError, AssertionError) as exc:
                self.errors.append(f"{kind}: {exc!r}")
                return
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.rounds[kind] += 1
            self._stop.wait(self._pause_s)

    def _pick(self, chance: random.Random) -> tuple[str, bytes, int, int]:
        name = chance.choice(list(self._contents))
        content = self._contents[name]
        offset = chance.randrange(len(content))
        return name, content, offset, chance.randrange(1, 100_000)

    def _held(self, chance: random.Random) -> None:
        name, content, offset, length = self._pick(chance)
        fd = self._files[name].fileno()
        if chance.random() < 0.1:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # have the daemon asked, not the page cache
        assert os.pread(fd, length, offset) == content[offset : offset + length], f"wrong bytes in {name} at {offset}"

    def _mapped(self, chance: random.Random) -> None:
        name, content, offset, length = self._pick(chance)
        if chance.random() < 0.1:
            self._maps[name].madvise(mmap.MADV_DONTNEED)
        assert self._maps[name][offset : offset + length] == content[offset : offset + length], f"wrong page in {name}"

    def _opened(self, chance: random.Random) -> None:
        name, content, _, _ = self._pick(chance)
        assert (self._root / name).read_bytes() == content, f"wrong content of {name}"

    def _listed(self, chance: random.Random) -> None:
        for directory in {str(Path(name).parent) for name in self._contents}:
            expected = {Path(name).name for name in self._contents if str(Path(name).parent) == directory}
            with os.scandir(self._root / directory) as entries:
                found = {entry.name for entry in entries}
            assert expected <= found, f"names are missing in {directory}: {len(expected - found)}"

    def _stat(self, chance: random.Random) -> None:
        name, content, _, _ = self._pick(chance)
        assert os.stat(self._root / name).st_size == len(content), f"wrong size of {name}"
