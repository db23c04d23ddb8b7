"""Logging of the worker and the agent: one rotated file each, for people or as JSON lines, and never a flood."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import time
from collections.abc import Callable

_BYTES_MAX = 10 << 20
_KEPT = 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REPEATS_MAX = 20
"""Records of one kind in one window: enough to see what happens, few enough that a full disk or a dead origin, which says
the same for each read, fills neither the file nor the day of who reads it."""
_WINDOW_S = 10.0
_KINDS_MAX = 1000


class Damped(logging.Filter):
    """Lets 20 records of one kind through in ten seconds, and then says how many it has kept back.

    A kind is a logger with a message before its values are filled in. Errors and bugs count as any other.

    Invariant: `_kinds` holds at most `_KINDS_MAX` kinds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        now_s, kind = self._clock(), (record.name, str(record.msg))
        since_s, count = self._kinds.get(kind, (now_s, 0))
        if now_s - since_s >= _WINDOW_S:
            if count > _REPEATS_MAX:
                record.msg = f"{record.getMessage()} ({count - _REPEATS_MAX} more of this kind were left out)"
                record.args = ()
            since_s, count = now_s, 0
        if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = since_s, count + 1
        return count < _REPEATS_MAX


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, process, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_to(path: str, level: str = "INFO") -> None:
    """Send this process's records to a file that never grows beyond 4 x 10 MiB with its predecessors.

    As JSON lines where the environment says FOREMOUNT_LOG_FORMAT=json.
    """
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_BYTES_MAX, backupCount=_KEPT, encoding="utf-8")
    as_json = os.environ.get("FOREMOUNT_LOG_FORMAT", "").lower() == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(_FORMAT))
    if level.upper() != "DEBUG":  # who asks for everything gets everything
        handler.addFilter(Damped())
    logging.basicConfig(level=level, handlers=[handler], force=True)
