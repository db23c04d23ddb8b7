"""How long the kernel may believe names of a local directory, by the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from vfs.filesystem.local import LocalTree
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.mounts import STATUS_PREFIX, MountPoint
from vfs.policy.inforce import InForce
from vfs.policy.store import PolicyStore


def tree(tmp_path: Path, values: str, *, writable: bool = False, prefix: str = "lake") -> LocalTree:
    (tmp_path / "own.toml").write_text(f'format = 1\n[[rules]]\nname = "r"\nmatch = {{}}\nset = {{ {values} }}\n')
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "root/file").write_bytes(b"x")
    point = MountPoint(LakePath(prefix), SiteName("here"), SitePath(""), writable=writable, local_root=str(tmp_path / "root"))
    return LocalTree(point, InForce(PolicyStore([str(tmp_path / "own.toml")])))


@pytest.mark.parametrize(
    ("values", "writable", "file_s", "directory_s"),
    [
        ('deadline = "1s"', False, 1, 1),
        ('staleness = "ttl=1h"', False, 1, 1),
        ('staleness = "ttl=100ms", listing_ttl = "200ms"', False, 0.1, 0.2),
        ('staleness = "close-to-open"', False, 0, 1),
        ('staleness = "immutable"', False, 3600, 1),
        ('staleness = "immutable"', True, 1, 1),
    ],
    ids=["default", "a long ttl buys nothing", "shorter", "close-to-open", "immutable", "immutable, but it can be written"],
)
async def test_local_names_are_believed_for_a_second_at_most_unless_they_never_change(
    tmp_path: Path, values: str, writable: bool, file_s: float, directory_s: float
) -> None:
    found = tree(tmp_path, values, writable=writable)
    assert (await found.lookup(LakePath("lake/file"))).ttl_s == file_s
    assert (await found.lookup(LakePath("lake/d"))).ttl_s == directory_s
    stream = await found.open_directory(LakePath("lake"))
    assert {child.name: child.node.ttl_s for child in await stream.read(0)} == {b"file": file_s, b"d": directory_s}
    stream.close()


async def test_no_document_speaks_of_the_status_files(tmp_path: Path) -> None:
    found = tree(tmp_path, 'staleness = "immutable"', prefix=STATUS_PREFIX)
    assert (await found.lookup(LakePath(".foremount/file"))).ttl_s == 1
