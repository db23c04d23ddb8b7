"""The pure parts of the benchmarks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.bench import report, samples, small_files
from tests.bench.checkpoint import write_checkpoint
from tests.bench.measure import NotHere, Spread, alternate, chosen, order_of_round, ratios, spread, written_calls

MOUNTINFO = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:25 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:26 / /dev rw - devtmpfs udev rw
"""


def test_median_and_extremes_of_an_even_count() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 1.0, 4.0)


def test_spread_is_relative_to_the_median() -> None:
    assert Spread(2.0, 1.0, 4.0).relative == 1.5


def test_spread_of_nothing_but_zeros_is_zero() -> None:
    assert spread([0.0, 0.0]).relative == 0.0


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([1.0, 9.0], [2.0, 3.0]) == [0.5, 3.0]


def test_every_second_round_runs_backward() -> None:
    assert [order_of_round(["a", "b"], index) for index in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_sides_alternate() -> None:
    calls: list[str] = []
    taken = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "b", "a"]
    assert {name: len(values) for name, values in taken.items()} == {"a": 2, "b": 2}


def test_parts_of_a_bench_that_are_said_are_read_in_the_order_of_all() -> None:
    assert chosen(["ready", "other", "loader0"], "loader0,ready") == ["ready", "loader0"]
    assert chosen(["ready", "loader0"], "") == ["ready", "loader0"]
    with pytest.raises(NotHere, match="has no loader3, but ready, loader0"):
        chosen(["ready", "loader0"], "ready,loader3")


def test_ratio_of_samples_is_the_median_of_rounds_and_the_worst_of_loaders() -> None:
    def rounds(*p99_s: float) -> list[samples.Waits]:
        return [samples.Waits([[value, 0.0]], value, {}) for value in p99_s]

    outcome = report.Outcome()
    samples.compare(outcome, {"ready": rounds(1, 2, 3), "loader0": rounds(10, 4, 10), "loader2": rounds(10, 20, 10)})
    assert outcome.figures["p99_vs_loader0"] == outcome.figures["p99_vs_loader"] == 0.3
    assert outcome.figures["p99_vs_loader2"] == 0.1


def test_file_system_is_that_of_the_longest_mount_point_above() -> None:
    assert report.fs_type("/dev/shm/x", MOUNTINFO) == "tmpfs"
    assert report.fs_type("/dev/shmem", MOUNTINFO) == "devtmpfs"
    assert report.fs_type("/tmp", MOUNTINFO) == "ext4"


def test_later_mount_at_the_same_point_wins() -> None:
    assert report.fs_type("/tmp", MOUNTINFO + "40 22 0:30 / / rw - overlay overlay rw\n") == "overlay"


def test_processor_is_named_as_the_kernel_names_it() -> None:
    assert report.cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n") == "Some CPU @ 3 GHz"


def test_answers_of_the_worker_are_its_write_calls() -> None:
    assert written_calls("rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\n") == 4


def test_files_are_equal_every_time_and_not_read_in_the_order_of_their_names() -> None:
    state = random.getstate()
    made = small_files.make_files(20, 2)
    assert made == small_files.make_files(20, 2)
    assert random.getstate() == state
    assert sorted(made.warm) != made.warm
    assert sorted(made.content) == sorted([*made.warm, *made.cold])


def test_tensors_below_16_kib_are_counted(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, layers=3, width=64, vocabulary=300)
    assert (written.tensors, written.small) == (55, 3 * 16)
    assert [file.name for file in written.files] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
