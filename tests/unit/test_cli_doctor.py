"""doctor: the verdicts as values, the host checks on this host, and the probe of a place that hangs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vfs import config
from vfs.cli import compat, hostchecks, main
from vfs.cli.checks import Check, has_trouble, judge
from vfs.cli.doctor import _probe

CONFIG = '[sites.m]\nkind = "memory"\n[[mounts]]\nprefix = ""\nsite = "m"\n[cache]\ndirectory = "{}"\nsize = "{}"\n'


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def verdicts(*checks: Check) -> dict[str, tuple[str, str]]:
    return {each.framework: (each.verdict, each.because) for each in judge(checks)}


ALL_READS = [Check(name, "ok", "works") for name in compat.READ_CHECKS]
NO_WRITES = [Check(name, "skipped", "no writable mount in the table") for name in compat.WRITE_CHECKS]


def test_read_only_mount_works_for_readers_and_writers_are_not_tried() -> None:
    found = verdicts(*ALL_READS, *NO_WRITES)
    assert found["safetensors load_file, safe_open"] == ("works", "read, mmap shared, mmap private")
    assert found["torch.save"] == ("not tried", "create and write, rename over: no writable mount in the table")


def test_failing_check_names_the_frameworks_that_need_it() -> None:
    broken = [Check(c.name, "bad", "No such device") if c.name == "mmap shared" else c for c in ALL_READS]
    found = verdicts(*broken, *NO_WRITES)
    assert found["safetensors load_file, safe_open"] == ("fails", "mmap shared: No such device")
    assert found["HF datasets, load_from_disk"][0] == "fails"
    assert found["WebDataset, tar shards"][0] == "works"


def test_check_that_hangs_counts_as_failing() -> None:
    assert verdicts(Check("read", "hangs", "no answer within 1 s"))["DCP load"] == ("fails", "read: no answer within 1 s")
    assert has_trouble([Check("read", "hangs", "")])
    assert not has_trouble([Check("a", "warning", ""), Check("b", "skipped", ""), Check("c", "ok", "")])


def test_framework_whose_check_was_never_run_is_not_tried() -> None:
    assert verdicts()["PIL, ffmpeg"] == ("not tried", "read, seek: not run")


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("6.18.44-generic", "ok"),
        ("6.9.0", "ok"),
        ("6.8.12-1-pve", "warning"),
        ("5.17.0", "warning"),
        ("5.16.20", "bad"),
        ("4.18.0-553.el8", "bad"),
        ("unknown", "bad"),
    ],
)
def test_kernel_is_judged_by_what_it_offers(release: str, verdict: str) -> None:
    assert hostchecks.judge_kernel(release).verdict == verdict


def test_every_host_check_has_a_verdict_and_bad_ones_a_hint() -> None:
    checks = hostchecks.check_host(None)
    assert [check.name for check in checks] == [
        "kernel", "/dev/fuse", "privileges", "fusermount3", "fuse.conf", "passthrough extension",
        "open files per process", "open files of the host", "clock",
    ]  # fmt: skip
    assert all(check.hint for check in checks if check.verdict == "bad")


def test_cache_directory_that_does_not_exist_is_judged_by_where_it_would_be(tmp_path: Path) -> None:
    loaded = config.parse(CONFIG.format(tmp_path / "a" / "b", "1MiB"))
    found = {check.name: check.verdict for check in hostchecks.check_cache(loaded)}
    assert (found["cache disk"], found["sparse files"]) == ("ok", "ok")
    assert os.listdir(tmp_path) == []


def test_cache_larger_than_the_disk_is_a_warning(tmp_path: Path) -> None:
    loaded = config.parse(CONFIG.format(tmp_path, "100000TiB"))
    assert hostchecks.check_cache(loaded)[0].verdict == "warning"


def test_cache_below_a_file_is_bad(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded = config.parse(CONFIG.format(tmp_path / "file" / "cache", "1MiB"))
    assert [check.verdict for check in hostchecks.check_cache(loaded)] == ["bad"]


def test_all_compatibility_checks_hold_on_a_local_disk(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "large").write_bytes(os.urandom(100_001))
    checks = {check.name: check for check in _probe(str(tmp_path), "", str(tmp_path), 20.0)}
    assert [name for name, check in checks.items() if check.verdict != "ok"] == []
    assert set(checks) == {"statfs", "listing", *compat.READ_CHECKS, "mkdir", *compat.WRITE_CHECKS, "remove"}
    assert checks["read"].found == f"{tmp_path}/deep/large, 100001 bytes"
    assert sorted(os.listdir(tmp_path)) == ["deep", "small"]


def test_place_that_hangs_is_reported_at_the_deadline_and_the_rest_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it for reading waits for a writer for ever
    started = time.monotonic()
    checks = {check.name: check for check in _probe(str(tmp_path), str(tmp_path / "pipe"), "", 1.5)}
    assert time.monotonic() - started < 4.0
    assert (checks["listing"].verdict, checks["read"].verdict, checks["seek"].verdict) == ("ok", "hangs", "skipped")
    assert "umount --force" in checks["read"].hint


def test_empty_mount_skips_the_reading_checks_with_the_reason(tmp_path: Path) -> None:
    checks = {check.name: check for check in _probe(str(tmp_path), "", "", 20.0)}
    assert (checks["read"].verdict, checks["read"].found) == ("skipped", "the mount holds no file to read")


def test_directory_that_can_not_be_written_is_bad_and_writes_are_skipped(tmp_path: Path) -> None:
    checks = {check.name: check for check in _probe(str(tmp_path), "", str(tmp_path / "absent"), 20.0)}
    assert (checks["mkdir"].verdict, checks["rename over"].verdict) == ("bad", "skipped")


def test_doctor_takes_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.format(tmp_path, "1MiB"))
    found = json.loads(run("doctor", str(tmp_path / "c.toml"), "--json").output)
    assert [check["name"] for check in found["host"]][-3:] == ["cache disk", "cache file system", "sparse files"]
    assert found["mount"] == []


def test_doctor_names_what_is_wrong_with_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("nonsense = 1")
    ran = run("doctor", str(tmp_path / "c.toml"))
    assert ran.exit_code == 1
    assert "unknown key" in ran.output


def test_doctor_of_a_place_without_mount_says_so_and_tries_nothing() -> None:
    ran = run("doctor", "/mnt/nothing")
    assert ran.exit_code == 1
    assert "nothing is mounted there" in ran.output
    assert "26 checks" in ran.output
