"""A data set that Megatron Energon itself has prepared: both of its indices give the samples of the tars."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

from tests.schedules import DirectoryLake, opened, slots_of, webdataset

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
    feed = await opened(DirectoryLake(tmp_path), text)
    assert await slots_of(feed, tmp_path) == schedule.slots
