"""Which samples an epoch of a `StreamingDataset` consists of: of which streams, and which of them twice or not at all.

Pure: no I/O, no clock. Partition and shuffle (`vfs/samples/feeds/mosaic.py`) see an epoch that is made of *units*: a shard,
as often as it is read whole, and a part of it. What stands in them is found by number afterwards.

Equal to the library's only where NumPy's generators are.

Source:
    `Stream.apply_weights`, `get_sampling` and `StreamingDataset.resample_streams` of mosaicml-streaming 0.13.0, written anew
    from what they compute; compared in tests/frameworks/test_mosaic.py with the library, in
    tests/unit/test_samples_mosaic.py with what it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfs.samples.jobs import Streaming

Numbers = npt.NDArray[np.int64]
Shards = Sequence[int]
"""Samples of each shard of one stream."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """One epoch before it is shuffled.

    Attributes:
        units: samples of each, in place of shards.
        numbers: of the samples at each place; None: the places themselves.
    """

    units: Sequence[int]
    numbers: Numbers | None


def chosen(streaming: Streaming, streams: Sequence[Shards]) -> list[int]:
    """Return how many samples of each stream an epoch has."""
    given, sizes = streaming.streams, [sum(shards) for shards in streams]
    if given and given[0].proportion is not None:
        return _divided(
            streaming.epoch_size or sum(sizes), [each.proportion or 0.0 for each in given], streaming.shuffle_seed
        )
    if streaming.epoch_size:  # beside it there are no weights
        return _divided(streaming.epoch_size, sizes, streaming.shuffle_seed)
    found = []
    for index, size in enumerate(sizes):
        each = given[index] if given else None
        if each is not None and each.repeat is not None:
            found.append(int(each.repeat * size))
        else:
            found.append(size if each is None or each.choose is None else each.choose)
    return found


def mixed(streaming: Streaming, streams: Sequence[Shards], epoch: int) -> Mixed:
    """Return the units of an epoch and what stands in them.

    Cost:
        O(samples of the epoch), nothing where each is read once.
    """
    counts = chosen(streaming, streams)
    if counts == [sum(shards) for shards in streams]:
        return Mixed([size for shards in streams for size in shards], None)
    balanced = streaming.sampling_method == "balanced"
    rng = np.random.default_rng(streaming.shuffle_seed + (epoch if balanced else 0))
    picking = streaming.shuffle_seed + (epoch if balanced and streaming.shuffle else 0)
    units: list[int] = []
    numbers: list[Numbers] = [np.empty(0, np.int64)]
    first = 0
    for shards, count in zip(streams, counts, strict=True):
        for size, taken in zip(shards, _of_shards(shards, count, streaming.sampling_granularity, picking), strict=True):
            whole, part = divmod(taken, size)
            units += [size] * whole + [part] * (part > 0)
            numbers += [np.arange(first, first + size, dtype=np.int64)] * whole
            if part:
                numbers.append(first + np.sort(rng.choice(size, part, False)))
            first += size
    return Mixed(units, np.concatenate(numbers))


def _divided(count: int, weights: Sequence[float], seed: int) -> list[int]:
    """Return `count` in parts by weight; what rounding leaves goes to some that are drawn."""
    shares = np.array(weights, np.float64)
    parts = (count * (shares / shares.sum())).astype(np.int64)
    parts[np.random.default_rng(seed).choice(len(parts), count - parts.sum(), False)] += 1
    return [int(part) for part in parts]


def _of_shards(shards: Shards, count: int, granularity: int, seed: int) -> list[int]:
    """Return how many samples of each shard are among `count` of their stream: each sample equally often, some once more."""
    sizes = np.array(shards, np.int64)
    often, rest = divmod(count, int(sizes.sum()))
    found = sizes * often
    if rest:
        picks = -(-sizes // granularity)
        shard_of = np.repeat(np.arange(len(sizes)), picks)
        size_of = np.full(len(shard_of), granularity)
        size_of[np.cumsum(picks) - 1] = sizes - (picks - 1) * granularity
        order = np.random.default_rng(seed).permutation(len(shard_of))
        taken = np.diff(np.minimum(np.cumsum(size_of[order]), rest), prepend=0)
        np.add.at(found, shard_of[order], taken)
    return [int(each) for each in found]
