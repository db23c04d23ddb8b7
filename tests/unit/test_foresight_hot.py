"""Hot bytes from the parallel plan: `vfs/foresight/hot.py`."""

from __future__ import annotations

import pytest

from vfs.checkpoints.layout import Layout, Member, build
from vfs.extents.layout import BLOCK
from vfs.foresight.hot import hot_ranges, readers_of
from vfs.foresight.model import HotRange, TensorRanks
from vfs.model import LakePath

STEP = LakePath("ckpt/step_1")


@pytest.mark.parametrize(
    ("ranks", "count"),
    [([(0, 2048, 1)], 2048), ([(3, 2048, 8)], 256), ([(0, 8, 1), (4, 12, 1)], 12), ([], 0), ([(5, 5, 1)], 0)],
    ids=["all", "every eighth", "named twice counts once", "none", "an empty range"],
)
def test_readers_are_the_ranks_that_are_named(ranks: list[tuple[int, int, int]], count: int) -> None:
    assert readers_of(ranks) == count


def layout(*members: Member) -> Layout:
    return build("safetensors", 10_000, (0, 100), members)


def test_replicated_tensors_and_the_metadata_are_hot_and_sharded_ones_are_not() -> None:
    tensors = [TensorRanks("embedding", ((0, 2048, 1),)), TensorRanks("layer.0", ((0, 2048, 16),))]
    layouts = {
        "model.bin": layout(Member("embedding", 100, 4000), Member("layer.0", 4100, 500), Member("experts", 4600, 900))
    }
    found = hot_ranges(STEP, 2048, tensors, [".metadata", "model.bin", "deep/common.pt"], layouts)
    assert found == [
        HotRange(LakePath("ckpt/step_1/.metadata"), 0, 0, 2048),
        HotRange(LakePath("ckpt/step_1/deep/common.pt"), 0, 0, 2048),
        HotRange(LakePath("ckpt/step_1/model.bin"), 0, 4100, 2048),
    ]


def test_ranges_that_share_a_block_are_one_and_those_apart_are_not() -> None:
    names = [f"layer.{index}" for index in range(40)]
    members = [Member(name, 200 + index * 2000, 2000) for index, name in enumerate(names)]
    far = Member("head", 10 * BLOCK, BLOCK)
    tensors = [TensorRanks(name, ((0, 2048, 1),)) for name in [*names, "head"]]
    layouts = {"model.bin": build("safetensors", 11 * BLOCK, (0, 100), [*members, far])}
    assert hot_ranges(STEP, 2048, tensors, [], layouts) == [
        HotRange(LakePath("ckpt/step_1/model.bin"), 0, 80_200, 2048),
        HotRange(LakePath("ckpt/step_1/model.bin"), 10 * BLOCK, BLOCK, 2048),
    ]


@pytest.mark.parametrize(("world", "is_hot"), [(468, False), (469, True)])
def test_a_crowd_that_the_copies_of_every_file_bear_needs_no_more(world: int, is_hot: bool) -> None:
    assert bool(hot_ranges(STEP, world, [], [".metadata"], {})) == is_hot
