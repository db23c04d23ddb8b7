"""What many ranks will read at once when a job starts, from its parallel plan: which bytes, and how many readers each has.

Pure: no I/O, no clock.

Two kinds are hot. The global metadata is read by every rank. A tensor that ranks hold replicated is saved once and read by
all of them: its readers are counted from the tensor -> rank map; what that does not name is taken to be sharded, each part
read by few, and is spread over the files by the saver already. Only ranges with more readers than the copies bear that there
are anyway are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vfs.checkpoints.layout import Layout
from vfs.config import READERS_PER_COPY
from vfs.extents.layout import BLOCK
from vfs.foresight.model import HotRange, TensorRanks
from vfs.model import LakePath, join

METADATA_NAMES = (".metadata", "common.pt", "metadata.json", ".global_metadata", "model.safetensors.index.json")
"""Files that every rank reads, by the savers that write them: DCP, Megatron, ByteCheckpoint, and the index of shards."""
COPIES_ANYWAY = 3
"""What a data lake keeps of every file (PROBLEM.md A2)."""


def readers_of(ranks: Iterable[tuple[int, int, int]]) -> int:
    """Return how many ranks the ranges (start, end, step) name; one that is named twice counts once."""
    found: set[int] = set()
    for start, end, step in ranks:
        found.update(range(start, end, max(1, step)))
    return len(found)


def hot_ranges(
    path: LakePath,
    world_size: int,
    tensors: Sequence[TensorRanks],
    names: Iterable[str],
    layouts: Mapping[str, Layout],
    *,
    bears: int = READERS_PER_COPY,
    copies: int = COPIES_ANYWAY,
) -> list[HotRange]:
    """Return the hot bytes of a checkpoint, the most wanted first.

    Args:
        path: its directory.
        names: of its files, relative to it.
        layouts: where tensors lie, by file, as far as they are known.
        bears: readers that one copy bears.
        copies: that there are of every file anyway.

    Returns:
        Ranges with more readers than `bears * copies`; whole files have length 0. Those that share a block are one: with
        10**5 tensors a record would otherwise be larger than what it tells of.
    """
    most = bears * copies
    found = [
        HotRange(LakePath(join(path, name)), readers=world_size)
        for name in names
        if name.rpartition("/")[2] in METADATA_NAMES and world_size > most
    ]
    readers = {each.tensor: readers_of(each.ranks) for each in tensors}
    for name, layout in layouts.items():
        crowds = [(member, readers.get(member.name, 0)) for member in layout]
        if any(count > most for _, count in crowds) and layout.header[1]:
            widest = max(count for _, count in crowds)
            found.append(HotRange(LakePath(join(path, name)), *layout.header, widest))
        found += [
            HotRange(LakePath(join(path, name)), member.offset, member.length, count)
            for member, count in crowds
            if count > most
        ]
    found = _joined(found)
    return sorted(found, key=lambda each: (-each.readers, each.path, each.offset))


def _joined(ranges: list[HotRange]) -> list[HotRange]:
    """Return the ranges with those of one file and as many readers that touch or share a block made one."""
    joined: list[HotRange] = []
    for each in sorted(ranges, key=lambda each: (each.path, each.readers, each.offset)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and each.length
            and last.length
            and (last.path, last.readers) == (each.path, each.readers)
            and each.offset // BLOCK <= -(-(last.offset + last.length) // BLOCK)
        ):
            end = max(last.offset + last.length, each.offset + each.length)
            joined[-1] = HotRange(last.path, last.offset, end - last.offset, last.readers)
        else:
            joined.append(each)
    return joined
