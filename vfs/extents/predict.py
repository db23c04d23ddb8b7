"""Which members of a file will be read next: a read in, ranges to fetch ahead out.

Pure: no I/O, no clock.

A read says which members are *wanted* (`evidence.py`): the kernel reads more than was asked for, and what it spilt into a
neighbour must not count. A wanted member makes its pattern wanted, and with it the members of that pattern in all layers,
nearest first in the order that the reader follows (`follow.py`). A pattern is believed at its first wanted member: waiting
for a second would cost a round trip per pattern, believing wrongly costs what the window holds, and members that come due
unread take the pattern back. What is cheap next to what is wanted anyway is fetched on suspicion.

How far ahead is a matter of trust: all of the caller's limit for a reader that goes from one member to the next, a 16th of
it at the first read, as other patterns of the same layer may come to be wanted right then, nothing for one that jumps about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from vfs.checkpoints.layout import Layout
from vfs.checkpoints.learned import Learned
from vfs.checkpoints.patterns import Patterns
from vfs.extents.evidence import Evidence
from vfs.extents.follow import Follow
from vfs.extents.readahead import LONG_RUN_BYTES
from vfs.extents.spans import Spans

Range = tuple[int, int]
"""(offset, length)."""

_PAGE = 4096
_AT_ONCE_MAX = 512
"""Members of a suspected pattern that are handed out before all others: the biases and norms of a checkpoint's layers."""
_KIN = 16
"""Times as large as what was read: q beside a k of few heads, but no matrix beside a bias."""
_WAITS_MAX = 16
"""Times that a member near a reader may come due before it counts as missed."""
_LOOKED_AT_MAX = 2048
"""Members of the queue that are looked at for one read, a millisecond: most of them may have been handed out before."""
_INTERVALS_MAX = 50_000
"""Separate intervals read of one file: beyond, its reads are scattered, and the books of them cost more than they give."""


class PredictionKnobs(msgspec.Struct, frozen=True):
    """How readily members are fetched ahead.

    Attributes:
        around_bytes: that the kernel reads before a page that is missing in a mapped file: half its read-around, which is
            twice `read_ahead_kb` after fadvise(SEQUENTIAL). A member at least so long is wanted when its head is read.
        ahead_bytes: that the kernel reads beyond what was touched: the window in use and the one after it.
        suspicion: bytes fetched for patterns nobody has read yet, per byte of the patterns that are wanted: all biases.
        suspicion_beside_bytes: for what else the block of one layer has, if more: the first q, v and o come with the first k,
            three round trips earlier. 8 MiB pass in less than one at 1 Gbit/s.
        suspicion_behind: of the bytes of what is wanted first, if it has no layer: fetched of what comes behind it. An
            embedding takes the line half a second in which nothing shows what else is wanted.
        limit_bytes: handed out and not yet read, where the caller names no other.
        misses_max: members of a pattern that come due unread, in a row, before the pattern is given up.
        unread_max: bytes never read per byte that was, beyond which the prediction gives up, once `judged_bytes` are due.
    """

    around_bytes: int = 128 << 10
    ahead_bytes: int = 512 << 10
    suspicion: float = 0.06
    suspicion_beside_bytes: int = 8 << 20
    suspicion_behind: float = 0.1
    limit_bytes: int = 256 << 20
    misses_max: int = 3
    unread_max: float = 0.5
    judged_bytes: int = 16 << 20


class Prediction:
    """What will be read of one file.

    Args:
        learned: what an earlier load of such a file taught. With it the first read predicts everything.
        whole: policy says that all of it will be read.
        patterns: those of the layout, if another reader of the file has them already.

    Invariants: no byte is handed out twice, or outside the file; what is outstanding is at most the caller's limit; once it
    is off, it stays off.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        learned: Learned | None = None,
        whole: bool = False,
        patterns: Patterns | None = None,
        knobs: PredictionKnobs | None = None,
    ) -> None:
        self.layout = layout
        self.patterns = patterns or Patterns(layout)
        self._knobs = knobs or PredictionKnobs()
        self._taught = learned
        self._whole = whole
        self._known: list[int] = (
            learned.apply(self.patterns) if learned is not None and learned.format == layout.format else []
        )
        self._evidence = Evidence(layout, around_bytes=self._knobs.around_bytes, ahead_bytes=self._knobs.ahead_bytes)
        self._follow = Follow(self.patterns)
        self._wanted: dict[int, None] = {}  # patterns in the order of their first wanted member
        self._suspected: set[int] = set()
        self._weak: dict[int, int] = {}  # pattern → reads that covered a small member of it and perhaps meant another
        self._misses: dict[int, int] = {}
        self._done = bytearray(len(layout))  # of each member: whether all of it was handed out, or read before
        self._asked = Spans()
        self._live = Spans()  # asked, not read, not yet due
        self._due: deque[tuple[int, int]] = deque()  # (observations by which it should be read, member)
        self._waits: dict[int, int] = {}
        self._begun: set[int] = set()  # members that came due while they were being read
        self._current: deque[int] = deque()  # wanted members, and what goes along, not handed out to their end
        self._urgent: deque[int] = deque()  # before the queue: on suspicion, or what was cut
        self._queue: Iterator[int] = iter(())
        self._is_drained = False
        self._ran_to = 0
        self._suspicion_bytes = 0
        self._reached: deque[int] = deque(maxlen=4)
        self._before, self._after = (learned.before, learned.after) if learned is not None else (0, 0)
        self._predicted = self._hit = self._overdue = 0
        self._observed = 0
        self._taken: list[Range] = []
        self._off = ""
        self._plan()

    @property
    def is_off(self) -> bool:
        """Return whether it gave up; `explain` says why."""
        return bool(self._off)

    @property
    def is_drained(self) -> bool:
        """Return whether everything that is believed to be wanted was handed out."""
        return self._is_drained

    @property
    def predicted_bytes(self) -> int:
        """Return what was handed out, without what had been read already."""
        return self._predicted

    @property
    def unread_bytes(self) -> int:
        """Return what was handed out and not read; when the file is closed, what never was."""
        return self._predicted - self._hit

    @property
    def outstanding_bytes(self) -> int:
        """Return what was handed out and is expected to be read."""
        return self._live.total

    def wanted_bytes(self) -> int:
        """Return the size of all members that are believed to be wanted."""
        if self._whole:
            return sum(self.layout.lengths)
        known = {self.patterns.of[member] for member in self._known}
        return sum(self.patterns.bytes[pattern] for pattern in known | self._wanted.keys() | self._suspected)

    def read(self, offset: int, length: int, *, limit_bytes: int | None = None, room_bytes: int | None = None) -> list[Range]:
        """Note a read, as the kernel sends it; return the ranges to fetch ahead now, those needed first before the others.

        Args:
            limit_bytes: what may be outstanding after this call.
            room_bytes: see `more`.

        Returns:
            Members, or parts of those larger than the limit, widened by what the kernel reads around them.
        """
        end = min(offset + length, self.layout.size)
        offset = max(0, offset)
        if offset >= end:
            return []
        if self._off:
            self.pushed(offset, end - offset)
            return []
        seen = self._evidence.read(offset, end)
        for start, stop in seen.new:
            self._hit += self._asked.measure(start, stop)
            self._live.remove(start, stop)
        for pattern in {self.patterns.of[member] for member in seen.covered}:
            self._weak[pattern] = self._weak.get(pattern, 0) + 1
            self._suspect(pattern)
        if seen.wanted:
            self._observed += 1
        for place, member in enumerate(seen.wanted):
            is_end = place in (0, len(seen.wanted) - 1)
            self._observe(member, seen.new, jumped=seen.jumped and place == 0, is_end=is_end, is_along=place > 0)
        if seen.wanted and not seen.jumped and seen.run_bytes >= LONG_RUN_BYTES:
            self._follow.runs_on()
        self._collect_due()
        self._judge()
        if self._off:
            return []
        limit = self._knobs.limit_bytes if limit_bytes is None else limit_bytes
        return self._hand_out(limit, room_bytes) + self._run_on(end, seen.run_bytes, limit)

    def teach(self, learned: Learned) -> None:
        """Take in what the reader of another shard wants; what was handed out stays so."""
        if learned.format == self.layout.format:
            self._taught, self._known = learned, learned.apply(self.patterns)
            self._before, self._after = max(self._before, learned.before), max(self._after, learned.after)
            self._plan()

    def more(self, limit_bytes: int, room_bytes: int | None = None) -> list[Range]:
        """Return what to fetch next though nothing was read since: the line has room, or it was taught what is wanted.

        Args:
            limit_bytes: what may be outstanding after this call.
            room_bytes: what the line takes now, to the end of a member. What is fetched too early goes before what turns out
                to be needed first; where the order is known nothing does, and it does not count. None: any amount.
        """
        return [] if self._off else self._hand_out(limit_bytes, room_bytes)

    def window(self, limit_bytes: int) -> int:
        """Return what may be outstanding, of the caller's limit, as far as this reader is trusted."""
        window = limit_bytes if self._is_sure() else int(limit_bytes * self._follow.trust**2)
        return window - max(0, self._overdue - self._hit // 4)

    def _is_sure(self) -> bool:
        return self._whole or (bool(self._known) and self._follow.is_known_order and not self._follow.jumps)

    def taken(self) -> list[Range]:
        """Return the members that were handed out since the last call, without what the kernel reads around them."""
        taken, self._taken = self._taken, []
        return taken

    def pushed(self, offset: int, length: int) -> None:
        """Note that these bytes lie in the page cache: they will be read without anybody telling."""
        if self._evidence.intervals_count <= _INTERVALS_MAX:
            self._hit += sum(self._asked.measure(*new) for new in self._evidence.push(offset, offset + length))
        self._live.remove(offset, offset + length)

    def read_so_far(self) -> list[Range]:
        """Return what was read, ascending."""
        return [(start, end - start) for start, end in self._evidence.intervals()]

    def learned(self) -> Learned | None:
        """Return what this load taught, to be kept for the next one; None: nothing, or it followed no order."""
        read = [] if self._off else self._read_patterns()
        if not read:
            return None
        found = self._lesson(read)
        return found.since(self._taught, self.patterns)

    def believed(self) -> Learned:
        """Return what is known so far, for the next shard: what its reader is believed to want."""
        return self._lesson(
            [*self._wanted, *self._suspected] or [*dict.fromkeys(self.patterns.of[each] for each in self._known)]
        )

    def _lesson(self, patterns: list[int]) -> Learned:
        """Return these patterns with the order and the margins that were seen."""
        order, backwards = self._follow.order()
        if self._known and self._follow.is_known_order and self._taught is not None:
            order, backwards = self._taught.order, self._taught.backwards
        return Learned(
            self.layout.format,
            tuple(self.patterns.names[pattern] for pattern in patterns),
            order,
            backwards,
            round(self._evidence.read_bytes / max(1, self.layout.size), 3),
            self._before,
            self._after,
        )

    def order(self) -> list[str]:
        """Return the patterns that were read, in the order of their first read."""
        return [self.patterns.names[pattern] for pattern in self._read_patterns()]

    def explain(self) -> dict[str, Any]:
        """Return the state as `explain` shows it."""
        order, backwards = self._follow.order()
        return {
            "format": self.layout.format,
            "members": len(self.layout),
            "patterns_wanted": [self.patterns.names[pattern] for pattern in [*self._wanted][:50]],
            "from": "policy" if self._whole else "an earlier load" if self._known else "this load",
            "order": f"{order}{', backwards' if backwards else ''}",
            "trust": round(self._follow.trust, 3),
            "members_seen": self._observed,
            "wanted_bytes": self.wanted_bytes(),
            "predicted_bytes": self._predicted,
            "unread_bytes": self.unread_bytes,
            "outstanding_bytes": self._live.total,
            "margins": (self._before, self._after),
            "off": self._off,
        }

    # What is wanted

    def _observe(self, member: int, new: list[Range], *, jumped: bool, is_end: bool, is_along: bool) -> None:
        """Take in that a member is wanted; of those that one read shows, the first and the last one tell the order.

        Args:
            new: intervals that the read brought.
            is_along: a member before it in the file came with the same read.
        """
        pattern = self.patterns.of[member]
        is_new = pattern not in self._wanted
        if is_new:
            self._wanted[pattern] = None
            if pattern in self._suspected:
                self._suspected.discard(pattern)
        self._misses[pattern] = 0
        self._measure_margins(member)
        turned = is_end and self._follow.observe(member, self._believed(), jumped=jumped, is_first=is_new, is_along=is_along)
        self._current.append(member)
        if len(self._wanted) == 1 and is_new and not self.patterns.numbers[member]:
            self._take_along(member)
        if is_new:
            for relative in self.patterns.relatives(pattern):
                self._suspect(relative, beside=member)
            for weak in [*self._weak]:
                self._suspect(weak)
        if is_new or turned or self._is_surprise(member, new):
            self._plan()

    def _is_surprise(self, member: int, new: list[Range]) -> bool:
        """Return whether a member was read of which nothing had been handed out, nor read beside another one before."""
        begin = self.layout.offsets[member]
        end = begin + self.layout.lengths[member]
        return not self._asked.measure(begin, end) and any(start < end and begin < stop for start, stop in new)

    def _believed(self) -> set[int]:
        return self._suspected | self._wanted.keys()

    def _suspect(self, pattern: int, *, beside: int | None = None) -> None:
        """Fetch a pattern, or its member in the layer being read, though nobody has read it, as far as it is cheap."""
        if pattern in self._wanted or pattern in self._suspected or not self._wanted:
            return
        if self._weak.get(pattern, 0) >= 2:  # the kernel reads it beside what is wanted, so it has to come anyway
            self._suspected.add(pattern)
            self._plan()
            return
        wanted = sum(self.patterns.bytes[each] for each in self._wanted)
        room = self._knobs.suspicion * wanted - self._suspicion_bytes
        members = self.patterns.members[pattern]
        cost = self._cost(members[0], members[-1])
        if cost <= room and len(members) <= _AT_ONCE_MAX:  # they lie together: all of them now, wherever the order is
            self._suspected.add(pattern)
            self._suspicion_bytes += cost
            self._urgent.extend(members)
        elif beside is not None:
            for member in members:
                if self.patterns.numbers[member] == self.patterns.numbers[beside]:
                    cost = self._cost(member, member)
                    if self.layout.lengths[member] <= _KIN * self.layout.lengths[beside]:
                        room = max(room, self._knobs.suspicion_beside_bytes - self._suspicion_bytes)
                    if cost <= room:
                        self._suspicion_bytes += cost
                        self._urgent.append(member)
                    break

    def _take_along(self, lone: int) -> None:
        """Fetch the members that follow one without a layer, as far as they are cheap next to it."""
        room = int(self._knobs.suspicion_behind * self.layout.lengths[lone])
        for member in self._follow.ahead({*range(len(self.patterns))}):
            room -= self._cost(member, member)
            if room < 0:
                return
            self._current.append(member)  # it is no matter of trust: this one alone may fill the window

    def _cost(self, first: int, last: int) -> int:
        """Return the bytes to fetch from one member to another one, without those that were asked for already."""
        start = max(0, self.layout.offsets[first] - self._before)
        end = min(self.layout.size, self.layout.offsets[last] + self.layout.lengths[last] + self._after)
        return end - start - self._asked.measure(start, end)

    def _measure_margins(self, member: int) -> None:
        """Learn how far this reader's reads reach beyond what it wants, from the member it had before."""
        before, after = self._evidence.margins(member, self._follow.previous)
        self._before = max(self._before, before)
        if after:
            self._reached.append(after)
            self._after = max(self._reached)
        elif not self._reached:  # half a read-around: the windows after it are of twice its size, and there are two of them
            self._after = max(self._after, min(before // _PAGE * _PAGE * 4, self._knobs.ahead_bytes))

    # What comes next

    def _plan(self) -> None:
        """Lay out what comes after what has been read; what was handed out is passed over when its turn comes."""
        if self._whole:
            rest = self._known or range(len(self.layout))
            self._queue = chain(rest, range(len(self.layout)))
        elif self._known and self._follow.is_known_order:
            self._follow.teach(self._known)
            self._queue = chain(self._follow.ahead(None), self._follow.ahead(self._believed()))
        elif self._wanted:
            self._queue = self._follow.ahead(self._believed())

    def _hand_out(self, limit_bytes: int, room_bytes: int | None) -> list[Range]:
        """Return as much of the queue as trust and the line leave room for."""
        window = self.window(limit_bytes)
        full = self._predicted + (limit_bytes if room_bytes is None or self._is_sure() else room_bytes)
        found, is_done = self._drain(self._current, limit_bytes)  # what is being read now needs no trust
        if is_done:
            more, is_done = self._drain(self._urgent, window)
            found += more
        fresh = (member for member in islice(self._queue, _LOOKED_AT_MAX) if not self._done[member])
        self._is_drained = False
        while is_done and self._live.total < window and self._predicted < full:
            member = next(fresh, None)
            if member is None:
                self._is_drained = self._is_at_end()
                break
            parts, is_done = self._take(member, window)
            found += parts
            if not is_done:
                self._urgent.appendleft(member)
        return found

    def _run_on(self, end: int, run_bytes: int, limit_bytes: int) -> list[Range]:
        """Return what lies behind a long run without a hole, half as far as it has come: names tell no more then.

        A load of everything in the order of the file would else wait at the first member of each pattern.
        """
        if run_bytes < 2 * LONG_RUN_BYTES:
            return []
        window = self.window(limit_bytes)
        start, stop = max(end, self._ran_to), min(end + run_bytes // 2, end + window)
        found: list[Range] = []
        for member in self.layout.touched(start, stop - start):
            if self._live.total >= window:
                break
            if not self._done[member]:
                found += self._take(member, window)[0]
            self._ran_to = self.layout.offsets[member]
        return found

    def _is_at_end(self) -> bool:
        """Return whether nothing is left in the queue."""
        first = next(self._queue, None)
        if first is not None:
            self._queue = chain((first,), self._queue)
        return first is None

    def _drain(self, members: deque[int], window: int) -> tuple[list[Range], bool]:
        """Hand out these members first; returns the ranges and whether there is room for others."""
        found: list[Range] = []
        while members and self._live.total < window:
            parts, is_done = self._take(members[0], window)
            found += parts
            if not is_done:
                return found, False
            members.popleft()
        return found, not members

    def _take(self, member: int, window: int) -> tuple[list[Range], bool]:
        """Hand out what is left of a member and fits; returns the ranges and whether nothing is left."""
        found, is_done = self._take_parts(member, window)
        self._done[member] = is_done
        return found, is_done

    def _take_parts(self, member: int, window: int) -> tuple[list[Range], bool]:
        room = window - self._live.total
        offset, length = self.layout.offsets[member], self.layout.lengths[member]
        if self._evidence.covered(offset, offset + length) == length:
            return [], True
        start, stop = max(0, offset - self._before), min(self.layout.size, offset + length + self._after)
        found: list[Range] = []
        for begin, end in self._asked.gaps(start, stop):
            if self._evidence.covered(begin, end) == end - begin:
                continue
            cut = min(end, begin + room)
            if cut < end and cut - begin < window // 8:  # a crumb: wait until there is room for a worthy request
                return found, False
            self._asked.add(begin, cut)
            for live in self._evidence.absent(begin, cut):
                self._live.add(*live)
                self._predicted += live[1] - live[0]
                room -= live[1] - live[0]
            found.append((begin, cut - begin))
            if cut < end:
                self._taken.append((max(begin, offset), cut - max(begin, offset)))
                return found, False
        if found:
            self._taken.append((offset, length))
            self._expect(member)
        return found, True

    def _expect(self, member: int) -> None:
        self._due.append((self._observed + 2 * len(self._due) + 16, member))

    # What went wrong

    def _collect_due(self) -> None:
        """Strike off members that should have been read by now; a pattern that misses again and again is given up."""
        while self._due and self._due[0][0] <= self._observed:
            _, member = self._due.popleft()
            offset, length = self.layout.offsets[member], self.layout.lengths[member]
            if member in self._evidence.wanted and member not in self._begun:
                self._begun.add(member)
                self._expect(member)
                continue
            waits = self._waits.get(member, 0)
            if self._follow.is_ahead(member) or (waits < _WAITS_MAX and self._follow.is_near(member)):
                self._waits[member] = waits + 1  # patterns that were believed since then come between, or other readers
                self._expect(member)
                continue
            unread = self._live.remove(max(0, offset - self._before), offset + length + self._after)
            self._overdue += unread
            pattern = self.patterns.of[member]
            if 2 * unread <= length or member in self._begun:
                self._misses[pattern] = 0
                continue
            self._misses[pattern] = self._misses.get(pattern, 0) + 1
            if self._misses[pattern] >= self._knobs.misses_max and pattern in self._believed():
                self._wanted.pop(pattern, None)
                self._suspected.discard(pattern)
                self._known = [each for each in self._known if self.patterns.of[each] != pattern]
                self._plan()

    def _judge(self) -> None:
        if self._evidence.intervals_count > _INTERVALS_MAX:
            self._off = "the reads are scattered"
        elif self._whole:
            return
        elif self._follow.is_lost:
            self._off = "the reads follow no order"
        elif self._overdue > max(self._knobs.judged_bytes, self._knobs.unread_max * self._hit):
            self._off = f"{self._overdue} bytes were fetched ahead and not read when they were due"

    def _read_patterns(self) -> list[int]:
        """Return the patterns of which the reader took most, or wanted several members, in the order of their first read."""
        share: dict[int, int] = {}
        for start, stop in self._evidence.intervals():
            for member in self.layout.touched(start, stop - start):
                begin = self.layout.offsets[member]
                end = begin + self.layout.lengths[member]
                share[self.patterns.of[member]] = share.get(self.patterns.of[member], 0) + min(stop, end) - max(start, begin)
        mostly = {pattern for pattern, read in share.items() if 2 * read >= self.patterns.bytes[pattern]}
        seen = dict.fromkeys(chain(self._wanted, self._weak, sorted(mostly)))
        counts: dict[int, int] = {}
        for member in self._evidence.wanted:
            counts[self.patterns.of[member]] = counts.get(self.patterns.of[member], 0) + 1
        return [pattern for pattern in seen if pattern in mostly or counts.get(pattern, 0) >= 3]
