"""`foremount checkpoints`: the table, the sweep, and ranks by phase as text and as an image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vfs.agent.writing.checkpoints import CheckpointFacts, by_rank, of_manifest
from vfs.checkpoints.manifest import Manifest, ManifestFile, Phases
from vfs.cli import heatmap
from vfs.cli.checkpoints import _table, sweep_incomplete
from vfs.model import LakePath, SitePath, Version


def file(path: str, size: int, phases: Phases) -> ManifestFile:
    return ManifestFile(path, size, "d", SitePath(path), Version(size), phases)


FILES = [
    file("__0_0.distcp", 10, Phases(1.0, 0.5, 0.1, 4.0)),
    file("__0_1.distcp", 20, Phases(2.0, 0.25, 0.1, 3.0)),
    file("__1_0.distcp", 30, Phases(8.0, 0.0, 0.2, 2.0)),
    file(".metadata", 5, Phases(0.0, 0.0, 0.0, 1.0)),
]


def test_a_ranks_phase_is_that_of_its_slowest_file() -> None:
    other, first, second = by_rank(FILES)
    assert (other.rank, other.files, other.bytes, other.upload_s) == (-1, 1, 5, 1.0)
    assert (first.rank, first.files, first.bytes) == (0, 2, 30)
    assert (first.write_s, first.fsync_s, first.hash_s, first.upload_s) == (2.0, 0.5, 0.1, 4.0)
    assert (second.rank, second.write_s, second.upload_s) == (1, 8.0, 2.0)


def test_a_manifest_is_a_durable_checkpoint() -> None:
    manifest = Manifest(
        LakePath("run/step_7"), LakePath("run/step_7/.metadata"), "dcp", 7, "id", FILES, tensors=3, committed_ns=5 * 10**9
    )
    facts = of_manifest(manifest)
    assert (facts.state, facts.step, facts.files, facts.bytes, facts.durable_s) == ("durable", 7, 4, 65, 5.0)


def test_the_table_says_what_a_committed_checkpoint_waits_for() -> None:
    facts = CheckpointFacts("run/step_7", "committed", step=7, waits_for="run/step_7/a: is not at the origin yet")
    waiting: dict[str, Any] = msgspec.to_builtins(facts)
    head, row = _table([waiting])
    assert head.split()[:3] == ["STEP", "STATE", "FORMAT"]
    assert row.split()[:2] == ["7", "committed"]
    assert row.endswith("/run/step_7  waits for run/step_7/a: is not at the origin yet")


def test_the_sweep_removes_old_incomplete_checkpoints_and_no_others(tmp_path: Path) -> None:
    found = []
    for name, state, written_s in [
        ("old", "incomplete", 100.0),
        ("new", "incomplete", 950.0),
        ("writing", "writing", 100.0),
        ("committed", "committed", 100.0),
        ("durable", "durable", 100.0),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
        found.append({"path": name, "state": state, "written_s": written_s})
    swept = sweep_incomplete(found, str(tmp_path), 100.0, 1000.0)
    assert [(each["path"], each["state"]) for each in swept] == [("old", "swept")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["committed", "durable", "new", "writing"]


ROWS = [[1.0, 0.0, 0.1, 2.0], [4.0, 0.0, 0.1, 0.0]]


def test_shades_are_shares_of_the_greatest_in_each_column() -> None:
    assert heatmap.shades(ROWS) == [[0.25, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]]


def test_the_text_has_a_line_for_each_rank_and_a_shade_for_each_phase() -> None:
    head, first, second = heatmap.as_text(["rank 0", "rank 1"], ROWS)
    assert head.split() == ["write", "fsync", "hash", "upload"]
    assert first.startswith("rank 0") and "░░    1.00s" in first and "██    2.00s" in first
    assert second.startswith("rank 1") and "██    4.00s" in second
    assert heatmap.as_text([], []) == []


def test_the_image_is_a_png_whose_cells_have_the_colours_of_the_shades() -> None:
    image = pytest.importorskip("PIL.Image")
    read = image.open(io.BytesIO(heatmap.as_png(ROWS)))
    assert (read.format, read.size) == ("PNG", (4 * 24, 2 * 12))
    middles = [[read.getpixel((24 * column + 10, 12 * row + 5)) for column in range(4)] for row in range(2)]
    assert middles[0][1] == middles[1][1] == middles[1][3] == (255, 255, 255)
    assert middles[0][3] == middles[1][0] == (0, 0, 0)
    assert middles[0][0] == (255, round(255 * 0.75**1.5), round(255 * 0.75**4))
