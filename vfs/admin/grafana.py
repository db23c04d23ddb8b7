"""The Grafana dashboard, made of the metrics' table so that it names nothing that does not exist.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
from typing import Any

from vfs.admin.metrics import METRICS

_KNOWN = {line.shown for line in METRICS}
_RATE = "$__rate_interval"


def _rate(metric: str, *by: str) -> str:
    assert metric in _KNOWN, metric
    inner = f'rate({metric}{{instance=~"$instance"}}[{_RATE}])'
    return f"sum by ({', '.join(by)}) ({inner})" if by else f"sum({inner})"


def _now(metric: str, *by: str) -> str:
    assert metric in _KNOWN, metric
    return f'sum by ({", ".join(by)}) ({metric}{{instance=~"$instance"}})' if by else f'{metric}{{instance=~"$instance"}}'


_PANELS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("Healthy", "stat", "none", [(_now("foremount_healthy"), "{{instance}}")]),
    ("Operations that wait right now", "stat", "none", [(_now("foremount_waiting_operations"), "{{instance}}")]),
    ("Sites that answer", "stat", "none", [(_now("foremount_site_answers", "site"), "{{site}}")]),
    ("Policy refused", "stat", "none", [(_now("foremount_policy_refused"), "{{instance}}")]),
    ("Read and written through the worker, by source", "timeseries", "Bps",
     [(_rate("foremount_bytes_total", "source"), "{{source}}")]),
    ("Operations by source", "timeseries", "ops", [(_rate("foremount_operations_total", "source"), "{{source}}")]),
    ("Waiting by cause, seconds per second", "timeseries", "none",
     [(_rate("foremount_wait_seconds_total", "cause"), "{{cause}}")]),
    ("Stall of jobs", "timeseries", "percentunit", [(_now("foremount_job_stall_ratio", "job"), "{{job}}")]),
    ("Read by jobs", "timeseries", "Bps", [(_rate("foremount_job_bytes_total", "job"), "{{job}}")]),
    ("Waiting of jobs, seconds per second", "timeseries", "none",
     [(_rate("foremount_job_wait_seconds_total", "job", "cause"), "{{job}} {{cause}}")]),
    ("From sites, by who asked", "timeseries", "Bps", [(_rate("foremount_fetched_bytes_total", "asked"), "{{asked}}")]),
    ("Lines: time to first byte", "timeseries", "s", [(_now("foremount_site_first_byte_seconds", "site"), "{{site}}")]),
    ("Requests at sites", "timeseries", "none",
     [(_now("foremount_site_requests_in_flight", "site"), "{{site}} in flight"),
      (_now("foremount_site_requests_waiting", "site"), "{{site}} waiting")]),
    ("Trouble with sites", "timeseries", "none",
     [(_rate("foremount_fetch_retries_total"), "retries"), (_rate("foremount_fetch_failures_total"), "failures"),
      (_rate("foremount_fetch_stalls_total"), "stalls")]),
    ("Cache", "timeseries", "bytes",
     [(_now("foremount_store_used_bytes", "store"), "{{store}} used"),
      (_now("foremount_store_size_bytes", "store"), "{{store}} size")]),
    ("Evicted and broken", "timeseries", "none",
     [(_rate("foremount_store_evicted_bytes_total", "store"), "{{store}} evicted B/s"),
      (_rate("foremount_store_broken_blocks_total", "store"), "{{store}} broken blocks/s")]),
]  # fmt: skip


def dashboard() -> str:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, (title, kind, unit, queries) in enumerate(_PANELS, 1):
        width, height = (6, 4) if kind == "stat" else (12, 8)
        if x + width > 24:
            x, y = 0, y + (4 if panels[-1]["type"] == "stat" else 8)
        targets = [
            {"expr": expression, "legendFormat": legend, "refId": chr(ord("A") + index)}
            for index, (expression, legend) in enumerate(queries)
        ]
        panels.append(
            {
                "id": number,
                "title": title,
                "type": kind,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": targets,
            }
        )
        x += width
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "instance",
            "type": "query",
            "label": "Host",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": "label_values(foremount_info, instance)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    document = {
        "title": "Foremount",
        "uid": "foremount",
        "tags": ["foremount"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"
