"""Opening samples from training code, on files of this host; on `.jobs` itself see tests/mount/test_jobs.py."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.schedules import npy
from vfs.client import form_of, open_sample, provenance_of

MAGIC = b"\x93NUMPY"


def encoded(values: list[int]) -> bytes:
    return npy(np.array(values))


def decode(raw: bytes) -> bytes:
    return encoded([int(part) for part in raw.split(b",")])


def test_raw_bytes_become_what_the_operator_makes_of_them_and_transformed_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "ready.npy").write_bytes(encoded([1, 2, 3]))
    (tmp_path / "late.npy").write_bytes(b"1,2,3")
    for name in ("ready.npy", "late.npy"):
        with open_sample(tmp_path / name, local=decode, magic=MAGIC) as file:
            assert np.load(file).tolist() == [1, 2, 3], name


def test_attribute_says_the_form_where_no_magic_is_given(tmp_path: Path) -> None:
    path = tmp_path / "late.npy"
    path.write_bytes(b"4,5")
    try:
        os.setxattr(path, "user.foremount.form", b"raw")
    except OSError as exc:
        pytest.skip(f"this file system keeps no attributes: {exc}")
    os.setxattr(path, "user.foremount.provenance", b'{"reason": "late"}')
    with open_sample(path, local=decode) as file:
        assert np.load(file).tolist() == [4, 5]
    assert (form_of(path), provenance_of(path)) == ("raw", {"reason": "late"})


def test_without_an_operator_and_on_other_files_the_bytes_come_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"6,7")
    with open_sample(tmp_path / "plain") as file:
        assert file.read() == b"6,7"
    with open_sample(tmp_path / "plain", local=decode) as file:
        assert file.read() == b"6,7"
    assert (form_of(tmp_path / "plain"), provenance_of(tmp_path / "plain")) == ("transformed", {})


def test_failing_operator_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "late.npy").write_bytes(b"no number")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="invalid literal"):
        open_sample(tmp_path / "late.npy", local=decode, magic=MAGIC)
    assert len(os.listdir("/proc/self/fd")) == before
