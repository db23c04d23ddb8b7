"""Names of members by what they have in common, and the orders in which readers go through them.

Pure: no I/O, no clock.

`model.layers.12.attn.q.bias` is member 12 of the pattern `model.layers.*.attn.q.bias`, in the block `model.layers.*.attn`.
"""

from __future__ import annotations

import enum
import re
from array import array
from collections.abc import Iterable, Mapping
from functools import cached_property

from vfs.checkpoints.layout import Layout

_NUMBER = re.compile(r"(?<![^\W_])[0-9]{1,18}(?![^\W_])")
"""A run of digits between separators: `layers.12.`, `expert_3`, `@0,768`, but not `fc1` or `h100`."""


class Order(enum.StrEnum):
    """What a reader follows. Each can be followed backwards."""

    OFFSET = "offset"
    NAME = "name"
    LAYER = "layer"  # all members of a layer, then the next; 9 before 10
    PATTERN = "pattern"  # one pattern through all layers, then the next


def generalise(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the name's pattern and the numbers that stood for its wildcards."""
    numbers = _NUMBER.findall(name)
    return (_NUMBER.sub("*", name), tuple(map(int, numbers))) if numbers else (name, ())


def block(pattern: str) -> str:
    """Return what a pattern shares with its nearest relatives: up to the component after the last wildcard, or "".

    Members of one block of one layer are read together more often than not: q, k, v and o of an attention.
    """
    head, star, tail = pattern.rpartition("*")
    parts = re.match(r"[./]?[^./]+(?=[./])", tail)
    return head + star + parts[0] if star and parts else ""


class Patterns:
    """The patterns of a layout's members. One for all readers of a file.

    Attributes:
        names: one per pattern, in the order of its first member in the file.
        of: pattern of each member.
        numbers: of each member, what stood for the wildcards.
        members: of each pattern, ascending in the file.
        bytes: of each pattern, all its members together.
        relatives: of each pattern, the others of its block.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.names: list[str] = []
        self.of: array[int] = array("l")
        self.numbers: list[tuple[int, ...]] = []
        self.members: list[array[int]] = []
        self.bytes: list[int] = []
        self.index: dict[str, int] = {}
        for member, name in enumerate(layout.names):
            pattern, numbers = generalise(name)
            index = self.index.setdefault(pattern, len(self.names))
            if index == len(self.names):
                self.names.append(pattern)
                self.members.append(array("l"))
                self.bytes.append(0)
            self.of.append(index)
            self.numbers.append(numbers)
            self.members[index].append(member)
            self.bytes[index] += layout.lengths[member]
        self._sequences: dict[Order, tuple[array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _blocks(self) -> Mapping[str, list[int]]:
        blocks: dict[str, list[int]] = {}
        for index, name in enumerate(self.names):
            blocks.setdefault(block(name), []).append(index)
        return blocks

    def relatives(self, pattern: int) -> list[int]:
        """Return the other patterns of its block, in the order of the file."""
        name = block(self.names[pattern])
        return [each for each in self._blocks[name] if each != pattern] if name else []

    def sequence(self, order: Order) -> tuple[array[int], array[int]]:
        """Return (members in this order, rank of each member). Kept: the first call costs a sort."""
        if order not in self._sequences:
            members = array("l", self.sort(order, range(len(self.of)), range(len(self.names))))
            self._sequences[order] = members, ranks(members, len(self.of))
        return self._sequences[order]

    def sort(self, order: Order, members: Iterable[int], places: Mapping[int, int] | range) -> list[int]:
        """Return the members in this order.

        Args:
            places: of each pattern among the patterns, which decides within a layer, or between patterns.
        """
        names, numbers, of = self.layout.names, self.numbers, self.of
        if order is Order.NAME:
            return sorted(members, key=names.__getitem__)
        if order is Order.LAYER:
            return sorted(members, key=lambda member: (numbers[member], places[of[member]], member))
        if order is Order.PATTERN:
            return sorted(members, key=lambda member: (places[of[member]], numbers[member], member))
        return sorted(members)


def ranks(members: Iterable[int], count: int) -> array[int]:
    """Return the place of each of `count` members in the sequence; -1 for those that are not in it."""
    found = array("l", [-1]) * count
    for rank, member in enumerate(members):
        found[member] = rank
    return found
