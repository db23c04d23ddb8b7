"""What one load of a checkpoint teaches about the next one, of another step, with other sizes and layer counts.

Pure: no I/O, no clock. Names, never bytes.
"""

from __future__ import annotations

import msgspec

from vfs.checkpoints.patterns import Order, Patterns


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """How a layout was read.

    Attributes:
        format: of the layout.
        patterns: that were read, in the order of their first read.
        order: that the reader followed.
        backwards: it followed it from the end.
        whole: the share of the file's bytes that was read, 0 to 1.
        before, after: bytes that its reads reached beyond a member on either side: what the kernel reads around a fault.
    """

    format: str
    patterns: tuple[str, ...]
    order: Order = Order.OFFSET
    backwards: bool = False
    whole: float = 0.0
    before: int = 0
    after: int = 0

    def apply(self, patterns: Patterns) -> list[int]:
        """Return the members of a layout that such a load reads, in its order; empty if it has none of the patterns."""
        known = {name: place for place, name in enumerate(self.patterns)}
        places = {index: known[name] for name, index in patterns.index.items() if name in known}
        members = [member for index in places for member in patterns.members[index]]
        if not self.backwards:
            return patterns.sort(self.order, members, places)
        ascending = {index: -place for index, place in places.items()}
        return patterns.sort(self.order, members, ascending)[::-1]

    def since(self, earlier: Learned | None, patterns: Patterns) -> Learned:
        """Return this with what an earlier load read and the layout of this one does not have: another shard's patterns."""
        if earlier is None or earlier.format != self.format:
            return self
        kept = (name for name in earlier.patterns if name not in patterns.index and name not in self.patterns)
        return msgspec.structs.replace(self, patterns=(*self.patterns, *kept))
