"""The order of MosaicML Streaming: compared with what mosaicml-streaming 0.13.0 gave, and its promise of elasticity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from vfs.errors import InvalidFeed
from vfs.samples import jobs
from vfs.samples.feeds import mixing, mosaic
from vfs.samples.jobs import Stream, Streaming

SHARDS = [7, 5, 9, 4, 8]
GAVE = {
    ("py1e", 0, 0): [[29, 25, 26, 32, 30, 31, 27, 28, 28], [16, 19, 14, 13, 15, 18, 20, 17, 17],
                     [1, 2, 3, 5, 0, 12, 6, 4, 4], [7, 8, 10, 11, 24, 22, 9, 23, 21]],
    ("py1e", 3, 8): [[32, 28, 27, 26, 30, 31, 31], [18, 19, 20, 13, 15, 17, 17], [2, 6, 1, 4, 5, 0, 0],
                     [8, 21, 11, 23, 7, 24, 22]],
    ("py1br", 3, 8): [[31, 29, 25, 28, 30, 32, 32], [16, 20, 19, 17, 18, 13, 13], [0, 4, 3, 12, 5, 6, 6],
                      [10, 22, 9, 21, 23, 7, 24]],
    ("py1s", 3, 8): [[32, 28, 27, 26, 30, 31, 31], [14, 18, 17, 13, 20, 19, 19], [2, 1, 4, 5, 0, 3, 3],
                     [10, 8, 11, 24, 23, 21, 22]],
    ("py2s", 3, 8): [[25, 31, 28, 30, 26, 29, 29], [15, 20, 18, 19, 16, 14, 14], [5, 4, 2, 1, 3, 13, 13],
                     [22, 24, 7, 10, 8, 11, 9]],
    ("naive", 3, 8): [[2, 16, 22, 26, 10, 29, 29], [20, 7, 27, 11, 31, 12, 12], [4, 9, 13, 5, 23, 15, 15],
                      [3, 6, 19, 18, 17, 21, 30]],
}  # fmt: skip
"""What each of four ranks reads, by (algorithm, epoch, samples read before)."""
STREAMS = [[7, 5], [9], [4, 8]]
MIXED = [
    (
        {"streams": [Stream("a", proportion=1), Stream("b", proportion=2), Stream("c", proportion=4)], "epoch_size": 20},
        [1, 1, 6, 4, 8],
        [4, 9, 12, 13, 14, 16, 18, 19, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32],
    ),
    (
        {"streams": [Stream("a", repeat=1.5), Stream("b", choose=4), Stream("c")]},
        [7, 4, 5, 2, 4, 4, 8],
        [
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            2,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            11,
            7,
            9,
            12,
            17,
            19,
            20,
            21,
            22,
            23,
            24,
            25,
            26,
            27,
            28,
            29,
            30,
            31,
            32,
        ],
    ),
    ({"epoch_size": 14}, [3, 2, 3, 2, 4], [2, 5, 6, 8, 11, 12, 14, 15, 22, 23, 26, 27, 29, 32]),
    (
        {
            "streams": [Stream("a", choose=5), Stream("b", choose=2), Stream("c", repeat=0)],
            "sampling_method": "fixed",
            "shuffle": True,
        },
        [3, 2, 2],
        [0, 3, 5, 9, 10, 12, 13],
    ),
    (
        {
            "streams": [Stream("a", choose=6), Stream("b", choose=10), Stream("c", choose=7)],
            "sampling_granularity": 3,
            "shuffle": True,
        },
        [6, 9, 1, 4, 3],
        [1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 16, 17, 18, 19, 20, 18, 21, 22, 23, 24, 27, 30, 31],
    ),
]
"""Of weighted streams: what is said of them, the units of epoch 2 and its samples, as the library gave them (seed 17)."""


def read(streaming: Streaming, sizes: list[int], epoch: int, first: int = 0) -> list[list[int]]:
    part, order = mosaic.partition(streaming, sum(sizes), first), mosaic.shuffled(streaming, sizes, epoch)
    assert part.why_not() == ""
    ranks = range(streaming.nodes * streaming.ranks_per_node)
    return [order[part.places(rank, 0, part.per_rank)].tolist() for rank in ranks]


@pytest.mark.parametrize(("algorithm", "epoch", "first"), GAVE, ids=str)
def test_each_rank_reads_what_the_library_gives_it(algorithm: str, epoch: int, first: int) -> None:
    streaming = Streaming(
        ranks_per_node=2, batch_size=3, nodes=2, shuffle=True, shuffle_algo=algorithm,  # type: ignore[arg-type]
        shuffle_seed=17, shuffle_block_size=10, num_canonical_nodes=4,
    )  # fmt: skip
    assert read(streaming, SHARDS, epoch, first) == GAVE[algorithm, epoch, first]


def test_samples_are_repeated_where_the_world_does_not_divide_them_as_the_library_repeats_them() -> None:
    """Four nodes that share two canonical ones: both kinds of filling up."""
    assert read(Streaming(ranks_per_node=2, batch_size=3, nodes=4, num_canonical_nodes=2), SHARDS, 0) == [
        [0, 4, 8, 12, 15], [2, 6, 10, 14, 14], [16, 20, 24, 28, 32], [18, 22, 26, 30, 30],
        [1, 5, 9, 13, 15], [3, 7, 11, 15, 15], [17, 21, 25, 29, 31], [19, 23, 27, 31, 31],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "units", "numbers"), MIXED, ids=["proportion", "repeat and choose", "epoch_size", "fixed", "granularity"]
)
def test_an_epoch_of_weighted_streams_has_the_samples_that_the_library_gives_it(
    said: dict[str, Any], units: list[int], numbers: list[int]
) -> None:
    found = mixing.mixed(weighted(**said), STREAMS, 2)
    assert found.units == units
    assert found.numbers is not None and found.numbers.tolist() == numbers


def test_streams_that_are_read_once_each_are_one_data_set() -> None:
    streaming = weighted(streams=[Stream("a"), Stream("b", repeat=1), Stream("c", choose=12)], shuffle=True)
    found = mixing.mixed(streaming, STREAMS, 2)
    assert found.numbers is None and found.units == [7, 5, 9, 4, 8]
    assert mosaic.order(streaming, STREAMS, 2).tolist() == mosaic.shuffled(streaming, [7, 5, 9, 4, 8], 2).tolist()


def weighted(**said: Any) -> Streaming:
    return Streaming(ranks_per_node=1, batch_size=1, shuffle_seed=17, **said)


@given(
    some.sampled_from(("py1e", "py1br", "py1s", "py2s", "naive")), some.lists(some.integers(1, 30), min_size=8), some.data()
)
def test_order_is_a_permutation_and_the_same_for_every_world(algorithm: str, sizes: list[int], data: some.DataObject) -> None:
    epoch = data.draw(some.integers(0, 3))

    def global_order(nodes: int, ranks: int) -> list[int]:
        streaming = Streaming(
            ranks_per_node=ranks, batch_size=1, nodes=nodes, shuffle=True, shuffle_algo=algorithm,  # type: ignore[arg-type]
            num_canonical_nodes=4, shuffle_block_size=8,
        )  # fmt: skip
        by_rank = np.array(read(streaming, sizes, epoch))
        return by_rank.reshape(nodes, ranks, -1).transpose(2, 1, 0).reshape(-1).tolist()

    one = global_order(1, 1)
    assert set(one) == set(range(sum(sizes)))
    assert global_order(2, 1)[: len(one)] == global_order(4, 1)[: len(one)] == one


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": 3, "num_canonical_nodes": 2}, "don't divide each other"),
        ({"num_canonical_nodes": 64}, "too few for 64 canonical nodes"),
        ({"ranks_per_node": 40}, "too few for its 40 ranks"),
        ({"nodes": 32, "num_canonical_nodes": 1}, "too few for 32 nodes"),
        ({"nodes": 16, "num_canonical_nodes": 1}, ""),
    ],
)
def test_world_for_which_there_is_no_order_says_why(changed: dict[str, int], said: str) -> None:
    streaming = Streaming(**{"ranks_per_node": 1, "batch_size": 3, **changed})
    why_not = mosaic.partition(streaming, sum(SHARDS)).why_not()
    assert said in why_not and bool(said) == bool(why_not)


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ("", "needs batches"),
        ('order = "o.npy"\nstreaming = { ranks_per_node = 1, batch_size = 1 }', "streaming alone"),
        ("batches = { world_size = 1, batch_size = 1 }\nstreaming = { ranks_per_node = 1, batch_size = 1 }", "or else"),
        ("streaming = { ranks_per_node = 0, batch_size = 1 }", "ranks_per_node: is less than 1"),
        ("streaming = { ranks_per_node = 1, batch_size = 1, shuffle_block_size = 1 }", "shuffle_block_size"),
        ('streaming = { ranks_per_node = 1, batch_size = 1, shuffle_algo = "py1b" }', "shuffle_algo"),
    ],
)
def test_document_that_gives_no_order_or_two_is_refused(feed: str, said: str) -> None:
    with pytest.raises(InvalidFeed, match=said):
        jobs.parse(f'[feed]\nkind = "mds"\npath = "index.json"\n{feed}', "run.toml", "run")


@pytest.mark.parametrize(
    ("path", "streaming", "said"),
    [
        ('path = "index.json"', 'streams = [{ path = "a" }]', "needs path, or else"),
        ("", "", "needs path, or else"),
        ("", 'streams = [{ path = "a", repeat = 2.0, choose = 3 }]', "row 0: has more than one"),
        ("", 'streams = [{ path = "a" }, { path = "b", choose = -1 }]', "row 1: has more than one .* or no finite one"),
        ("", 'streams = [{ path = "a", repeat = nan }]', "row 0: has more than one .* or no finite one"),
        ("", 'streams = [{ path = "a", proportion = inf }]', "row 0: has more than one .* or no finite one"),
        ("", 'streams = [{ path = "a", proportion = 1.0 }, { path = "b" }]', "in part"),
        ("", 'streams = [{ path = "a", proportion = 0.0 }]', "or all 0"),
        ("", 'streams = [{ path = "a", repeat = 2.0 }]\nepoch_size = 9', "beside epoch_size"),
        ("", 'streams = [{ path = "a" }]\nsampling_granularity = 0', "sampling_granularity.* is less than 1"),
    ],
)
def test_streams_whose_weights_say_nothing_or_two_things_are_refused(path: str, streaming: str, said: str) -> None:
    document = f'[feed]\nkind = "mds"\n{path}\n[feed.streaming]\nranks_per_node = 1\nbatch_size = 1\n{streaming}'
    with pytest.raises(InvalidFeed, match=said):
        jobs.parse(document, "run.toml", "run")
