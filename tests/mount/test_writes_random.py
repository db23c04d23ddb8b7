"""Random changes through the mount and on a directory of the disk: all calls end alike, and what is there is the same."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.fsx import Fsx
from tests.lake import Lake, mounted
from tests.marks import MOUNT
from tests.mount.test_writes import config
from tests.servers.wan_origin import WanOrigin

pytestmark = MOUNT
NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENT = st.binary(max_size=40) | st.integers(1, 200_000).map(lambda size: random.Random(size).randbytes(size))
_serial = itertools.count(1)


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def lake(
    request: pytest.FixtureRequest, wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    options = [] if request.param == "passthrough" else ["--no-passthrough"]
    origin = wan_origin_server.root / f"random-{request.param_index}"
    origin.mkdir()
    base = tmp_path_factory.mktemp("random")
    with mounted(config(base, f"{wan_origin_server.url}/{origin.name}"), base, *options) as lake:
        yield lake


def machine(lake: Lake, *, kills: bool) -> type[RuleBasedStateMachine]:
    """Return a state machine that does each thing to both sides."""

    class Both(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.through = lake.root / "work" / f"random-{next(_serial)}"
            self.direct = Path(tempfile.mkdtemp(prefix="foremount-test-"))
            for root in (self.through, self.direct):
                (root / "a/b").mkdir(parents=True)
                for name in ("c", "a/c", "a/b/c"):
                    (root / name).write_bytes(name.encode())
            self.opened: list[tuple[int, int]] = []
            self.kills_left = 2 if kills else 0

        def both(self, call: Any, *paths: str, more: tuple[Any, ...] = ()) -> None:
            outcomes = []
            for root in (self.direct, self.through):
                try:
                    outcomes.append(call(*(root / path for path in paths), *more))
                except OSError as exc:
                    outcomes.append(exc.errno)
            assert outcomes[0] == outcomes[1], (call, paths, more)

        @rule(path=PATHS)
        def mkdir(self, path: str) -> None:
            self.both(os.mkdir, path)

        @rule(path=PATHS)
        def rmdir(self, path: str) -> None:
            self.both(os.rmdir, path)

        @rule(path=PATHS)
        def unlink(self, path: str) -> None:
            self.both(os.unlink, path)

        @rule(path=PATHS, new_path=PATHS)
        def rename(self, path: str, new_path: str) -> None:
            self.both(os.rename, path, new_path)

        @rule(path=PATHS, content=CONTENT)
        def write(self, path: str, content: bytes) -> None:
            self.both(Path.write_bytes, path, more=(content,))

        @rule(path=PATHS, content=st.binary(min_size=1, max_size=40))
        def append(self, path: str, content: bytes) -> None:
            def add(target: Path) -> int:
                with target.open("ab") as file:
                    return file.write(content)

            self.both(add, path)

        @rule(path=PATHS, at=st.integers(0, 100_000), content=st.binary(min_size=1, max_size=40))
        def write_inside(self, path: str, at: int, content: bytes) -> None:
            def put(target: Path) -> int:
                with target.open("r+b") as file:
                    file.seek(at)
                    return file.write(content)

            self.both(put, path)

        @rule(path=PATHS, size=st.integers(0, 100_000))
        def truncate(self, path: str, size: int) -> None:
            self.both(os.truncate, path, more=(size,))

        @rule(path=PATHS)
        def create_exclusively(self, path: str) -> None:
            self.both(lambda target: os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY)), path)

        @rule(path=PATHS, points_to=NAMES)
        def symlink(self, path: str, points_to: str) -> None:
            self.both(lambda place: os.symlink(points_to, place), path)

        @rule(path=PATHS, mode=st.integers(0, 0o777))
        def chmod(self, path: str, mode: int) -> None:
            self.both(os.chmod, path, more=(mode,))

        @rule(path=PATHS, mtime_ns=st.integers(0, 2 * 10**18))
        def utime(self, path: str, mtime_ns: int) -> None:
            self.both(lambda target: os.utime(target, ns=(mtime_ns, mtime_ns)), path)

        @precondition(lambda self: len(self.opened) < 5)
        @rule(path=PATHS)
        def hold_open(self, path: str) -> None:
            held = []
            for root in (self.direct, self.through):
                try:
                    held.append(os.open(root / path, os.O_RDWR))
                except OSError as exc:
                    held.append(-(exc.errno or 1))
            assert (held[0] < 0) == (held[1] < 0), held
            if held[0] >= 0:
                self.opened.append((held[0], held[1]))
            else:
                assert held[0] == held[1]

        @precondition(lambda self: self.opened)
        @rule(at=st.integers(0, 1000), content=st.binary(min_size=1, max_size=20))
        def write_held(self, at: int, content: bytes) -> None:
            for fd in self.opened[-1]:
                os.pwrite(fd, content, at)

        @precondition(lambda self: self.opened)
        @rule(size=st.integers(0, 1000))
        def truncate_held(self, size: int) -> None:
            for fd in self.opened[-1]:
                os.ftruncate(fd, size)

        @precondition(lambda self: self.opened)
        @rule()
        def close_held(self) -> None:
            for fd in self.opened.pop(0):
                os.close(fd)

        @precondition(lambda self: self.kills_left)
        @rule()
        def kill(self) -> None:
            self.kills_left -= 1
            lake.kill("worker")

        @invariant()
        def same(self) -> None:
            assert tree(self.through) == tree(self.direct)
            for direct, through in self.opened:
                size = os.fstat(direct).st_size
                assert os.fstat(through).st_size == size
                assert os.pread(through, size, 0) == os.pread(direct, size, 0)

        def teardown(self) -> None:
            for pair in self.opened:
                for fd in pair:
                    os.close(fd)
            shutil.rmtree(self.direct)
            shutil.rmtree(self.through)

    return Both


def tree(root: Path) -> dict[str, Any]:
    """Return everything below a directory: kinds, modes, targets, bytes."""
    found: dict[str, Any] = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(directory, name)
            seen = path.lstat()
            key = str(path.relative_to(root))
            if stat.S_ISLNK(seen.st_mode):
                found[key] = os.readlink(path)
            elif stat.S_ISDIR(seen.st_mode):
                found[key] = seen.st_mode
            else:
                found[key] = (seen.st_mode, path.read_bytes())
    return found


def run(lake: Lake, *, kills: bool, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine(lake, kills=kills),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False, phases=[Phase.generate],
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_random_changes_end_as_on_the_disk(lake: Lake) -> None:
    run(lake, kills=False, examples=12, steps=50)


@pytest.mark.slow
def test_random_changes_end_as_on_the_disk_however_often_the_worker_is_killed(lake: Lake) -> None:
    run(lake, kills=True, examples=15, steps=50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_operations_on_one_file_leave_what_they_say(lake: Lake, seed: int) -> None:
    Fsx(lake.root / "work" / f"fsx-{seed}", seed).run(1500)


@pytest.mark.slow
def test_random_operations_on_one_file_survive_killed_workers(lake: Lake) -> None:
    turns = itertools.count(1)

    def between() -> None:
        if next(turns) % 1000 == 0:
            lake.kill("worker")

    Fsx(lake.root / "work" / "fsx-killed", 3, between=between).run(5000)
