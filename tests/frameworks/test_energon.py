"""A data set that Megatron Energon itself has prepared: both of its indices give the samples of the tars."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

from tests.schedules import DirectoryLake, webdataset
from vfs.model import LakePath
from vfs.samples import jobs
from vfs.samples.feeds.open import open_feed

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]


@pytest.mark.parametrize("index", ["tar.idx", "energon"])
@pytest.mark.parametrize("part", ["jpg", ""])
async def test_prepared_data_set_is_read_by_its_index(index: str, part: str, tmp_path: Path) -> None:
    schedule = webdataset(tmp_path, part)
    tars = tmp_path / "jobs" / "tars"
    for written in tars.glob("*.idx"):
        written.unlink()
    names = sorted(path.name for path in tars.glob("*.tar"))
    WebdatasetPreparator.prepare_dataset(EPath(tars), names, split_parts_ratio=[("train", 1.0)], workers=1)
    for useless in tars.glob("*.idx" if index == "energon" else ".nv-meta/*"):
        useless.unlink()
    text = schedule.text.replace('kind = "webdataset"\n', f'kind = "webdataset"\nindex = "{index}"\n')
    feed = await open_feed(DirectoryLake(tmp_path), jobs.parse(text, "jobs/run.toml", "run"), LakePath("jobs"))
    found = {}
    for step in await feed.steps():
        for rank in await feed.ranks(step):
            for sample in await feed.group(step, rank):
                body = (tmp_path / sample.source).read_bytes()
                found[step, rank, sample.slot] = b"".join(body[start : start + size] for start, size in sample.ranges)
    assert found == schedule.slots
