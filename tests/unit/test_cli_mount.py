"""The command line itself, config check, and what `mount` refuses before it starts anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vfs import config, rundir
from vfs.cli import main
from vfs.cli.mount import check_places
from vfs.errors import InvalidConfig
from vfs.keeper import mountinfo
from vfs.keeper.code import child_environ

CONFIG = """
[sites.disk]
kind = "local"
path = "{path}"
[[mounts]]
prefix = "/data"
site = "disk"
[cache]
directory = "{cache}"
size = "1GiB"
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A valid configuration whose places exist."""
    (tmp_path / "src").mkdir()
    file = tmp_path / "foremount.toml"
    file.write_text(CONFIG.format(path=tmp_path / "src", cache=tmp_path / "cache"))
    return file


def test_config_check_prints_what_the_file_says(config_file: Path) -> None:
    ran = run("config", "check", str(config_file))
    assert ran.exit_code == 0
    *lines, policies = ran.output.splitlines()
    assert lines == [
        f"{config_file}: valid",
        "  /data     disk (local)",
        f"  cache     {config_file.parent}/cache, at most 1 GiB",
    ]
    assert policies.startswith("  policies  defaults, version ")


def test_config_check_with_json_fills_in_the_defaults(config_file: Path) -> None:
    document = json.loads(run("config", "check", str(config_file), "--json").output)
    assert document["config"]["cache"]["size"] == 1 << 30
    assert document["config"]["limits"]["read_ahead"] == 64 << 10
    assert document["config"]["mounts"][0]["writable"] is False


def test_config_with_an_unknown_key_is_refused_with_the_nearest_known_one(config_file: Path) -> None:
    config_file.write_text(config_file.read_text().replace("[cache]", "[cache]\ndirektory = 1"))
    ran = run("config", "check", str(config_file))
    assert ran.exit_code == 1
    assert ran.stderr == f"foremount: {config_file}: cache.direktory: unknown key\n  hint: did you mean 'directory'?\n"
    error = json.loads(run("config", "check", str(config_file), "--json").stdout)["error"]
    assert (error["kind"], error["hint"]) == ("InvalidConfig", "did you mean 'directory'?")


def test_absent_config_is_an_expected_failure() -> None:
    assert run("config", "check", "/nonexistent").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [("frobnicate",), ("mount",), ("mount", "--nonsense", "a", "b"), ("explain",), ("fetch",), ("umount",)],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_every_command_but_policy_explains_itself() -> None:
    for name in ("mount", "umount", "status", "explain", "fetch", "evict", "verify", "doctor", "config"):
        ran = run(name, "--help")
        assert ran.exit_code == 0
        assert "Usage:" in ran.output


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["status", "/mnt/nothing"], ["umount", "/mnt/nothing"]])
def test_quick_commands_load_no_heavy_library(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom vfs.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print('loaded', sorted({'pyarrow', 'pyfuse3', 'trio', 'aiohttp', 'numpy', 'rich', 'lmdb'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], env=child_environ(), capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize(
    ("path", "cache", "mountpoint", "subject"),
    [
        pytest.param("/data", "/mnt/lake/cache", "/mnt/lake", "cache.directory", id="cache inside the mount point"),
        pytest.param("/data", "/mnt/lake", "/mnt/lake", "cache.directory", id="cache at the mount point"),
        pytest.param("/mnt/lake/src", "/cache", "/mnt/lake", "sites.disk.path", id="site inside the mount point"),
        pytest.param("/data", "/cache", "/data/mnt", "sites.disk.path", id="mount point inside a site"),
        pytest.param("/data", "/cache", "/etc", "the configuration file", id="configuration inside the mount point"),
        pytest.param("/data", "/cache", "/run", "the run directory", id="run directory inside the mount point"),
    ],
)
def test_place_that_would_make_the_daemon_wait_for_itself_is_refused(
    path: str, cache: str, mountpoint: str, subject: str
) -> None:
    loaded = config.parse(CONFIG.format(path=path, cache=cache))
    with pytest.raises(InvalidConfig, match=subject):
        check_places(loaded, "/etc/foremount.toml", mountpoint, rundir.RunDir("/run/foremount/mnt-lake"))


def test_cache_behind_a_symlink_into_the_mount_point_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnt" / "c").mkdir(parents=True)
    (tmp_path / "cache").symlink_to(tmp_path / "mnt" / "c")
    loaded = config.parse(CONFIG.format(path="/data", cache=tmp_path / "cache"))
    with pytest.raises(InvalidConfig, match="lies inside the mount point"):
        check_places(loaded, "/etc/foremount.toml", os.path.realpath(tmp_path / "mnt"), rundir.RunDir("/run/foremount/x"))


def test_policy_documents_inside_the_mount_point_are_refused() -> None:
    loaded = config.parse('policies = ["../mnt/lake/policies"]\n' + CONFIG.format(path="/data", cache="/cache"))
    with pytest.raises(InvalidConfig, match=r"policies: '/etc/../mnt/lake/policies' lies inside the mount point"):
        check_places(loaded, "/etc/foremount.toml", "/mnt/lake", rundir.RunDir("/run/foremount/mnt-lake"))


def test_neighbours_with_a_common_beginning_are_accepted() -> None:
    loaded = config.parse(CONFIG.format(path="/mnt/lake-src", cache="/mnt/lake2"))
    check_places(loaded, "/etc/foremount.toml", "/mnt/lake", rundir.RunDir("/run/foremount/mnt-lake"))


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse on this machine")
def test_mount_point_that_is_missing_or_a_file_is_refused(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path / "run"))
    missing = run("mount", str(config_file), str(tmp_path / "missing"))
    assert missing.exit_code == 1
    assert missing.stderr.splitlines() == [
        f"foremount: {tmp_path}/missing: no such directory", f"  hint: mkdir -p {tmp_path}/missing",
    ]  # fmt: skip
    a_file = run("mount", str(config_file), str(config_file))
    assert "lies inside the mount point" in a_file.stderr
    (tmp_path / "file").touch()
    assert "is no directory" in run("mount", str(config_file), str(tmp_path / "file")).stderr


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse on this machine")
def test_other_file_system_on_the_mount_point_is_refused(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "base_dir", lambda: str(tmp_path / "run"))
    place = os.path.realpath(tmp_path / "mnt")
    monkeypatch.setattr(mountinfo, "read", lambda: [mountinfo.MountEntry(90, 28, 8, 1, place, "ext4", "/dev/sda1", "rw")])
    ran = run("mount", str(config_file), place)
    assert ran.exit_code == 1
    assert f"/dev/sda1 (ext4) is mounted on {place}" in ran.stderr
