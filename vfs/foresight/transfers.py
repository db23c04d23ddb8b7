"""How a copy is carried out: in which order, what goes together, where it lies, and which bytes of a file.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from vfs.checkpoints.manifest import ManifestFile
from vfs.extents.layout import BLOCK
from vfs.foresight.model import ReplicaRecord
from vfs.model import SitePath, join

TINY_BYTES = 256 << 10
"""Smaller files go together: at 1 Gbit/s and 100 ms such a file takes fifty times as long to ask for as to send."""
PACK_BYTES = 8 << 20
PACK_FILES = 256
OUTSIDE = "=lake"
"""Directory in the copy for files of a checkpoint that lie outside of its own; savers give no such name."""
Range = tuple[int, int]


def batches(files: Iterable[ManifestFile]) -> list[list[ManifestFile]]:
    """Return the files in the order in which they are sent: large ones alone, the largest first, then tiny ones together.

    The largest first, because what is begun last decides when all is there.
    """
    large: list[ManifestFile] = []
    tiny: list[ManifestFile] = []
    for file in files:
        (tiny if file.size < TINY_BYTES else large).append(file)
    found = [[file] for file in sorted(large, key=lambda file: -file.size)]
    pack: list[ManifestFile] = []
    size = 0
    for file in sorted(tiny, key=lambda file: file.at):
        if pack and (len(pack) == PACK_FILES or size + file.size > PACK_BYTES):
            found.append(pack)
            pack, size = [], 0
        pack.append(file)
        size += file.size
    return [*found, pack] if pack else found


def share_of_cpu_s(spent_s: float, own_bytes: int, all_bytes: int) -> float:
    """Return what of a process's CPU time goes to bytes of its own, where it has moved others meanwhile.

    Who reads through the same process, and the copies beside this one, bear theirs; what a process does without moving bytes
    is shared alike.
    """
    return spent_s * min(1.0, own_bytes / all_bytes) if all_bytes else spent_s


def place_in_copy(root: SitePath, path: str) -> SitePath:
    """Return where a file of a checkpoint lies in its copy.

    Args:
        path: as in the manifest: relative, absolute in the lake with a leading slash, or "" for a copy of one file.
    """
    return SitePath(join(root, OUTSIDE + path if path.startswith("/") else path or "content"))


def whole_blocks(ranges: Iterable[Range], size: int) -> list[Range]:
    """Return the blocks that the ranges touch as disjoint ascending ranges: what is cached and digested is blocks."""
    found: list[tuple[int, int]] = []  # [start, end)
    for offset, length in sorted(ranges):
        start, end = offset // BLOCK * BLOCK, min(size, -(-(offset + length) // BLOCK) * BLOCK)
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return [(start, end - start) for start, end in found]


def ranges_of(replica: ReplicaRecord, file: ManifestFile) -> list[Range]:
    """Return the ranges of a file that the replica multiplies; empty: the whole file."""
    path = join(replica.path, file.path) if file.path else replica.path
    hot = [each for each in replica.hot if each.path == path]
    if not hot or any(not each.length for each in hot):
        return []
    return whole_blocks([(each.offset, each.length) for each in hot], file.size)


def place_in_ranges(ranges: Sequence[Range], offset: int, length: int) -> int | None:
    """Return where bytes of a file lie in a copy that holds these ranges one after another; None: not, or not in one piece.

    Args:
        ranges: disjoint and ascending; empty: the copy is of the whole file.
    """
    if not ranges:
        return offset
    index = bisect_right(ranges, offset, key=lambda each: each[0]) - 1
    if index < 0 or offset + length > sum(ranges[index]):
        return None
    return sum(each[1] for each in ranges[:index]) + offset - ranges[index][0]


def pieces_of_content(ranges: Sequence[Range], offset: int, length: int) -> list[Range]:
    """Return the ranges of the file that bytes of the copy are made of, in order; the reverse of `place_in_ranges`."""
    if not ranges:
        return [(offset, length)]
    found, before = [], 0
    for start, size in ranges:
        first, last = max(offset, before), min(offset + length, before + size)
        if first < last:
            found.append((start + first - before, last - first))
        before += size
    return found
