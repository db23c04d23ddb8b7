"""/proc/self/mountinfo with the names that break naive parsers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.keeper import mountinfo

LINES = rb"""21 28 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
28 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
90 28 0:39 / /mnt/lake rw,nosuid,nodev,relatime - fuse.foremount foremount rw,user_id=0,default_permissions,allow_other
91 90 0:40 / /mnt/lake rw,relatime shared:3 - tmpfs none rw
92 28 0:41 /sub\040dir /mnt/a\040b\011c\012d\134e rw - nfs4 host:/x\040-\040y rw
"""


def test_lines_are_read_with_and_without_optional_fields() -> None:
    entries = mountinfo.parse(LINES)
    assert [(entry.mount_id, entry.minor, entry.fs_type) for entry in entries] == [
        (21, 20, "sysfs"), (28, 0, "ext4"), (90, 39, "fuse.foremount"), (91, 40, "tmpfs"), (92, 41, "nfs4"),
    ]  # fmt: skip
    assert entries[1].major == 254
    assert "allow_other" in entries[2].options.split(",")


def test_octal_escapes_become_the_bytes_that_they_stand_for() -> None:
    entry = mountinfo.parse(LINES)[4]
    assert entry.mountpoint == "/mnt/a b\tc\nd\\e"
    assert entry.source == "host:/x - y"


def test_last_of_several_on_one_mount_point_is_on_top() -> None:
    found = mountinfo.on_top(mountinfo.parse(LINES), "/mnt/lake")
    assert found is not None
    assert found.fs_type == "tmpfs"


def test_path_below_a_mount_point_is_none() -> None:
    assert mountinfo.on_top(mountinfo.parse(LINES), "/mnt/lake/x") is None


def test_bytes_that_are_no_utf8_survive() -> None:
    (entry,) = mountinfo.parse(b"1 2 0:5 / /mnt/\xff\xfe rw - fuse.x y rw")
    assert entry.mountpoint.encode("utf-8", "surrogateescape") == b"/mnt/\xff\xfe"


@given(st.binary(min_size=1, max_size=60).filter(lambda name: b"\0" not in name))
def test_any_mount_point_is_read_back(name: bytes) -> None:
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\" else bytes([byte]) for byte in name)
    (entry,) = mountinfo.parse(b"90 28 0:39 / /" + escaped + b" rw shared:1 - fuse.foremount foremount rw\n")
    assert entry.mountpoint.encode("utf-8", "surrogateescape") == b"/" + name
    assert entry.fs_type == mountinfo.FS_TYPE


def test_own_table_can_be_read() -> None:
    assert any(entry.mountpoint == "/proc" for entry in mountinfo.read())


@pytest.mark.parametrize("text", [b"", b"\n"])
def test_empty_table_has_no_entries(text: bytes) -> None:
    assert mountinfo.parse(text) == []
