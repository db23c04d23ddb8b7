"""What is written into the logs: damped, rotated, as JSON where wanted. D97."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from vfs import logs
from vfs.clock import FakeClock


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def record(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("vfs.x", logging.WARNING, "x.py", 1, message, values, None)


def test_flood_of_one_kind_is_kept_back_and_counted() -> None:
    clock = FakeClock()
    damped = logs.Damped(clock.monotonic_s)
    written = [damped.filter(record("cache full: %s", number)) for number in range(100)]
    assert sum(written) == 20
    clock.advance(10.0)
    last = record("cache full: %s", 100)
    assert damped.filter(last)
    assert last.getMessage() == "cache full: 100 (80 more of this kind were left out)"


def test_another_kind_is_not_kept_back() -> None:
    damped = logs.Damped(FakeClock().monotonic_s)
    for number in range(100):
        damped.filter(record("cache full: %s", number))
    assert damped.filter(record("site away: %s", 1))


def test_full_cache_for_an_hour_costs_some_thousand_lines() -> None:
    """D97"""
    clock = FakeClock()
    damped = logs.Damped(clock.monotonic_s)
    lines = 0
    for _ in range(3600):
        clock.advance(1.0)
        lines += sum(damped.filter(record("the cache can't take %s", number)) for number in range(50))
    assert lines <= 3600 / 10 * 21


def test_json_line_holds_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREMOUNT_LOG_FORMAT", "json")
    logs.log_to(str(tmp_path / "log"))
    logging.getLogger("vfs.y").warning("site %s\nis away", "a")
    try:
        raise ValueError("bug")
    except ValueError:
        logging.getLogger("vfs.y").exception("task ended")
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("warning", "vfs.y", "site a\nis away")
    assert "ValueError: bug" in second["traceback"]


def test_file_is_rotated_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_BYTES_MAX", 2000)
    monkeypatch.setattr(logs, "_REPEATS_MAX", 10_000)
    logs.log_to(str(tmp_path / "log"))
    for number in range(1000):
        logging.getLogger("vfs.z").info("line %s", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
