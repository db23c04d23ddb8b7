"""Which shards follow one: `vfs/checkpoints/series.py`."""

from __future__ import annotations

import pytest

from vfs.checkpoints.series import following

SHARDS = [f"model-{index:05d}-of-00004.safetensors" for index in (3, 1, 4, 2)] + ["config.json", "other-00002.safetensors"]


def shard(index: int) -> str:
    return f"model-{index:05d}-of-00004.safetensors"


@pytest.mark.parametrize(
    ("name", "before", "expected"),
    [
        pytest.param(shard(1), None, [2, 3, 4], id="forward-at-first"),
        pytest.param(shard(4), None, [3, 2, 1], id="who-begins-with-the-last-goes-backwards"),
        pytest.param(shard(2), shard(1), [3, 4], id="forward"),
        pytest.param(shard(2), shard(3), [1], id="backwards"),
        pytest.param(shard(4), shard(3), [], id="the-last"),
        pytest.param(shard(1), shard(2), [], id="the-last-backwards"),
    ],
)
def test_shards_that_follow(name: str, before: str | None, expected: list[int]) -> None:
    assert following(name, SHARDS, before) == [shard(index) for index in expected]


def test_numbers_count_and_not_letters() -> None:
    assert following("__9_0.distcp", ["__10_0.distcp", "__9_0.distcp", "__8_0.distcp"]) == ["__10_0.distcp"]


def test_a_file_without_a_number_has_none_that_follow() -> None:
    assert following("model.safetensors", ["model.safetensors", *SHARDS]) == []
