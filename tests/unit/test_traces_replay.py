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
from vfs.traces.parquet import Trace, TraceWriter, load
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


BOUND = 'format = 1\n[[rules]]\nname = "line"\nmatch = {}\nset = { bandwidth = "10MB/s" }\n'


def test_rule_that_bounds_bandwidth_bounds_a_replay(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", sequential(FILE, SIZE), size=SIZE)
    bound = replay(trace, under_policy(trace, [document(tmp_path, BOUND)]))
    assert bound.fetched_bytes == SIZE
    assert SIZE / 10e6 - 1 < bound.duration_s < SIZE / 10e6 + 2, "3.4 s, where the line would take 0.4"


def test_two_files_of_one_rule_share_its_bandwidth_and_those_of_two_do_not(tmp_path: Path) -> None:
    events = sorted(sequential("a", SIZE, thread=1) + sequential("b", SIZE, thread=2))
    trace = write(tmp_path / "t", events, size=SIZE)
    rule = '[[rules]]\nname = "NAME"\nmatch = { path = "NAME" }\nset = { bandwidth = "10MB/s" }\n'
    one = replay(trace, under_policy(trace, [document(tmp_path, BOUND)]))
    each = "format = 1\n" + rule.replace("NAME", "a") + rule.replace("NAME", "b")
    two = replay(trace, under_policy(trace, [document(tmp_path, each)]))
    assert one.duration_s > 1.8 * two.duration_s


def after(events: list[Event], by_ms: int) -> list[Event]:
    return [(at + by_ms, *rest) for at, *rest in events]


@pytest.mark.parametrize(
    ("rule", "again"),
    [
        ("", SIZE),  # the one that was read first has made room
        ('match = { path = "a" }\nset = { cache = "keep" }', 0),
        ('match = { path = "b" }\nset = { cache = "stream" }', 0),
        ('match = { path = "a" }\nset = { cache = "stream" }', SIZE),
    ],
    ids=["no class", "kept", "the other a stream", "itself a stream"],
)
def test_cache_class_says_what_a_replay_fetches_again(tmp_path: Path, rule: str, again: int) -> None:
    """Read a, b and c, and a again, with room for two of them."""
    order = [after(sequential(name, SIZE), 10_000 * index) for index, name in enumerate(("a", "b", "c", "a"))]
    trace = write(tmp_path / "t", [event for events in order for event in events], size=SIZE)
    document(tmp_path, "format = 1\n" + (f'[[rules]]\nname = "r"\n{rule}\n' if rule else "rules = []\n"))
    config = tmp_path / "two.toml"
    room = f'policies = ["own.toml"]\n[cache]\nsize = "{2 * SIZE >> 20}MiB"\n'
    config.write_text('SITES[[mounts]]\nprefix = "/"\nsite = "origin"\n'.replace("SITES", room + SITE))
    assert replay(trace, under_config(trace, str(config))).fetched_bytes == 3 * SIZE + again


SITE = '[sites.origin]\nkind = "memory"\n'
PINNED = 'format = 1\n[[rules]]\nname = "pin"\nmatch = { path = "data/**" }\nset = { staleness = "pinned=night" }\n'


def replaced(path: Path, policies: list[str] | None = None) -> Trace:
    """Write a trace of a file that is read whole, replaced by one half as long, and read again; and of a short other one."""
    record = RECORD.pack
    events = [record(index * 10**7, 10**6, 1, index << 20, 1 << 20, 7, How.FETCHED) for index in range(4)]
    events += [record((10 + index) * 10**7, 10**6, 2, index << 20, 1 << 20, 7, How.FETCHED) for index in range(2)]
    events.append(record(10**9, 10**6, 3, 0, BLOCK, 7, How.FETCHED))
    versions = [(1, LakePath(FILE), Version(4 << 20, 1)), (2, LakePath(FILE), Version(2 << 20, 2))]
    with TraceWriter(str(path)) as writer:
        writer.add(Said(setting=setting(policies or [])))
        files = [*versions, (3, LakePath("other"), Version(BLOCK))]
        writer.add(Said(worker=1, files=files, records=b"".join(events)))
        writer.add(Said(lines={SiteName("origin"): Line(0.1, 100e6, 8)}, done=True))
        writer.close()
    return load(str(path))


def test_pinned_file_is_read_in_one_version_whatever_took_its_place(tmp_path: Path) -> None:
    trace = replaced(tmp_path / "t")
    as_it_was = replay(trace, as_recorded(trace))
    pinned = replay(trace, under_policy(trace, [document(tmp_path, PINNED)]))
    assert (as_it_was.wanted_bytes, as_it_was.fetched_bytes) == (6 * (1 << 20) + BLOCK,) * 2
    assert (pinned.wanted_bytes, pinned.fetched_bytes) == (4 * (1 << 20) + BLOCK,) * 2
    assert pinned.reads == as_it_was.reads


def test_command_says_what_it_does_not_know_of_pins_classes_and_bounds(tmp_path: Path) -> None:
    own = PINNED.replace('"pinned=night"', '"pinned=night", cache = "keep", bandwidth = "10MiB/s"')
    replaced(tmp_path / "t")
    tried = document(tmp_path, own)
    said = CliRunner().invoke(main, ["replay", str(tmp_path / "t"), "--policy", tried, "--json"]).stdout
    assert json.loads(said)["notes"] == [
        f"{tried}: what night holds is not in the trace: 1 files that it pins are read as the run read them first",
        f"{tried}: cache classes (keep: 2 files, stream: 0) say what goes first when 1 GiB are full; the cache is empty at "
        "the start, and holds nothing of other runs",
        f"{tried}: 10 MiB/s of own/pin bound what the trace reads, and nothing else that a mount fetches",
    ]


def test_command_says_that_what_was_pinned_is_read_as_it_was(tmp_path: Path) -> None:
    replaced(tmp_path / "t", [document(tmp_path, PINNED)])
    said = CliRunner().invoke(main, ["replay", str(tmp_path / "t"), "--policy", "workstation", "--json"]).stdout
    told = "workstation: 1 files were pinned to night when they were recorded: they are read as it had them"
    assert told in json.loads(said)["notes"]
