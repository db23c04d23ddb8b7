"""What policy documents say of copies, changed while a mount and its controller run: reads are right whatever they say."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lake import FSYNC_IS_LOCAL, Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.private import private
from tests.servers.far_line import FarLine, far_line
from tests.servers.nginx import Nginx
from vfs.foresight.model import HotRange
from vfs.model import LakePath
from vfs.training import Training

pytestmark = [*MOUNT, pytest.mark.servers, pytest.mark.slow]
CONFIG = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "webdav"
readers = 10
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
labels = ["eu"]
readers = 10
[[mounts]]
prefix = "/"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
[foresight]
tokens = "{base}/tokens"
"""
RULE = '[[rules]]\nname = "test"\nmatch = {{ path = "ckpt/**" }}\nset = {{ {} }}\n'
BODY = random.Random(5).randbytes(300_000)


@dataclass
class World:
    """A mount whose agent is the controller, the directory that takes copies, and the line to the origin."""

    lake: Lake
    told: Training
    copies: Path
    steps: Iterator[int]
    line: FarLine

    def says(self, values: str) -> None:
        """Put a rule for checkpoints in force."""
        (self.lake.base / "policy.toml").write_text(FSYNC_IS_LOCAL + (RULE.format(values) if values else ""))
        foremount("policy", "reload", "--mountpoint", str(self.lake.root))

    def save(self, *sizes: int) -> str:
        """Write a checkpoint that an evaluation will read; return its path."""
        step = next(self.steps)
        path = f"ckpt/run7/step_{step:07}"
        self.told.evaluation_scheduled(f"mmlu-{step}", step, "eval")
        (self.lake.root / path).mkdir(parents=True)
        for index, size in enumerate(sizes or (len(BODY),)):
            (self.lake.root / path / f"{index}.bin").write_bytes(BODY[:size])
        (self.lake.root / path / "_SUCCESS").write_bytes(b"")
        return path

    def copy(self, path: str, mechanism: str = "checkpoints") -> dict[str, Any]:
        """Return the copy of a checkpoint, as far as there is one."""
        found = (
            each for each in self.told.ask("/v1/state")["replicas"] if (each["path"], each["mechanism"]) == (path, mechanism)
        )
        return next(found, {"phase": "", "reason": ""})

    def reaches(self, path: str, phase: str, reason: str = "", mechanism: str = "checkpoints") -> dict[str, Any]:
        """Wait until the copy of a checkpoint is in a phase, with a reason that holds this text."""

        def there() -> bool:
            found = self.copy(path, mechanism)
            return found["phase"] == phase and reason in found["reason"]

        try:
            wait_until(there, f"{phase} {reason}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; {self.copy(path, mechanism)}; {self.lake.log('agent')[-1500:]}") from exc
        return self.copy(path, mechanism)

    def lies_there(self, path: str) -> int:
        """Return the bytes of the copy of a checkpoint."""
        root = self.copies.parent / self.copy(path).get("root", "nowhere")
        return sum(each.stat().st_size for each in root.rglob("*") if each.is_file())

    def forget(self) -> None:
        """Cancel all hints: their copies go."""
        self.says("")
        for hint in self.told.ask("/v1/state")["hints"]:
            self.told.hint_cancelled(hint["id"])


@pytest.fixture(scope="module")
def running(nginx: Nginx, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("rules")
    (nginx.root / "rules").mkdir()
    (base / "eval").mkdir()
    (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    private(base / "tokens")
    with far_line(nginx.port, rtt_ms=0, mbit=0) as line:
        url = f"http://127.0.0.1:{line.port}/dav/rules/"
        with mounted(CONFIG.replace("URL", url), base) as lake:
            told = Training("run7", [lake.run_dir.foresight_socket])
            yield World(lake, told, base / "eval/copies", iter(range(100, 10_000, 100)), line)


@pytest.fixture
def world(running: World) -> Iterator[World]:
    yield running
    running.forget()


def test_rule_that_forbids_copies_takes_those_away_that_are_there_and_gives_them_back_when_it_goes(world: World) -> None:
    path, reason = world.save(), "residency: may lie in us; the place has eu; stated by rule policy/test"
    world.reaches(path, "published")
    world.says('residency = ["us"]')
    world.reaches(path, "refused", reason)
    assert world.lies_there(path) == 0
    assert reason in world.lake.command("copies", "--mountpoint", str(world.lake.root)).stdout
    assert (world.lake.root / path / "0.bin").read_bytes() == BODY
    world.says("")
    world.reaches(path, "published")
    assert world.lies_there(path) == len(BODY)


def test_each_mechanism_is_switched_off_alone(world: World) -> None:
    path = world.save()
    world.told.set_replication_hints(path, [HotRange(LakePath(f"{path}/0.bin"), 0, 65_536, 50)], site="eval")
    world.reaches(path, "published")
    world.reaches(path, "published", mechanism="hot_files")
    world.says('hot_copies = "off"')
    world.reaches(path, "refused", "hot_files is switched off", mechanism="hot_files")
    assert world.copy(path)["phase"] == "published"
    world.says('eval_copies = "off"')
    world.reaches(path, "refused", "checkpoints is switched off")
    world.reaches(path, "published", mechanism="hot_files")
    assert (world.lake.root / path / "0.bin").read_bytes() == BODY


@pytest.mark.parametrize(("value", "mechanism"), [("eval_copies", "checkpoints"), ("hot_copies", "hot_files")])
def test_mechanism_that_is_switched_off_and_on_while_it_copies_changes_nothing_but_speed(
    world: World, value: str, mechanism: str
) -> None:
    (other,) = {"checkpoints", "hot_files"} - {mechanism}
    world.line.shape(0.5)
    try:
        path = world.save()
        world.told.set_replication_hints(path, [HotRange(LakePath(f"{path}/0.bin"), 0, 131_072, 50)], site="eval")
        assert world.reaches(path, "copying", mechanism=mechanism)["published_ns"] == 0
        world.says(f'{value} = "off"')
        stopped = world.reaches(path, "refused", f"{mechanism} is switched off", mechanism=mechanism)
        assert (stopped["files"], stopped["bytes"]) == (0, 0)
    finally:
        world.line.shape(0)
    assert (world.lake.root / path / "0.bin").read_bytes() == BODY
    world.reaches(path, "published", mechanism=other)
    assert world.copy(path, mechanism)["phase"] == "refused"
    world.says("")
    world.reaches(path, "published", mechanism=mechanism)
    assert (world.lake.root / path / "0.bin").read_bytes() == BODY


def test_copy_waits_where_its_mechanism_has_no_room_left_and_goes_on_when_there_is(world: World) -> None:
    wait_until(lambda: not world.told.ask("/v1/state")["replicas"], "no copies of others")
    world.says('eval_copies = "size=500KB"')
    path = world.save(300_000, 150_000, 200_000)
    found = world.reaches(path, "copying", "waits for room: quota: checkpoints takes 450000 of 500000 bytes")
    assert found["bytes"] == world.lies_there(path) == 450_000, "what fits is there"
    assert (world.lake.root / path / "2.bin").read_bytes() == BODY[:200_000]
    world.says("")
    world.reaches(path, "published")


def test_no_more_is_copied_within_an_hour_than_the_policy_lets(world: World) -> None:
    world.says('eval_copies = "hourly=1B"')
    path = world.save()
    world.reaches(path, "desired", "within an hour (rule policy/test)")
    assert world.lies_there(path) == 0
    world.says("")
    world.reaches(path, "published")


def test_duties_go_along_with_a_checkpoint_whatever_the_policy_says_later(world: World) -> None:
    world.says('copy_encryption = "required"')
    path = world.save()
    world.reaches(path, "refused", "encryption: must lie encrypted")
    world.says("")
    found = world.reaches(path, "refused", "stated by the checkpoint")
    assert found["labels"]["encrypted"]


def test_copy_that_may_be_kept_for_some_seconds_goes_by_itself_and_does_not_come_back(world: World) -> None:
    world.says('copy_retention = "2s"')
    path = world.save()
    world.reaches(path, "dropped", "it has lived as long as it may")
    assert world.lies_there(path) == 0
    world.says("")
    world.reaches(world.save(), "published")
    assert world.copy(path)["phase"] == "dropped"
    assert (world.lake.root / path / "0.bin").read_bytes() == BODY


def test_copies_of_a_checkpoint_that_is_deleted_go_too_with_proof(world: World) -> None:
    path = world.save(300_000, 1000)
    found = world.reaches(path, "published")
    shutil.rmtree(world.lake.root / path)
    wait_until(lambda: not world.copy(path)["phase"], "no copy")
    assert not [each for each in (world.copies.parent / found["root"]).rglob("*") if each.is_file()]
    proofs = {each["deletion"]["replica"]: each for each in world.told.ask("/v1/deletions")}
    proof = proofs[found["id"]]
    deletion = proof["deletion"]
    assert (deletion["path"], deletion["site"], deletion["save_id"]) == (path, "eval", found["save_id"])
    assert (deletion["files"], deletion["gone"], deletion["bytes"], proof["signed_by"]) == (3, 3, 301_000, "lake")
    said = world.lake.command("copies", "--deleted", "--mountpoint", str(world.lake.root)).stdout
    (line,) = [line for line in said.splitlines() if line.startswith(found["id"])]
    assert "lake" in line and path in line
    shown = world.told.ask("/v1/ledger")["entries"]
    assert [each["outcome"] for each in shown if each["path"] == path] == ["withdrawn"]
