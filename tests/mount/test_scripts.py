"""The scripts that put Foremount on hosts, run as admins, mount(8), Slurm and container engines run them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import vfs
from tests.lake import DISK, FSYNC_IS_LOCAL, STAGED, foremount, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin
from vfs.keeper import mountinfo

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "mount_scripts"
COMMAND = Path(sys.executable).with_name("foremount")
pytestmark = [*MOUNT, pytest.mark.skipif(not COMMAND.exists(), reason=f"{COMMAND} is not installed")]


class Place:
    """A configuration and a place to mount it at.

    Attributes:
        config, root: both exist; nothing is mounted yet.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root, self.config = base / "mnt lake", base / "foremount.toml"
        for directory in (self.root, base / "disk"):
            directory.mkdir()
        (base / "disk/file").write_bytes(b"of the disk")
        self.config.write_text(DISK.replace("{base}", str(base)))

    @property
    def is_mounted(self) -> bool:
        return mountinfo.on_top(mountinfo.read(), str(self.root)) is not None

    def run(self, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command; nothing of ours is on its PATH."""
        return subprocess.run(
            [str(word) for word in words], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | environ,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        place = Place(Path(made).resolve())
        yield place
        if place.is_mounted:
            foremount("umount", str(place.root), "--force")


@pytest.fixture
def helper() -> Iterator[Path]:
    """mount(8)'s helper where mount(8) looks for it."""
    installed = Path("/sbin/mount.foremount")
    if os.path.lexists(installed):
        pytest.skip(f"{installed} is installed here: not replaced for a test")
    installed.symlink_to(SCRIPTS / "mount.foremount")
    yield installed
    installed.unlink()


@pytest.mark.slow
def test_mount_by_type_as_fstab_does_twice_and_read_only(place: Place, helper: Path) -> None:
    fstab = place.base / "fstab"
    where = str(place.root).replace(" ", "\\040")
    fstab.write_text(f"{place.config} {where} foremount nofail,_netdev,ro,foremount={COMMAND} 0 0\n")
    for _ in range(2):
        said = place.run("mount", "-a", "-T", fstab)
        assert (said.returncode, said.stderr) == (0, "")
    assert [entry.fs_type for entry in mountinfo.read() if entry.mountpoint == str(place.root)] == ["fuse.foremount"]
    assert (place.root / "file").read_bytes() == b"of the disk"
    with pytest.raises(OSError) as refused:
        (place.root / "new").touch()
    assert refused.value.errno == errno.EROFS
    assert place.run("umount", place.root).returncode == 0
    wait_until(lambda: foremount("status", str(place.root), check=False).stdout.count("not mounted"), "the keeper to end")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("automount", path="/usr/sbin:/sbin"), reason="autofs is not installed")
@pytest.mark.skipif(not os.path.exists("/dev/autofs"), reason="this kernel has no autofs")
def test_autofs_mounts_at_the_first_access_and_ends_the_mount_when_it_is_idle(place: Place, helper: Path) -> None:
    auto, master = place.base / "auto", place.base / "auto.master"
    auto.mkdir()
    master.write_text(f"{auto} {place.base}/auto.lake --timeout=1\n")
    (place.base / "auto.lake").write_text(f"lake -fstype=foremount,foremount={COMMAND} :{place.config}\n")
    words = ["automount", "--foreground", "--pid-file", str(place.base / "pid"), str(master)]
    # A session of its own: autofs takes whoever is in its daemon's process group for the daemon.
    with (
        (place.base / "log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True) as automount,
    ):
        try:
            watched = f"autofs on {auto}"
            wait_until(lambda: [e for e in mountinfo.read() if (e.fs_type, e.mountpoint) == ("autofs", str(auto))], watched)
            assert (auto / "lake/file").read_bytes() == b"of the disk"

            def kinds() -> list[str]:
                return [entry.fs_type for entry in mountinfo.read() if entry.mountpoint == str(auto / "lake")]

            assert kinds() == ["fuse.foremount"]
            wait_until(lambda: not kinds(), "an end of the idle mount")
            assert (auto / "lake/file").read_bytes() == b"of the disk"  # and it comes again
        finally:
            automount.send_signal(signal.SIGUSR2)  # ends, with all that is mounted
            assert automount.wait(30) == 0, (place.base / "log").read_text()
    assert not [entry for entry in mountinfo.read() if entry.mountpoint.startswith(str(auto))]


@pytest.mark.parametrize(
    ("config", "option", "status", "said"),
    [
        pytest.param(None, "colour=red", 1, "unknown option colour=red", id="unknown option"),
        pytest.param("/nowhere.toml", "defaults", 32, "/nowhere.toml can't be read", id="no configuration"),
        pytest.param("[cache]\nsizes = 1\n", "defaults", 32, "sizes", id="wrong configuration"),
    ],
)
def test_mount_by_type_says_what_is_wrong_and_mounts_nothing(
    place: Place, helper: Path, config: str | None, option: str, status: int, said: str
) -> None:
    named = str(place.config)
    if config is not None and config.startswith("/"):
        named = config
    elif config is not None:
        place.config.write_text(config)
    refused = place.run("mount", "-t", "foremount", named, place.root, "-o", f"{option},foremount={COMMAND}")
    assert refused.returncode == status
    assert said in refused.stderr
    assert not place.is_mounted


def test_installed_version_runs_and_uninstall_leaves_configuration_and_cache(place: Place) -> None:
    there = place.base / "host"
    installed = place.run(
        SCRIPTS / "install.sh", "--environment", Path(sys.executable).parents[1], DESTDIR=str(there)
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    command = there / "opt/foremount/current/bin/foremount"
    assert vfs.__version__ in place.run(command, "--version").stdout
    assert os.access(there / "sbin/mount.foremount", os.X_OK)
    shutil.copy(place.config, there / "etc/foremount/lake.toml")
    removed = place.run(SCRIPTS / "uninstall.sh", DESTDIR=str(there))
    assert removed.returncode == 0, removed.stderr
    assert f"{place.base}/cache" in removed.stdout
    left = sorted(str(path.relative_to(there)) for path in there.rglob("*") if not path.is_dir())
    assert left == ["etc/foremount/lake.toml"]
    assert COMMAND.exists()
    assert place.run(SCRIPTS / "uninstall.sh", "--purge", DESTDIR=str(there)).returncode == 0
    assert not (there / "etc/foremount").exists()


def slurm_environ(place: Place) -> dict[str, str]:
    """Return what Slurm's scripts find in their environment and in /etc/default/foremount."""
    return {
        "FOREMOUNT_DEFAULTS": "/nowhere", "FOREMOUNT_CONFIG": str(place.config), "FOREMOUNT_MOUNTPOINT": str(place.root),
        "FOREMOUNT_COMMAND": str(COMMAND), "FOREMOUNT_UPLOAD_S": "1", "SLURM_JOB_ID": "4711",
    }  # fmt: skip


@pytest.mark.slow
def test_epilog_says_what_is_not_at_its_origin_when_its_time_is_up(
    place: Place, wan_origin: WanOrigin, wan_root: Path
) -> None:
    (place.base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    staged = STAGED.replace("{base}", str(place.base)).replace("URL", f"{wan_origin.url}/{wan_root.name}")
    place.config.write_text(staged)  # an origin that takes no upload
    assert place.run(SCRIPTS / "slurm/prolog.sh", **slurm_environ(place)).returncode == 0
    (place.root / "result").write_bytes(b"of the job")
    epilog = place.run(SCRIPTS / "slurm/epilog.sh", **slurm_environ(place))
    assert epilog.returncode == 0
    assert "1 files are not at their origin yet" in epilog.stderr


@pytest.mark.slow
def test_prolog_mounts_what_does_not_serve_and_epilog_never_drains_a_node(place: Place) -> None:
    environ = slurm_environ(place)
    for _ in range(2):
        prolog = place.run(SCRIPTS / "slurm/prolog.sh", **environ)
        assert prolog.returncode == 0, prolog.stderr
        assert (place.root / "file").read_bytes() == b"of the disk"
    status = json.loads(foremount("status", str(place.root), "--json").stdout)
    os.kill(status["processes"]["keeper"]["pid"], signal.SIGKILL)
    wait_until(lambda: foremount("status", str(place.root), check=False).returncode == 1, "a dead mount")
    assert place.run(SCRIPTS / "slurm/prolog.sh", **environ).returncode == 0
    assert (place.root / "file").read_bytes() == b"of the disk"
    assert place.run(SCRIPTS / "slurm/epilog.sh", **environ).returncode == 0
    assert place.run("umount", place.root).returncode == 0
    assert place.run(SCRIPTS / "slurm/epilog.sh", **environ).returncode == 0
    place.config.write_text("[cache]\nsizes = 1\n")
    assert place.run(SCRIPTS / "slurm/prolog.sh", **environ).returncode == 1


def test_container_mounts_in_the_foreground_and_ends_the_mount_on_sigterm(place: Place) -> None:
    words = [str(SCRIPTS / "container/entrypoint.sh"), str(place.config), str(place.root)]
    running = subprocess.Popen(words, env=os.environ | {"FOREMOUNT_COMMAND": str(COMMAND)}, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: place.is_mounted and foremount("status", str(place.root), check=False).returncode == 0, "the mount"
        )
        assert (place.root / "file").read_bytes() == b"of the disk"
        running.terminate()
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.wait()
    assert not place.is_mounted
