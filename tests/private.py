"""Files of secrets: nobody else may read them, or they are refused."""

from __future__ import annotations

from pathlib import Path

FORESIGHT = "lake 0123456789abcdef0123\n"
"""Who signs what mounts and jobs tell a controller."""


def private(path: Path, text: str = FORESIGHT) -> Path:
    """Write a file that its owner alone may read; return its path."""
    path.write_text(text)
    path.chmod(0o600)
    return path
