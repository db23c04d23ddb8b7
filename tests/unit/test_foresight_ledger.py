"""What predictions were worth: `vfs/foresight/ledger.py`."""

from __future__ import annotations

import pytest

from vfs.foresight import ledger
from vfs.foresight.model import (
    Hint,
    HintId,
    JobName,
    LedgerEntry,
    Mechanism,
    Outcome,
    Phase,
    ReplicaId,
    ReplicaReads,
    ReplicaRecord,
)
from vfs.model import LakePath, SiteName, SitePath

JOB, PATH, EVAL = JobName("run7"), LakePath("ckpt/step_1"), SiteName("eval")
S = 10**9


def line(**fields: bool) -> LedgerEntry:
    """Return the line of a hint that was made at 100 s."""
    hint = Hint(
        id=HintId("h"),
        job=JOB,
        mechanism=Mechanism.CHECKPOINTS,
        path=PATH,
        site=EVAL,
        why="",
        confidence=1.0,
        ttl_s=60.0,
        **fields,
    )
    return ledger.begun(None, hint, 100 * S)


def reads(served: int, *, used: int = 0, fallbacks: int = 0, saved_s: float = 0.0) -> ReplicaReads:
    return ReplicaReads(hint=HintId("h"), bytes_served=served, bytes_used=used, fallbacks=fallbacks, saved_s=saved_s)


def test_who_comes_when_the_copy_is_ready_is_a_hit_with_its_lead() -> None:
    found = ledger.started(ledger.published(line(), 110 * S), "mmlu", 130 * S)
    assert (found.outcome, found.lead_s, found.evaluation) == (Outcome.HIT, 20.0, "mmlu")


def test_who_comes_before_the_copy_is_ready_is_late() -> None:
    found = ledger.published(ledger.started(line(), "mmlu", 105 * S), 110 * S)
    assert (found.outcome, found.lead_s) == (Outcome.LATE, 0.0)


def test_nobody_came_is_a_miss_and_its_bytes_are_unused() -> None:
    found = ledger.ended(ledger.prepared(line(), 1000, 1000, 0.5), None, 200 * S)
    (account,) = ledger.accounts([found])
    assert (account.misses, account.hit_rate, account.bytes_unused) == (1, 0.0, 1000)


@pytest.mark.parametrize("outcome", [Outcome.WITHDRAWN, Outcome.REFUSED])
def test_what_was_withdrawn_or_refused_speaks_neither_for_nor_against_predictions(outcome: Outcome) -> None:
    (account,) = ledger.accounts([ledger.ended(line(), outcome, 200 * S)])
    assert (account.predictions, account.hit_rate) == (1, -1.0)


def test_reading_from_the_copy_is_coming_for_it_and_counts_each_byte_once_as_used() -> None:
    found = ledger.published(ledger.prepared(line(), 1000, 1000, 0.5), 110 * S)
    for told in (reads(800, used=800, saved_s=2.0), reads(800, used=800, fallbacks=3, saved_s=1.5)):
        found = ledger.read_from(found, told, 120 * S)
    assert (found.outcome, found.bytes_served, found.bytes_used) == (Outcome.HIT, 1600, 1000)
    assert (found.fallbacks, found.saved_s) == (3, 3.5)


def test_costs_are_the_bytes_on_the_line_the_bytes_that_lay_there_and_the_cpu_time() -> None:
    record = ReplicaRecord(
        id=ReplicaId("r"),
        hint=HintId("h"),
        job=JOB,
        mechanism=Mechanism.CHECKPOINTS,
        path=PATH,
        site=EVAL,
        root=SitePath("copies"),
        phase=Phase.EXPIRING,
        bytes=500,
        made_ns=100 * S,
    )
    found = ledger.prepared(ledger.prepared(line(), 300, 300, 0.25), 200, 200, 0.5)
    (account,) = ledger.accounts([ledger.dropped(found, record, (100 + 2 * 3600) * S)])
    assert (account.wan_bytes, account.byte_hours, account.cpu_s) == (500, 1000.0, 0.75)


def test_prediction_without_copies_is_a_hit_when_somebody_comes_and_is_counted_apart() -> None:
    found = ledger.started(line(shadow=True), "mmlu", 130 * S)
    (account,) = ledger.accounts([found])
    assert (found.outcome, account.shadow, account.hits) == (Outcome.HIT, 1, 1)
