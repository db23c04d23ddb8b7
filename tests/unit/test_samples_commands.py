"""`foremount index` and the picture of `foremount job timeline`: their pure parts and files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedules import webdataset
from vfs.cli import timeline
from vfs.cli.index import sample_offsets
from vfs.errors import InvalidFeed
from vfs.samples import jobs


def test_an_index_is_what_the_archive_was_written_with(tmp_path: Path) -> None:
    webdataset(tmp_path)
    for tar in sorted((tmp_path / "jobs/tars").glob("*.tar")):
        assert sample_offsets(str(tar)) == np.fromfile(f"{tar}.idx", "<u8").tolist()


def archive(path: Path, names: list[str]) -> str:
    with tarfile.open(path, "w") as opened:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 700
            opened.addfile(member, io.BytesIO(bytes(700)))
    return str(path)


def test_a_sample_whose_files_lie_apart_has_no_index(tmp_path: Path) -> None:
    with pytest.raises(InvalidFeed, match="'a' don't lie together"):
        sample_offsets(archive(tmp_path / "x.tar", ["a.jpg", "b.jpg", "a.cls"]))


def test_a_tar_that_was_cut_off_has_no_index(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar", ["a.jpg", "b.jpg"])
    with open(path, "r+b") as file:
        file.truncate(512 + 1024 + 512 + 600)
    with pytest.raises(InvalidFeed):
        sample_offsets(path)


def test_names_in_directories_are_samples_of_their_own(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar", ["one/a.jpg", "two/a.jpg", "two/a.cls"])
    assert len(sample_offsets(path)) == 3


def moments(step: int, rank: int, **times: float) -> dict[str, Any]:
    empty = dict.fromkeys(("asked_s", "prepared_s", "entered_s", "left_s"))
    return {"step": step, "rank": rank, "waited_s": 0.0, "samples": 4, "ready": 4, "size": 10, "raw": {}} | empty | times


GROUPS = [
    moments(0, 0, asked_s=-4.0, prepared_s=-3.0, entered_s=-2.0, left_s=-1.0),
    moments(0, 1, entered_s=-2.0, left_s=-1.0, waited_s=0.5) | {"ready": 0, "raw": {"late": 4}},
    moments(1, 0, asked_s=-2.0),
]


def test_the_picture_shows_preparation_reading_and_waiting_at_their_times() -> None:
    pil = pytest.importorskip("PIL.Image")
    picture = pil.open(io.BytesIO(timeline.as_png(GROUPS)))
    assert picture.size == (1200, 44)
    at = {name: int((1199) * share) for name, share in (("preparing", 0.2), ("reading", 0.8), ("waited", 0.7))}
    assert picture.getpixel((at["preparing"], 4)) == (120, 160, 220)
    assert picture.getpixel((at["reading"], 14)) == (90, 170, 90)
    assert picture.getpixel((at["reading"], 22 + 17)) == (240, 160, 60)
    assert picture.getpixel((at["waited"], 22 + 10)) == (200, 40, 40)
    assert picture.getpixel((at["preparing"], 22 + 14)) == (255, 255, 255)


def test_a_picture_of_nothing_is_a_picture() -> None:
    assert timeline.as_png([]).startswith(b"\x89PNG")


def test_the_lines_say_who_waited_for_what() -> None:
    rows = timeline.as_rows(GROUPS)
    assert rows[1:] == [
        ("0", "0", "+1.000s", "0.000s", "4/4", "10", "-"),
        ("0", "1", "-", "0.500s", "0/4", "10", "late: 4"),
    ]


DOCUMENTS = {
    "an unknown key": (
        'fallbak = "raw"\n[feed]\nkind = "arrow"\npath = "."',
        r"fallbak: unknown key \(did you mean 'fallback'",
    ),
    "an unknown kind": ('[feed]\nkind = "tfrecord"\npath = "."', "feed"),
    "no feed": ("seed = 1", "feed"),
    "a negative seed": ('seed = -1\n[feed]\nkind = "arrow"\npath = "."', r"seed: is not in"),
    "nothing ahead": ('ahead = 0\n[feed]\nkind = "arrow"\npath = "."', "ahead: is less than 1"),
    "no TOML": ("feed = ", "is no TOML"),
    "a hidden name": ('name = ".raw"\n[feed]\nkind = "arrow"\npath = "."', "is no name of a directory"),
    "an extension with a dot": ('extension = ".npy"\n[feed]\nkind = "arrow"\npath = "."', "is no extension"),
    "micro batches that don't fit": (
        '[feed]\nkind = "mds"\npath = "i"\nbatches = { world_size = 1, batch_size = 3, '
        'layout = "micro", micro_batch_size = 2 }',
        "does not divide",
    ),
}


@pytest.mark.parametrize(("text", "said"), DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_a_document_that_cannot_be_used_is_refused_with_file_and_key(text: str, said: str) -> None:
    with pytest.raises(InvalidFeed, match=said) as refused:
        jobs.parse(text, "jobs/run.toml", "run")
    assert refused.value.subject.startswith("jobs/run.toml")


def test_paths_of_a_document_start_at_its_directory_and_stay_in_the_lake() -> None:
    from vfs.model import LakePath

    assert jobs.lake_path("../data/x.bin", LakePath("jobs/run")) == "jobs/data/x.bin"
    assert jobs.lake_path("/data/x.bin", LakePath("jobs/run")) == "data/x.bin"
    with pytest.raises(InvalidFeed, match="leads out of the lake"):
        jobs.lake_path("../../../x", LakePath("jobs/run"))


def test_seeds_differ_by_sample_and_epoch_and_are_never_none() -> None:
    seeds = {jobs.seed_of(seed, name, epoch) for seed in (0, 1) for name in ("a", "b") for epoch in (0, 1)}
    assert len(seeds) == 8
    assert all(0 < seed < 1 << 63 for seed in seeds)
