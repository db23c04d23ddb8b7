"""pyarrow.fs beyond the common contract: URLs and errors."""

from __future__ import annotations

import pytest

from vfs.errors import Denied, InvalidConfig, NotFound, Unavailable
from vfs.sites.arrow import error_of, open_url


async def test_keys_in_a_url_that_cannot_be_used_are_not_repeated() -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_url("nonsense://key:hush@x", "shared")
    assert "hush" not in str(raised.value)


def test_s3_has_a_kind_of_its_own() -> None:
    with pytest.raises(InvalidConfig, match='kind = "s3"'):
        open_url("s3://bucket/prefix", "shared")


def test_errnos_are_told_by_their_meaning() -> None:
    assert type(error_of(FileNotFoundError(2, "x"), "shared:file")) is NotFound
    assert type(error_of(PermissionError(13, "x"), "shared:file")) is Denied
    assert type(error_of(OSError(5, "x"), "shared:file")) is Unavailable
