"""Files that belong together and differ by a number: the shards of a checkpoint.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from vfs.checkpoints.patterns import generalise


def following(name: str, beside: Iterable[str], before: str | None = None) -> list[str]:
    """Return the files that a reader of the series comes to after this one, the next one first.

    Args:
        beside: names in the directory, in any order.
        before: what was opened of the series before this one. Its place says which way the reader goes; a reader that begins
            with the last one goes backwards.
    """
    pattern, numbers = generalise(name)
    if not numbers:
        return []
    series = sorted((found[1], each) for each in beside if (found := generalise(each))[0] == pattern)
    later = [each for place, each in series if place > numbers]
    earlier = [each for place, each in series if place < numbers]
    is_backwards = not later if before is None else generalise(before)[1] > numbers
    return earlier[::-1] if is_backwards else later
