"""Logging of the worker and the agent: one rotated file each, the same line format."""

from __future__ import annotations

import logging
import logging.handlers

_BYTES_MAX = 10 << 20
_KEPT = 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(path: str, level: str = "INFO") -> None:
    """Send this process's records to a file that never grows beyond 4 x 10 MiB with its predecessors."""
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_BYTES_MAX, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
