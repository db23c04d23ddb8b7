"""The order in which MosaicML Streaming reads the samples of a data set, from seed, epoch and world alone.

Pure: no I/O, no clock. Two parts: the *partition* says which place of the epoch a rank reads as its i-th, in closed form, so
that a batch is found without the epoch; the *shuffle* says which sample stands at a place, and needs the whole epoch.

Equal to the library's only where NumPy's generators are: they are part of its order (NEP 19).

Source:
    `get_partitions_orig` and the five shuffles of mosaicml-streaming 0.13.0, written anew from what they compute;
    compared in tests/frameworks/test_mosaic.py with the library, in tests/unit/test_samples_mosaic.py with what it gave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vfs.samples.feeds import mixing
from vfs.samples.jobs import Streaming

Numbers = npt.NDArray[np.int64]
_Span = tuple[int, int]
_BLOCK_LEAST = 1 << 18
_BLOCKS_OF_ALL_NODES = 4_000_000
_CANONICAL_PER_NODE = 64
"""Of the algorithms that shuffle within shards; the others take one for each node. All three are the library's defaults."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Which place of an epoch each rank reads as its i-th.

    Attributes:
        samples: of the data set.
        canonical: nodes that the epoch is cut for, whatever nodes there are.
        nodes, ranks_per_node: of the world.
        first: places that were read before, a multiple of `nodes`.
    """

    samples: int
    canonical: int
    nodes: int
    ranks_per_node: int
    first: int = 0

    @property
    def per_rank(self) -> int:
        """Return how many samples each rank reads; all read as many, the last ones are repeated for it."""
        return max(0, math.ceil(self._per_node / self.ranks_per_node))

    def why_not(self) -> str:
        """Return why there is no such partition, or ""."""
        if max(self.canonical, self.nodes) % min(self.canonical, self.nodes):
            return f"{self.canonical} canonical and {self.nodes} nodes don't divide each other"
        if self.samples <= self.canonical and (self.samples < self.canonical or self.canonical < self.nodes):
            return f"{self.samples} samples are too few for {self.canonical} canonical nodes"
        if self._row - self._ratio + 1 < self._padding:
            return f"{self.samples} samples are too few for {self.nodes} nodes"
        if self._per_node and self._missing and self.ranks_per_node + self._missing - 1 > self._per_node:
            return f"{self._per_node} samples of a node are too few for its {self.ranks_per_node} ranks"
        return ""

    def places(self, rank: int, start: int, stop: int) -> Numbers:
        """Return the places of a rank's samples [start, stop) of `per_rank`."""
        node, within = divmod(rank, self.ranks_per_node)
        of_node = np.arange(start, stop, dtype=np.int64) * self.ranks_per_node + within
        beyond = of_node - self._per_node
        of_node = np.where(beyond < 0, of_node, self._per_node - self.ranks_per_node - self._missing + 1 + beyond)
        column, row = np.divmod(self.first + of_node * self.nodes + node, self.canonical)
        beyond = column - self._row
        column = np.where(beyond < 0, column, self._row - self._ratio + 1 - self._padding + beyond)
        begin, end = row * self.samples // self.canonical, (row + 1) * self.samples // self.canonical
        is_short = (column == self._row - 1) & (end - begin < self._row)
        places: Numbers = begin + column - is_short
        return places

    @property
    def _row(self) -> int:
        return math.ceil(self.samples / self.canonical)

    @property
    def _ratio(self) -> int:
        return max(1, self.nodes // self.canonical)

    @property
    def _padding(self) -> int:
        return -self._row % self._ratio

    @property
    def _per_node(self) -> int:
        return (self.canonical * (self._row + self._padding) - self.first) // self.nodes

    @property
    def _missing(self) -> int:
        return -self._per_node % self.ranks_per_node


def partition(streaming: Streaming, samples: int, first: int = 0) -> Partition:
    """Return the partition of one epoch.

    Args:
        first: samples of the epoch that were read before.
    """
    nodes = streaming.nodes
    return Partition(samples, canonical_nodes(streaming), nodes, streaming.ranks_per_node, first - first % nodes)


def batch_count(streaming: Streaming, per_rank: int) -> int:
    """Return how many batches each rank reads: DataLoader workers take turns, which gives them in their order."""
    return per_rank // streaming.batch_size if streaming.drop_last else math.ceil(per_rank / streaming.batch_size)


def canonical_nodes(streaming: Streaming) -> int:
    """Return how many canonical nodes there are."""
    in_shards = streaming.shuffle_algo in ("py1s", "py2s")
    return streaming.num_canonical_nodes or streaming.nodes * (_CANONICAL_PER_NODE if in_shards else 1)


def order(streaming: Streaming, streams: Sequence[mixing.Shards], epoch: int) -> Numbers:
    """Return the sample at each place of an epoch: what its streams give, shuffled."""
    found = mixing.mixed(streaming, streams, epoch)
    places = shuffled(streaming, found.units, epoch)
    return places if found.numbers is None else found.numbers[places]


def shuffled(streaming: Streaming, shard_sizes: Sequence[int], epoch: int) -> Numbers:
    """Return the sample at each place of an epoch that is these shards, or units in their place.

    Cost:
        O(samples). py1e of 10 million: 1.9 s of CPU time, 20 bytes of memory for each while it works (2026-11-30).
    """
    canonical, seed = canonical_nodes(streaming), streaming.shuffle_seed
    block = streaming.shuffle_block_size or max(_BLOCKS_OF_ALL_NODES // canonical, _BLOCK_LEAST)
    if not streaming.shuffle:
        return np.arange(sum(shard_sizes), dtype=np.int64)
    if streaming.shuffle_algo == "naive":
        return np.random.default_rng(seed + epoch).permutation(sum(shard_sizes))
    if streaming.shuffle_algo == "py2s":
        return _twice_in_shards(shard_sizes, canonical, seed, epoch)
    nodes, rng = _spans_of_nodes(shard_sizes, canonical, seed, epoch)
    return _SHUFFLES[streaming.shuffle_algo](nodes, rng, block)


def _spans_of_nodes(
    shard_sizes: Sequence[int], canonical: int, seed: int, epoch: int
) -> tuple[list[list[_Span]], np.random.Generator]:
    """Return the shards, or parts of them, of each canonical node in this epoch's order, and its generator."""
    ends = np.cumsum(shard_sizes).tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    np.random.default_rng(seed).shuffle(spans)
    nodes = _cut(spans, canonical)
    rng = np.random.default_rng(seed + epoch)
    for node in nodes:
        rng.shuffle(node)
    return nodes, rng


def _cut(spans: Sequence[_Span], parts: int) -> list[list[_Span]]:
    """Return the spans in `parts` runs of equal length, cut where one ends."""
    total = sum(end - start for start, end in spans)
    found: list[list[_Span]] = [[] for _ in range(parts)]
    at, part = 0, 0
    for start, end in spans:
        while start < end:
            while at >= total * (part + 1) // parts:
                part += 1
            taken = min(end - start, total * (part + 1) // parts - at)
            found[part].append((start, start + taken))
            start, at = start + taken, at + taken
    return found


def _within_shards(nodes: list[list[_Span]], rng: np.random.Generator, block: int) -> Numbers:
    """py1s: each span for itself."""
    return np.concatenate([_shuffled_span(span, rng) for node in nodes for span in node])


def _in_expanded_ranges(nodes: list[list[_Span]], rng: np.random.Generator, block: int) -> Numbers:
    """py1e: each span for itself, then its samples move by less than half a block within their node."""
    found = []
    for node in nodes:
        samples = np.concatenate([_shuffled_span(span, rng) for span in node])
        moved = np.arange(len(samples), dtype=np.float64)
        at = 0
        for start, end in node:
            size = end - start
            reach = max(0, (_block_of(block, rng) - size) / 2)
            shifts = rng.uniform(low=max(-reach, -at), high=min(reach, len(samples) - at - size), size=size)
            moved[at : at + size] += shifts
            at += size
        found.append(samples[np.argsort(moved)])
    return np.concatenate(found)


def _in_blocks(nodes: list[list[_Span]], rng: np.random.Generator, block: int) -> Numbers:
    """py1br: blocks of a node, each for itself; they begin staggered from node to node."""
    staggers = rng.integers(0, int(0.75 * block), (len(nodes),))
    found = []
    for node, stagger in zip(nodes, staggers, strict=True):
        samples = np.concatenate([np.arange(start, end) for start, end in node])
        blocks, at = [], 0
        while at < len(samples):
            size = _block_of(block, rng)
            first, last = max(0, at - stagger), min(len(samples), at + size - stagger)
            blocks.append((first, last))
            at += last - first
        for first, last in blocks:
            rng.shuffle(samples[first:last])
        found.append(samples)
    return np.concatenate(found)


def _twice_in_shards(shard_sizes: Sequence[int], canonical: int, seed: int, epoch: int) -> Numbers:
    """py2s: shards and their samples once for the run, then within each canonical node once more for the epoch."""
    ends = np.cumsum(shard_sizes)
    shards = [np.arange(end - size, end) for end, size in zip(ends, shard_sizes, strict=True)]
    rng = np.random.default_rng(seed)
    rng.shuffle(shards)
    for shard in shards:
        rng.shuffle(shard)
    order = np.concatenate(shards)
    stops = np.cumsum([len(shard) for shard in shards]).tolist()
    nodes = _cut(list(zip([0, *stops[:-1]], stops, strict=True)), canonical)
    rng = np.random.default_rng(seed + epoch)
    found = []
    for node in nodes:
        rng.shuffle(node)
        for start, end in node:
            rng.shuffle(order[start:end])
            found.append(order[start:end])
    return np.concatenate(found)


def _shuffled_span(span: _Span, rng: np.random.Generator) -> Numbers:
    samples = np.arange(*span, dtype=np.int64)
    rng.shuffle(samples)
    return samples


def _block_of(size: int, rng: np.random.Generator) -> int:
    return int(rng.integers(int(0.75 * size), int(1.25 * size)))


_SHUFFLES: dict[str, Callable[[list[list[_Span]], np.random.Generator, int], Numbers]] = {
    "py1s": _within_shards,
    "py1e": _in_expanded_ranges,
    "py1br": _in_blocks,
}
