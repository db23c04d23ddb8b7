"""A catalog that is damaged or gone: the mount serves right bytes, and goes on with a new one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake import http_lake, mounted
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

pytestmark = MOUNT
PAGE = 4096
DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda catalog: (catalog / "data.mdb").write_bytes(os.urandom(5 * PAGE)),
    "cut short": lambda catalog: os.truncate(catalog / "data.mdb", 2 * PAGE),
    "zeros": lambda catalog: overwrite(catalog / "data.mdb", bytes(64 * PAGE)),
    "gone": shutil.rmtree,
}


def overwrite(path: Path, pages: bytes) -> None:
    """Write over what follows the first two pages, by which a catalog is recognised."""
    with open(path, "r+b") as file:
        file.seek(2 * PAGE)
        file.write(pages)


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGES)
def test_catalog_that_is_damaged_is_begun_anew(wan_origin: WanOrigin, wan_root: Path, scratch: Path, what: str) -> None:
    contents = {name: random.Random(name).randbytes(300_000) for name in ("a", "b", "c")}
    (wan_root / "d").mkdir()
    for name in ("a", "b"):
        (wan_root / "d" / name).write_bytes(contents[name])
    config, catalog = http_lake(f"{wan_origin.url}/{wan_root.name}", ttl="1ms"), scratch / "cache/v1/catalog.lmdb"
    with mounted(config, scratch) as lake, open(lake.root / "d/a", "rb") as held:
        assert sorted(os.listdir(lake.root / "d")) == ["a", "b"]
        DAMAGES[what](catalog)
        lake.kill("agent", ready=True)
        (wan_root / "d/c").write_bytes(contents["c"])
        assert sorted(os.listdir(lake.root / "d")) == ["a", "b", "c"]
        assert {name: (lake.root / "d" / name).read_bytes() for name in contents} == contents
        assert held.read() == contents["a"]
        lake.kill("worker", ready=True)
        assert {name: (lake.root / "d" / name).read_bytes() for name in contents} == contents
    DAMAGES[what](catalog)
    with mounted(config, scratch) as lake:
        assert sorted(os.listdir(lake.root / "d")) == ["a", "b", "c"]
        assert {name: (lake.root / "d" / name).read_bytes() for name in contents} == contents
