"""Writers for tests in which something dies: they write down what was acknowledged, and notice what was done twice."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lake import FSYNC_IS_LOCAL, Lake, mounted, wait_until
from tests.servers.nginx import Nginx
from tests.servers.wan_origin import WanOrigin

CONFIG = """
policies = ["policy.toml"]
[sites.disk]
kind = "local"
path = "{base}/disk"
[sites.origin]
kind = "http"
url = "URL"
writes = "WRITES"
[[mounts]]
prefix = "/local"
site = "disk"
writable = true
[[mounts]]
prefix = "/staged"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
"""
SAVER = r"""
import hashlib, json, os, sys, time
root, log, seed = sys.argv[1], open(sys.argv[2], "a", buffering=1), int(sys.argv[3])
import random
chance = random.Random(seed)
index = 0
while True:
    name, content = f"{seed}-{index}", chance.randbytes(chance.randrange(1, 200_000))
    with open(f"{root}/{name}.tmp", "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{root}/{name}.tmp", f"{root}/{name}")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    log.write(json.dumps([name, hashlib.sha256(content).hexdigest()]) + "\n")
    time.sleep(float(sys.argv[4]))
    index += 1
"""
"""Saves as frameworks do and writes down what was acknowledged. Arguments: directory, log, seed, seconds between saves."""


@contextmanager
def lake(base: Path, origin: WanOrigin | Nginx, *options: str, writes: str = "put") -> Iterator[Lake]:
    """Mount a directory of this host at /local and an origin at /staged, both writable. Only nginx takes uploads."""
    (base / "disk").mkdir(exist_ok=True)
    (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    (origin.root / "killed").mkdir(exist_ok=True)
    url = f"{origin.url}/dav/killed" if isinstance(origin, Nginx) else f"{origin.url}/killed"
    with mounted(CONFIG.replace("URL", url).replace("WRITES", writes), base, *options) as mount:
        yield mount


class Changing:
    """Threads that make and remove names until the block ends; each call must have the one right answer.

    Args:
        pause_s: between calls, at most.

    Attributes:
        turns: done so far, by thread.
    """

    def __init__(self, root: Path, threads: int, *, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self.turns = [0] * threads
        self.trouble: list[str] = []
        self._root = root
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[index]) for index in range(threads)]

    def __enter__(self) -> Changing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def wait_turns(self, count: int) -> None:
        """Wait for so many turns of all threads together, or for trouble."""
        goal = sum(self.turns) + count
        wait_until(lambda: sum(self.turns) >= goal or self.trouble, f"{count} turns")

    @staticmethod
    def _turn(root: Path) -> list[tuple[Any, ...]]:
        def create(path: Path) -> None:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

        return [
            (os.mkdir, root / "d"),
            (create, root / "d/f"),
            (os.rename, root / "d/f", root / "d/g"),
            (os.symlink, "g", root / "d/s"),
            (os.rename, root / "d", root / "e"),
            (os.unlink, root / "e/g"),
            (os.unlink, root / "e/s"),
            (os.rmdir, root / "e"),
        ]

    def _run(self, index: int) -> None:
        root, chance = self._root / str(index), random.Random(index)
        try:
            root.mkdir()
            while not self._ended.is_set():
                for call, *arguments in self._turn(root):
                    call(*arguments)
                    self._ended.wait(chance.uniform(0, self._pause_s))
                self.turns[index] += 1
        except OSError as exc:
            self.trouble.append(f"{root.name}, turn {self.turns[index]}: {exc}")


def acknowledged(log: Path) -> dict[str, str]:
    """Return digests by name, of whole lines: the last one may be cut off."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("\n"))


def check(root: Path, log: Path) -> int:
    """Compare what is there with what was acknowledged; return how much that is."""
    expected = acknowledged(log)
    for name, digest in expected.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, name
    return len(expected)
