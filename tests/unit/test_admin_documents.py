"""What is generated: metrics, API reference, dashboard, OpenAPI; and what `why` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vfs.admin import document, grafana, metrics, routes, why
from vfs.admin.health import health
from vfs.admin.metrics import METRICS
from vfs.agent.ledger import JobKey, Recent
from vfs.usage import CAUSES, SOURCES, Call, Cause, Row, Source, Usage


@pytest.mark.parametrize("path", document.documents(), ids=lambda path: path.name)
def test_generated_document_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == document.documents()[path], "run: python -m vfs.admin.document"


def test_every_metric_has_a_name_of_its_own_and_a_meaning() -> None:
    names = [line.shown for line in METRICS]
    assert len(names) == len(set(names))
    assert all(line.about and line.name.startswith("foremount_") for line in METRICS)


def test_dashboard_asks_for_existing_metrics_only() -> None:
    known = {line.shown for line in METRICS}
    expressions = [target["expr"] for panel in json.loads(grafana.dashboard())["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        assert any(name + "{" in expression for name in known), expression


def test_dashboard_panels_do_not_overlap() -> None:
    taken = set()
    for panel in json.loads(grafana.dashboard())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_every_source_and_cause_is_explained() -> None:
    assert set(SOURCES) == set(Source)
    assert set(CAUSES) == set(Cause) == set(why.LEVERS)


def test_every_reference_inside_the_openapi_document_is_there() -> None:
    said = routes.openapi()

    def references(value: Any) -> Any:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(said))
    assert found
    assert {name.rsplit("/", 1)[-1] for name in found} <= set(said["components"]["schemas"])


def usage(**causes: float) -> Usage:
    rows = {"read": {Source.ORIGIN: Row(4, 4096, sum(causes.values()))}}
    return Usage(7, 0, "python", "/x", rows, {Cause(name): seconds for name, seconds in causes.items()}, {"/ckpt/f": 3.0})


def explained(entries: list[Usage], going_on: list[Call] | None = None) -> Any:
    recents = [Recent(0.0, JobKey("run7", 0, ""), entry) for entry in entries]
    return why.explain(
        "job run7", recents, going_on or [], [], lambda path, name: (f"<{name} of {path}>", "defaults:all"), window_s=60
    )


def test_longest_wait_comes_first_with_the_value_that_would_change_it() -> None:
    said = explained([usage(latency=1.0, link=2.0), usage(latency=2.0)])
    assert [(advice.cause, advice.seconds) for advice in said.causes] == [(Cause.LATENCY, 3.0), (Cause.LINK, 2.0)]
    assert said.causes[0].share == pytest.approx(0.6)
    assert "prefetch = <prefetch of /ckpt/f> for /ckpt/f" in said.causes[0].change
    assert said.causes[0].rule == "defaults:all"
    assert said.waited_s == 5.0
    assert [(wait.path, wait.seconds) for wait in said.paths] == [("/ckpt/f", 6.0)]
    assert said.sentence.startswith("5.0 s were waited, 60% of them because")


def test_operation_that_hangs_is_what_is_said_first() -> None:
    call = Call("read", "/ckpt/g", 7, 0, "python", 0.0, 12.0, {})
    assert explained([usage(link=1.0)], [call]).sentence == "read of /ckpt/g has been waiting for 12.0 s"


def test_nothing_asked_is_said_as_such() -> None:
    assert "nothing was asked of this mount" in explained([]).sentence


def test_time_in_the_worker_is_no_waiting() -> None:
    said = explained([usage(here=2.0)])
    assert (said.waited_s, said.here_s, said.causes) == (0.0, 2.0, [])


def test_health_names_the_first_trouble() -> None:
    well = {"sites": {"a": {"answers": True}}, "worker": {"connected": True, "passthrough": True}}
    assert health(well, waiting=0).verdict == "serving"
    ill = well | {"sites": {"a": {"answers": False}}, "admin": {"trouble": "port taken"}}
    said = health(ill, waiting=0)
    assert said.verdict == "trouble"
    assert said.sentence.startswith("the site a does not answer")
    assert said.sentence.endswith(", and 1 more")
    assert len(said.troubles) == 2


def test_metrics_reference_shows_counters_as_prometheus_does() -> None:
    assert "| `foremount_bytes_total` | counter |" in metrics.reference()
