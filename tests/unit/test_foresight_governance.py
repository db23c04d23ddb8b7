"""Which copies may be made at all: `vfs/foresight/governance.py`."""

from __future__ import annotations

import pytest

from vfs.foresight.governance import PlaceFacts, merged, ruling
from vfs.foresight.model import Labels

EU = PlaceFacts(labels=("eu", "eu-west"))
SAFE = PlaceFacts(labels=("eu",), encrypted=True)


@pytest.mark.parametrize(
    ("labels", "place", "rule"),
    [
        (Labels(), PlaceFacts(), ""),
        (Labels(residency=("eu",)), EU, ""),
        (Labels(residency=("us", "eu-west")), EU, ""),
        (Labels(residency=("us",)), EU, "residency"),
        (Labels(residency=("eu",)), PlaceFacts(), "residency"),
        (Labels(encrypted=True), EU, "encryption"),
        (Labels(encrypted=True), SAFE, ""),
        (Labels(encrypted=True), PlaceFacts(encrypted=True, transport_encrypted=False), "encryption"),
        (Labels(residency=("us",), encrypted=True), EU, "residency"),
    ],
    ids=[
        "no duties", "in the region", "one of several", "another region", "a place that says nothing", "not encrypted",
        "encrypted", "encrypted there, not on the way", "the first rule that refuses is named",
    ],
)  # fmt: skip
def test_what_the_rules_say(labels: Labels, place: PlaceFacts, rule: str) -> None:
    said = ruling(labels, place, 0.0)
    assert (said.rule, said.allowed) == (rule, not rule)


@pytest.mark.parametrize(
    ("retain_s", "wanted_s", "ttl_s"), [(0, 0, 0), (0, 60, 60), (60, 0, 60), (60, 3600, 60), (3600, 60, 60)]
)
def test_a_copy_lives_no_longer_than_its_data_may(retain_s: float, wanted_s: float, ttl_s: float) -> None:
    assert ruling(Labels(retain_s=retain_s), EU, wanted_s).ttl_s == ttl_s


def test_merged_duties_satisfy_each_of_them() -> None:
    found = merged(
        Labels(residency=("eu", "us"), retain_s=60), Labels(residency=("eu",), encrypted=True), Labels(retain_s=10)
    )
    assert found == Labels(residency=("eu",), encrypted=True, retain_s=10)


def test_duties_that_contradict_each_other_leave_no_place_at_all() -> None:
    found = merged(Labels(residency=("eu",)), Labels(residency=("us",)))
    assert ruling(found, EU, 0).rule == "residency"
