"""Other versions take over a live mount under readers and writers that check everything."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import vfs
from tests.lake import Lake, wait_until
from tests.marks import MOUNT
from tests.servers.nginx import Nginx
from tests.trouble.readers import Readers
from tests.trouble.writers import SAVER, Changing, acknowledged, check, lake
from vfs.keeper import code

pytestmark = [*MOUNT, pytest.mark.servers]
ROOT = Path(__file__).resolve().parents[2]
UPGRADES = 5
PAUSE_S = 0.02
"""Between two passes of one reader or writer: a machine of two cores has processes to start meanwhile."""
AGENT = "vfs/agent/__main__.py"


@pytest.fixture
def scratch(nginx: Nginx) -> Iterator[Path]:
    shutil.rmtree(nginx.root / "killed", ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        yield Path(made)


def installation(place: Path, version: str) -> Path:
    """Make an installation of another version, which is this one in all else; return what PYTHONPATH has to name."""
    for part in ("vfs", "policies"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    own = place / "vfs/__init__.py"
    own.write_text(own.read_text().replace(f'"{vfs.__version__}"', f'"{version}"'))
    return place


def spoil(place: Path, file: str, before: str, insert: str) -> None:
    """Have a process of an installation do something else before a line of its main."""
    text = (place / file).read_text()
    assert text.count(before) == 1
    (place / file).write_text(text.replace(before, f"{insert}\n    {before}"))


def upgrade(lake: Lake, place: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command of an installation, as an admin does."""
    environ = os.environ | {"PYTHONPATH": str(place)}
    words = [sys.executable, "-P", "-m", "vfs.cli", "upgrade", str(lake.root)]
    done = subprocess.run(words, env=environ, cwd="/", capture_output=True, text=True, timeout=90, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def exchange(lake: Lake, place: Path, version: str) -> None:
    """Ask the keeper as that command does, without trying the installation out first: it has been."""
    state = lake.state()
    wanted = code.Wanted(f"{version} after {state['upgrade']['id']}", code.Code(sys.executable, str(place), version))
    code.ask(lake.run_dir.upgrade, wanted)
    os.kill(state["pid"], signal.SIGUSR2)
    ended = wait_until(lambda: (now := lake.state()["upgrade"])["id"] == wanted.id and now["ended"] and now, "the upgrade")
    assert ended["why_not"] == ""


@contextmanager
def under_load(scratch: Path, mount: Lake) -> Iterator[tuple[Readers, Changing, Path]]:
    """Read, make, rename and save until the block ends, then see that nothing failed and everything is there."""
    chance, log = random.Random(5), scratch / "acknowledged"
    files = {f"{prefix}/r{index}": chance.randbytes(200_000 + index) for prefix in ("local", "staged") for index in range(8)}
    for name, content in files.items():
        (mount.root / name).write_bytes(content)
    (mount.root / "staged/run").mkdir()
    saver = subprocess.Popen([sys.executable, "-c", SAVER, mount.root / "staged/run", log, "7", str(PAUSE_S)])
    try:
        with (
            Readers(mount.root, files, pause_s=PAUSE_S) as readers,
            Changing(mount.root / "local", 2, pause_s=PAUSE_S) as changing,
        ):
            yield readers, changing, log
        assert saver.poll() is None, "the saver has failed"
    finally:
        saver.kill()
        saver.wait()
    readers.check()
    assert not changing.trouble
    assert check(mount.root / "staged/run", log) > 10


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--no-passthrough"]], ids=["passthrough", "page cache"])
def test_no_call_fails_over_five_upgrades(scratch: Path, nginx: Nginx, options: list[str]) -> None:
    new = installation(scratch / "new", "9.0.0")
    with lake(scratch, nginx, *options) as mount:
        keeper = mount.pid("keeper")
        with under_load(scratch, mount) as (readers, changing, log):
            for turn in range(UPGRADES):
                saved = len(acknowledged(log))
                place, version = ((new, "9.0.0"), (ROOT, vfs.__version__))[turn % 2]
                if turn == 0:
                    upgrade(mount, place)
                else:
                    exchange(mount, place, version)
                readers.wait_rounds()
                changing.wait_turns(10)
                wait_until(lambda least=saved: len(acknowledged(log)) > least, "more that is saved")
                assert mount.state()["version"] == version
        assert mount.pid("keeper") == keeper
        assert mount.status()["troubles"] == []
        wait_until(lambda: mount.status()["agent_says"]["uploads"]["behind"]["files"] == 0, "uploads", 60.0)
        assert check(nginx.root / "killed/run", scratch / "acknowledged") > 10


@pytest.mark.slow
def test_version_that_does_not_start_is_rolled_back_and_no_call_fails(scratch: Path, nginx: Nginx) -> None:
    new = installation(scratch / "new", "9.0.0")
    spoil(new, AGENT, "try:\n        loaded", "status.failed('no room')\n    return 1")
    with lake(scratch, nginx) as mount:
        with under_load(scratch, mount) as (readers, changing, _):
            refused = upgrade(mount, new, check=False)
            assert refused.returncode == 1
            assert "the new agent ended: exit status 1: no room" in refused.stderr
            assert f"version {vfs.__version__} serves again" in refused.stderr
            readers.wait_rounds()
            changing.wait_turns(10)
        assert mount.state()["version"] == vfs.__version__
        assert "9.0.0 was not taken" in mount.command("status", str(mount.root)).stdout
        upgrade(mount, ROOT)


@pytest.mark.slow
def test_version_that_can_not_be_imported_is_refused_before_anything_is_restarted(scratch: Path, nginx: Nginx) -> None:
    new = installation(scratch / "new", "9.0.0")
    (new / AGENT).write_text("import something_that_is_not_installed\n")
    with lake(scratch, nginx) as mount:
        before = mount.pid("worker"), mount.pid("agent")
        refused = upgrade(mount, new, check=False)
        assert refused.returncode == 1
        assert "something_that_is_not_installed" in refused.stderr
        assert (mount.pid("worker"), mount.pid("agent")) == before
