"""Sets of bytes as intervals, against sets of integers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vfs.extents.spans import Spans

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(STEPS, st.integers(0, 60), st.integers(0, 20))
def test_spans_hold_what_a_set_of_offsets_would(steps: list[tuple[bool, int, int]], start: int, length: int) -> None:
    spans, plain = Spans(), set[int]()
    for is_added, begin, size in steps:
        part = set(range(begin, begin + size))
        if is_added:
            new = spans.add(begin, begin + size)
            assert {offset for first, stop in new for offset in range(first, stop)} == part - plain
            plain |= part
        else:
            assert spans.remove(begin, begin + size) == len(part & plain)
            plain -= part
    probe = set(range(start, start + length))
    intervals = spans.intervals()
    assert spans.total == len(plain)
    assert {offset for first, stop in intervals for offset in range(first, stop)} == plain
    assert all(stop < following for (_, stop), (following, _) in pairwise(intervals))
    assert spans.measure(start, start + length) == len(probe & plain)
    assert {offset for first, stop in spans.gaps(start, start + length) for offset in range(first, stop)} == probe - plain
    found = spans.around(start)
    assert (found is not None) == (start in plain)
    assert found is None or found[0] <= start < found[1]
    assert len(spans) == len(intervals)
