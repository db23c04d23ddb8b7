"""How urgent a copy is: `vfs/foresight/priority.py`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.extents.fair import Priority
from vfs.foresight.model import Urgency
from vfs.foresight.priority import WEIGHT_LEAST, is_urgent, kind, priority, severity, weight

urgencies = st.builds(
    Urgency,
    parameters=st.floats(0, 1e15),
    importance=st.floats(0, 1),
    severity=st.floats(0, 1),
    urgent=st.booleans(),
)


@pytest.mark.parametrize(
    ("loss", "gradients", "expected"),
    [
        (0, 0, 0.0),
        (3, 3, 0.0),
        (5, 0, 0.487),
        (6, 0, 0.632),
        (0, 6, 0.632),
        (6, 6, 0.865),
        (12, 0, 0.950),
        (math.nan, 0, 1.0),
    ],
)
def test_severity_begins_beyond_noise_and_two_signs_are_worse_than_one(
    loss: float, gradients: float, expected: float
) -> None:
    assert severity(loss, gradients) == pytest.approx(expected, abs=0.001)


def test_a_periodic_evaluation_can_wait_and_one_after_a_spike_can_not() -> None:
    periodic, alarmed = Urgency(parameters=1e12), Urgency(parameters=7e9, severity=severity(6, 0))
    assert (kind(priority(periodic)), kind(priority(alarmed))) == (Priority.PREDICTIVE, Priority.URGENT)


@settings(max_examples=40, deadline=None)
@given(urgencies, urgencies)
def test_what_is_urgent_comes_before_all_that_is_not(one: Urgency, other: Urgency) -> None:
    if is_urgent(one) and not is_urgent(other):
        assert priority(one) > priority(other)


@settings(max_examples=40, deadline=None)
@given(urgencies, st.sampled_from(["parameters", "importance", "severity"]))
def test_more_of_anything_is_never_less_urgent(urgency: Urgency, name: str) -> None:
    fields = {field: getattr(urgency, field) for field in ("parameters", "importance", "severity", "urgent")}
    more = Urgency(**fields | {name: fields[name] * 2 + 1e-9 if name != "parameters" else fields[name] * 2})
    if fields["parameters"]:  # 0 is not known, and counts as an ordinary model
        assert priority(more) >= priority(urgency)


@settings(max_examples=40, deadline=None)
@given(urgencies)
def test_everything_has_a_part_of_the_link(urgency: Urgency) -> None:
    found = priority(urgency)
    assert 0 < found < 2
    assert WEIGHT_LEAST <= weight(found) <= 1


def test_the_figures_of_the_documentation() -> None:
    assert priority(Urgency(parameters=1e12, importance=1.0)) == pytest.approx(0.0362, abs=0.0001)
    assert priority(Urgency(parameters=7e9, importance=0.5)) == pytest.approx(0.0103, abs=0.0001)
    assert priority(Urgency(parameters=7e9, importance=0.5, severity=severity(6, 0))) == pytest.approx(1.153, abs=0.001)
