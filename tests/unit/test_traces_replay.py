"""Trace files, and what a replay makes of them: exact figures, since nothing in it depends on the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.unit.traces import FILE, Event, sequential, setting, write
from vfs.cli import main
from vfs.errors import ForemountError, NotFound, Unavailable
from vfs.extents.layout import BLOCK
from vfs.model import LakePath, SiteName, Version
from vfs.traces.parquet import TraceWriter, load
from vfs.traces.recording import Line, Said
from vfs.traces.records import RECORD, How
from vfs.traces.replay import replay
from vfs.traces.scenario import as_recorded, under_config, under_policy

SIZE = 32 << 20
OFF = 'format = 1\n[[rules]]\nname = "off"\nmatch = {}\nset = { prefetch = "off" }\n'
WHOLE = 'format = 1\n[[rules]]\nname = "whole"\nmatch = {}\nset = { prefetch = "whole", read_ahead = "1GiB" }\n'


def document(tmp_path: Path, text: str) -> str:
    (tmp_path / "own.toml").write_text(text)
    return str(tmp_path / "own.toml")


def test_trace_file_is_a_table_that_any_reader_reads(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", [(5, 2, How.FETCHED, "a/b", 4096, 100, 42)], size=5000)
    (row,) = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert row["at"].timestamp() == pytest.approx(0.005)
    del row["at"]
    assert row == {
        "thread": 42, "path": "a/b", "how": "fetched", "offset": 4096, "length": 100, "wait_ns": 2_000_000,
        "size": 5000, "mtime_ns": 0, "etag": "", "generation": 0,
    }  # fmt: skip


def test_events_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", [(9, 1, How.HIT, "a", 0, 1, 1), (4, 1, How.FETCHED, "b", 0, 1, 2)], size=10)
    assert trace.at_ns.tolist() == [0, 5_000_000]
    assert [trace.files[file] for file in trace.file] == [(LakePath("b"), Version(10)), (LakePath("a"), Version(10))]
    assert trace.how.tolist() == [How.FETCHED, How.HIT]


def test_file_numbers_of_another_worker_are_other_files(tmp_path: Path) -> None:
    record = RECORD.pack(0, 0, 1, 0, 1, 1, How.HIT)
    with TraceWriter(str(tmp_path / "t")) as writer:
        writer.add(Said(setting=setting()))
        for worker, name in ((10, "first"), (20, "second")):
            writer.add(Said(worker=worker, files=[(1, LakePath(name), Version(1))], records=record))
        writer.close()
    trace = load(str(tmp_path / "t"))
    assert sorted(trace.files[file][0] for file in trace.file) == ["first", "second"]


def test_recording_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TraceWriter(str(tmp_path / "t")) as writer:
        writer.add(Said(setting=setting()))
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_what_is_no_trace_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no table")
    with pytest.raises(Unavailable, match="is no trace"):
        load(str(tmp_path / "text"))
    with pytest.raises(NotFound):
        load(str(tmp_path / "absent"))


def test_without_prefetch_every_step_waits_for_a_round_trip(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    off = replay(trace, under_policy(trace, [document(tmp_path, OFF)]))
    assert (off.reads, off.requests, off.hit_rate) == (256, 256, 0.0)
    assert off.fetched_bytes == off.wanted_bytes == SIZE
    assert off.amplification == 1.0
    assert off.wait_s == pytest.approx(256 * (0.1 + (1 << 17) / 100e6 + 0.001))


def test_prefetch_hides_round_trips_and_fetches_nothing_twice(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    shipped = replay(trace, as_recorded(trace))
    assert shipped.fetched_bytes == SIZE
    assert shipped.requests < 64
    assert shipped.hit_rate > 0.8
    assert shipped.wait_s < 3.0


def test_policy_whole_needs_a_round_trip_and_the_lines_time(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    whole = replay(trace, under_policy(trace, [document(tmp_path, WHOLE)]))
    assert whole.fetched_bytes == SIZE
    assert 0.1 + SIZE / 100e6 <= whole.duration_s < 1.1


def test_whole_files_of_which_little_is_read_amplify(tmp_path: Path) -> None:
    events: list[Event] = [(0, 0, How.OPENED, FILE, 0, 0, 7), (1, 1, How.FETCHED, FILE, 0, BLOCK, 7)]
    trace = write(tmp_path / "t", events, size=SIZE)
    whole = replay(trace, under_policy(trace, [document(tmp_path, WHOLE)]))
    assert whole.amplification == SIZE / BLOCK
    off = replay(trace, under_policy(trace, [document(tmp_path, OFF)]))
    assert off.amplification == 1.0


def test_policy_says_how_large_requests_are(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    sized = 'format = 1\n[[rules]]\nname = "sized"\nmatch = {}\nset = { prefetch = "whole", fetch_size = "SIZE" }\n'
    small, large = (
        replay(trace, under_policy(trace, [document(tmp_path, sized.replace("SIZE", size))]))
        for size in ("512KiB..512KiB", "8MiB..8MiB")
    )
    assert (small.requests, large.requests) == (64, 4)


def test_two_replays_are_equal(tmp_path: Path) -> None:
    events = sorted(sequential("a", SIZE, thread=1) + sequential("b", SIZE, thread=2))
    trace = write(tmp_path / "t", events, size=SIZE)
    assert replay(trace, as_recorded(trace)) == replay(trace, as_recorded(trace))


def test_slower_line_waits_longer(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    near, far = (replay(trace, as_recorded(trace, Line(ttfb_s, 100e6, 8))) for ttfb_s in (0.01, 0.2))
    assert near.wait_s < far.wait_s


def test_second_reader_of_a_file_finds_it_unless_the_cache_is_too_small(tmp_path: Path) -> None:
    again = [(at + 100_000, *rest) for at, *rest in sequential(FILE, SIZE, thread=8)]
    trace = write(tmp_path / "t", sequential(FILE, SIZE) + again, size=SIZE)
    assert replay(trace, as_recorded(trace)).fetched_bytes == SIZE
    config = tmp_path / "small.toml"
    config.write_text('[sites.origin]\nkind = "memory"\n[[mounts]]\nprefix = "/"\nsite = "origin"\n[cache]\nsize = "8MiB"\n')
    assert replay(trace, under_config(trace, str(config))).fetched_bytes > 1.5 * SIZE


def test_local_files_are_played_without_a_line(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential("local/file", SIZE), size=SIZE)
    outcome = replay(trace, as_recorded(trace))
    assert (outcome.requests, outcome.hit_rate, outcome.amplification) == (0, 1.0, None)


def test_read_that_meets_its_deadline_counts_as_failed(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", [(0, 1, How.FETCHED, FILE, 0, BLOCK, 7)], size=SIZE, line=Line(5.0, 1e6, 8))
    text = 'format = 1\n[[rules]]\nname = "soon"\nmatch = {}\nset = { deadline = "1s" }\n'
    assert replay(trace, under_policy(trace, [document(tmp_path, text)])).failed == 1
    assert replay(trace, as_recorded(trace)).failed == 0


def test_threads_overlap_and_a_thread_thinks_as_long_as_it_did(tmp_path: Path) -> None:
    """Two threads of one read each: together one round trip; one thread of two reads with a second between: two and it."""
    line = Line(0.1, 1e9, 8)
    both: list[Event] = [(0, 1, How.FETCHED, "a", 0, 1, 1), (0, 1, How.FETCHED, "b", 0, 1, 2)]
    one: list[Event] = [(0, 1, How.FETCHED, "a", 0, 1, 1), (1001, 1, How.FETCHED, "b", 0, 1, 1)]
    together = replay(*under(write(tmp_path / "both", both, size=BLOCK, line=line)))
    apart = replay(*under(write(tmp_path / "one", one, size=BLOCK, line=line)))
    assert together.duration_s == pytest.approx(0.1, abs=0.002)
    assert apart.duration_s == pytest.approx(1.2, abs=0.003)


def under(trace):
    return trace, as_recorded(trace)


def test_configuration_that_mounts_nothing_of_the_trace_is_refused(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    config = tmp_path / "other.toml"
    config.write_text('[sites.origin]\nkind = "memory"\n[[mounts]]\nprefix = "/elsewhere"\nsite = "origin"\n')
    with pytest.raises(ForemountError, match="mounts nothing of what was recorded"):
        under_config(trace, str(config))


def test_command_compares_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, sequential(FILE, SIZE), size=SIZE, requests=9, fetched_bytes=SIZE)
    words = ["replay", str(path), "--policy", document(tmp_path, OFF)]
    said = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert [run["name"] for run in said["runs"]] == ["measured", "replayed", str(tmp_path / "own.toml")]
    measured, replayed, off = said["runs"]
    assert (measured["hit_rate"], measured["requests"], measured["amplification"]) == (1.0, 9, 1.0)
    assert replayed["reads"] == off["reads"] == measured["reads"] == 256
    assert off["wait_s"] > replayed["wait_s"]
    table = CliRunner().invoke(main, words).stdout
    assert "hit rate" in table and "amplification" in table and "100.0%" in table


def test_command_compares_with_another_policy_where_it_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, sequential(FILE, SIZE), size=SIZE)
    words = ["replay", str(path), "--policy", "workstation", "--against", document(tmp_path, OFF), "--json"]
    runs = json.loads(CliRunner().invoke(main, words).stdout)["runs"]
    assert [run["name"] for run in runs[1:]] == [str(tmp_path / "own.toml"), "workstation"]
    assert runs[1]["requests"] == 256


def test_command_says_what_limits_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, [(0, 0, How.PASSTHROUGH, FILE, 0, 0, 7)], size=SIZE)
    with TraceWriter(str(path)) as writer:
        writer.add(Said(setting=setting()))
        record = RECORD.pack(0, 0, 1, 0, 0, 7, How.PASSTHROUGH)
        writer.add(Said(worker=1, files=[(1, LakePath(FILE), Version(1))], records=record, lost=3))
        writer.close()
    said = CliRunner().invoke(main, ["replay", str(path)]).stdout
    assert "1 opens were in passthrough" in said
    assert "3 events happened and are not in the trace" in said
    assert f"nothing was measured of {SiteName('origin')}" in said
