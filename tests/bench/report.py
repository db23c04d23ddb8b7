"""How an outcome is printed, and which machine it comes from."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Section:
    """One table for people.

    Attributes:
        rows: cells as text; the first column names what was measured.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Outcome:
    """What a bench found.

    Attributes:
        figures: name → number, for machines; units are in the names.
        skipped: what was left out → why.
        broken: bounds that hold on every machine and did not here; the exit status is 1 then.
    """

    figures: dict[str, float] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def print_tables(name: str, outcome: Outcome) -> None:
    """Print everything for people."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for section in outcome.sections:
        table = Table(title=f"{name}: {section.title}", title_justify="left")
        for index, column in enumerate(section.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    for what, why in outcome.skipped.items():
        console.print(f"left out: {what}: {why}", markup=False)
    for sentence in outcome.broken:
        console.print(f"BROKEN: {sentence}", markup=False)


def print_json(name: str, outcome: Outcome, before: dict[str, Any]) -> None:
    """Print the one line for machines."""
    figures = {key: round(value, 4) for key, value in outcome.figures.items()}
    print(json.dumps({"bench": name, "figures": figures, "machine": before, "skipped": outcome.skipped}), flush=True)


def machine() -> dict[str, Any]:
    """Return what of this machine bears on figures; the load is that of before the bench."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "fs": fs_type(tempfile.gettempdir(), Path("/proc/self/mountinfo").read_text()),
        "root": os.geteuid() == 0,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def cpu_model(cpuinfo: str) -> str:
    """Return the processor's name. Pure."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.machine()


def fs_type(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds an absolute path: the longest mount point above it. Pure."""
    found = ("", "unknown")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):
            found = (point, right.split(" ")[0])
    return found[1]
