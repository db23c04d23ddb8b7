"""`python -m vfs.admin.document`: write what is generated: docs/metrics.md, docs/api.md and the Grafana dashboard.

Run in a checkout; a test compares.
"""

from __future__ import annotations

from pathlib import Path

from vfs.admin import grafana, metrics, routes

ROOT = Path(__file__).resolve().parents[2]


def documents() -> dict[Path, str]:
    """Return each generated file with what it has to hold."""
    return {
        ROOT / "docs" / "metrics.md": metrics.reference(),
        ROOT / "docs" / "api.md": routes.reference(),
        ROOT / "mount_scripts" / "grafana" / "foremount.json": grafana.dashboard(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
