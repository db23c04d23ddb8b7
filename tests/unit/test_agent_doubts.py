"""What a reading host believes when another host has committed something: nothing older than the marker's appearance."""

from __future__ import annotations

from pathlib import Path

import pytest

from vfs.agent.reading.metadata import Metadata
from vfs.clock import FakeClock
from vfs.config import parse
from vfs.model import LakePath, SiteName, SitePath
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import build_mount_table
from vfs.sites.memory import MemorySite

CONFIG = '[sites.lake]\nkind = "memory"\n[[mounts]]\nprefix = ""\nsite = "lake"\n'
SHARD, MARKER = LakePath("run/ckpt/model-1.safetensors"), LakePath("run/ckpt/model.safetensors.index.json")


@pytest.mark.parametrize("seen_by", ["stat", "listing"])
async def test_that_a_shard_was_absent_is_forgotten_when_its_marker_appears(tmp_path: Path, seen_by: str) -> None:
    site, clock = MemorySite(SiteName("lake")), FakeClock()
    site.put(SitePath("run/ckpt/other"), b"x")
    catalog = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    spawned = []

    def spawn(work: object) -> None:
        import asyncio

        spawned.append(asyncio.ensure_future(work))  # type: ignore[call-overload]

    metadata = Metadata(
        build_mount_table(parse(CONFIG)),
        {SiteName("lake"): site},
        catalog,
        clock=clock,
        ttl_s=lambda path: 3600.0,
        version_ttl_s=lambda path, size: 3600.0,
        spawn=spawn,
    )
    for _ in range(3):  # the third is answered by a listing, which is believed for an hour
        assert await metadata.stat(SHARD) is None
        clock.advance(0.1)
    site.put(SitePath(SHARD), b"shard")
    assert await metadata.stat(SHARD) is None
    site.put(SitePath(MARKER), b"{}")
    clock.advance(0.1)
    if seen_by == "listing":
        await metadata.list(LakePath("run/ckpt"), 0, 0, 0.0)
    else:
        await metadata._stat(metadata._point(MARKER), MARKER)
    clock.advance(0.1)
    assert catalog.doubted_ns(SHARD) > 0
    assert await metadata.stat(SHARD) is not None


def test_a_doubt_holds_below_its_directory_only(tmp_path: Path) -> None:
    catalog = CatalogWriter(str(tmp_path / "catalog.lmdb"))
    assert catalog.doubted_ns(LakePath("a/b/c")) == 0
    catalog.doubt(LakePath("a/b"), 7)
    assert [catalog.doubted_ns(LakePath(path)) for path in ("a/b", "a/b/c", "a/b/c/d", "a", "a/bc", "")] == [7, 7, 7, 0, 0, 0]
