"""Processes whose wall clock is wrong by a constant; their monotonic clock is everybody's."""

from __future__ import annotations

import os
from pathlib import Path

_CUSTOMIZE = """
import time

_ns, _s = time.time_ns, time.time
time.time_ns = lambda: _ns() + {seconds} * 10**9
time.time = lambda: _s() + {seconds}
"""


def environ(directory: Path, seconds: int) -> dict[str, str]:
    """Return the environment of processes of Python, and of their children, whose clock is ahead by so much.

    Args:
        directory: is made here; it holds what Python reads when it starts.
    """
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_CUSTOMIZE.format(seconds=seconds))
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{known}" if known else str(directory)}
