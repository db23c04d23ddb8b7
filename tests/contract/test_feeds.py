"""One suite for every kind of schedule feed: `vfs/samples/feeds/`."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.schedules import (
    BATCH,
    COUNT,
    KINDS,
    MOSAIC,
    MOSAIC_ORDER,
    STEPS,
    WORLD,
    DirectoryLake,
    arrow,
    bins,
    energon,
    everything,
    indices,
    mds,
    mds_streams,
    npy,
    opened,
    slots_of,
    webdataset,
    write,
)
from vfs.errors import InvalidFeed

kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
async def test_every_slot_of_every_step_is_the_sample_of_the_schedule(kind: str, tmp_path: Path) -> None:
    schedule = KINDS[kind](tmp_path)
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    assert await slots_of(feed, tmp_path) == schedule.slots
    assert len(set(schedule.slots.values())) == len(schedule.slots) == COUNT, "no sample twice, none lost"


@kinds
async def test_a_feed_says_its_steps_and_ranks_and_has_nothing_beyond(kind: str, tmp_path: Path) -> None:
    schedule = KINDS[kind](tmp_path)
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    assert list(await feed.steps()) == list(range(STEPS))
    assert list(await feed.ranks(STEPS - 1)) == list(range(WORLD))
    assert list(await feed.ranks(STEPS)) == []
    assert list(await feed.group(STEPS, 0)) == list(await feed.group(0, WORLD)) == []
    assert feed.mtime_ns > 0


@kinds
async def test_groups_can_be_had_in_any_order(kind: str, tmp_path: Path) -> None:
    schedule = KINDS[kind](tmp_path)
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    forwards = await everything(feed)
    again = await opened(DirectoryLake(tmp_path), schedule.text)
    last = await again.group(STEPS - 1, WORLD - 1)
    assert list(last) == forwards[-BATCH:]
    assert await everything(again) == forwards


@kinds
async def test_a_sample_has_all_that_its_job_says(kind: str, tmp_path: Path) -> None:
    schedule = KINDS[kind](tmp_path)
    text = (
        f'seed = 5\ndataset_version = "v1"\noperator = {{ name = "image@1", params = {{ b = 1, a = 2 }} }}\n{schedule.text}'
    )
    samples = await everything(await opened(DirectoryLake(tmp_path), text))
    assert {(each.job, each.operator, each.params, each.dataset_version) for each in samples} == {
        ("run", "image@1", '{"a":2,"b":1}', "v1")
    }
    assert len({sample.seed for sample in samples}) == COUNT


@kinds
async def test_a_feed_that_was_cut_off_is_refused_whole_and_says_which_file(kind: str, tmp_path: Path) -> None:
    for number, name in enumerate(KINDS[kind](tmp_path / "whole").indices):
        root = tmp_path / str(number)
        schedule, file = KINDS[kind](root), root / name
        size = file.stat().st_size
        os.truncate(file, size // 2 if name.endswith(".tar") else size - 7)  # a tar ends in blocks of padding
        with pytest.raises(InvalidFeed) as refused:
            await everything(await opened(DirectoryLake(root), schedule.text))
        assert name.removesuffix(".tar") in str(refused.value)


@kinds
async def test_a_feed_whose_file_is_missing_is_refused(kind: str, tmp_path: Path) -> None:
    schedule = KINDS[kind](tmp_path)
    for path in (tmp_path / "jobs").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(InvalidFeed):
        await opened(DirectoryLake(tmp_path), schedule.text)


async def test_of_a_hundred_million_samples_one_step_is_read(tmp_path: Path) -> None:
    count = 10**8
    write(tmp_path, "jobs/global_indices.npy", b"")
    os.truncate(tmp_path / "jobs/global_indices.npy", 4 * count)  # sparse: sample 0 every time
    write(tmp_path, "data/part.npy", bytes(4096))
    text = (
        '[feed]\nkind = "indices"\npath = "global_indices.npy"\ndata = ["/data/part.npy"]\n'
        "batches = { world_size = 64, batch_size = 16 }\n"
    )
    lake = DirectoryLake(tmp_path)
    tracemalloc.start()
    feed = await opened(lake, text)
    assert len(await feed.steps()) == count // (64 * 16)
    group = await feed.group(97_000, 63)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(group) == 16
    assert lake.bytes_read < 100_000
    assert peak < 2 << 20


TABLES = {
    "a slot twice": ({"slot": [0, 0, 2]}, "row 1: rank 0 has slot 0 a second time"),
    "another step": ({"step": [0, 1, 0]}, "row 1: is of step 1, the file of step 0"),
    "another job": ({"job": ["run", "run", "walk"]}, "row 2: is of job 'walk', not of 'run'"),
    "a negative offset": ({"offset": [0, -1, 0]}, "row 1: offset is negative"),
    "no bytes": ({"length": [1, 1, 0]}, "row 2: [20, +0) is no range"),
    "beyond any file": ({"offset": [0, 10, (1 << 63) - 2]}, "row 2: [9223372036854775806, +10) is no range"),
    "a null": ({"source": ["a", None, "a"]}, "row 1: source is null"),
    "a path upwards": ({"source": ["a", "../a", "a"]}, "row 1: source '../a' is no path in the lake"),
    "no name": ({"sample_id": ["x", "", "w"]}, "row 1: sample_id '' is no name of a file"),
    "a slash in a name": ({"sample_id": ["x", "y/z", "w"]}, "row 1: sample_id 'y/z' is no name of a file"),
    "one sample in two places": ({"sample_id": ["x", "y", "x"]}, "row 2: sample 'x' lies elsewhere than in a row before"),
    "params that are no JSON": ({"params": ["{}", "{", "{}"]}, "row 1: params '{' is no JSON"),
    "text for a number": ({"rank": ["0", "0", "0"]}, "column 'rank' is string, not int64"),
    "an unknown column": ({"colour": [1, 2, 3]}, "has the unknown column 'colour'"),
}


@pytest.mark.parametrize(("wrong", "said"), TABLES.values(), ids=list(TABLES))
async def test_a_contradictory_table_is_refused_with_its_row(
    wrong: dict[str, list[object]], said: str, tmp_path: Path
) -> None:
    columns = {
        "step": [0, 0, 0], "rank": [0, 0, 0], "slot": [0, 1, 2], "sample_id": ["x", "y", "z"],
        "source": ["a", "a", "a"], "offset": [0, 10, 20], "length": [10, 10, 10],
    }  # fmt: skip
    (tmp_path / "jobs").mkdir()
    pq.write_table(pa.table(columns | wrong), tmp_path / "jobs/step_0000000.parquet")
    feed = await opened(DirectoryLake(tmp_path), '[feed]\nkind = "arrow"\npath = "."')
    with pytest.raises(InvalidFeed) as refused:
        await feed.group(0, 0)
    assert refused.value.subject == "jobs/step_0000000.parquet"
    assert said in refused.value.reason


async def test_a_table_without_a_column_that_it_needs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    pq.write_table(pa.table({"step": [0], "rank": [0]}), tmp_path / "jobs/step_0000000.parquet")
    feed = await opened(DirectoryLake(tmp_path), '[feed]\nkind = "arrow"\npath = "."')
    with pytest.raises(InvalidFeed, match="has no column 'length'"):
        await feed.ranks(0)


async def test_an_order_that_names_a_sample_that_is_not_there_is_refused_with_its_row(tmp_path: Path) -> None:
    schedule = webdataset(tmp_path)
    order = np.arange(COUNT)
    order[5] = COUNT
    write(tmp_path, "jobs/order.npy", npy(order))
    with pytest.raises(InvalidFeed, match=f"row 5: names sample {COUNT} of {COUNT}"):
        await everything(await opened(DirectoryLake(tmp_path), schedule.text))


async def test_a_tar_index_that_cuts_a_member_is_refused_with_its_row(tmp_path: Path) -> None:
    schedule = webdataset(tmp_path)
    file = tmp_path / "jobs/tars/shard-000000.tar.idx"
    offsets = np.frombuffer(file.read_bytes(), "<u8").copy()
    offsets[3] += 512
    file.write_bytes(offsets.tobytes())
    with pytest.raises(InvalidFeed, match=r"shard-000000\.tar\.idx: row [23]: "):
        await everything(await opened(DirectoryLake(tmp_path), schedule.text))


async def test_a_tar_without_an_index_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    schedule = webdataset(tmp_path)
    (tmp_path / "jobs/tars/shard-000002.tar.idx").unlink()
    with pytest.raises(InvalidFeed, match=r"foremount index jobs/tars/shard-000002\.tar makes one"):
        await opened(DirectoryLake(tmp_path), schedule.text)


HOSTILE = {
    "a view for a table": (
        "ALTER TABLE samples RENAME TO real; CREATE VIEW samples AS SELECT * FROM real",
        "has no table 'samples'",
    ),
    "a column that calls a function": (
        "ALTER TABLE samples RENAME COLUMN byte_offset TO other;ALTER TABLE samples ADD COLUMN byte_offset AS (abs(-512))",
        "has no table 'samples'",
    ),
    "a virtual table": (
        "DROP TABLE sample_parts; CREATE VIRTUAL TABLE sample_parts USING fts5(tar_file_id, sample_index, part_name, "
        "content_byte_offset, content_byte_size)",
        "has no table 'sample_parts'",
    ),
    "no table": ("DROP TABLE sample_parts", "has no table 'sample_parts'"),
    "a sample fewer": (
        "DELETE FROM samples WHERE tar_file_id = 1 AND sample_index = 3",
        "tar 1: does not have the 8 samples",
    ),
    "a tar more": ("INSERT INTO samples VALUES (3, 'x', 0, 0, 1)", "has samples of tar 3"),
    "a tar that is no number": ("INSERT INTO samples VALUES ('x', 'x', 0, 0, 1)", "has samples of tar 'x'"),
    "a number twice": (
        "UPDATE samples SET sample_index = 4 WHERE tar_file_id = 1 AND sample_index = 3",
        "tar 1, row [34]: ",
    ),
    "a part twice": ("INSERT INTO sample_parts SELECT * FROM sample_parts", "tar [0-2], row [0-7]: stands there 2 times"),
    "no such part": ("DELETE FROM sample_parts WHERE part_name = 'jpg'", "tar [0-2], row [0-7]: has no 'jpg'"),
    "text for an offset": ("UPDATE sample_parts SET content_byte_offset = 'zero'", r"\['zero', \+"),
    "beyond the tar": ("UPDATE sample_parts SET content_byte_size = 1 << 40", "is no part of jobs/tars/shard-00000"),
    "a negative offset": ("UPDATE sample_parts SET content_byte_offset = -1", r"\[-1, \+"),
    "a name that is none": ("UPDATE samples SET sample_key = rowid || char(0)", "is no name of a file"),
}


@pytest.mark.parametrize(("change", "said"), HOSTILE.values(), ids=list(HOSTILE))
async def test_an_index_of_energon_that_is_wrong_or_hostile_is_refused(change: str, said: str, tmp_path: Path) -> None:
    schedule = energon(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs/tars/.nv-meta/index.sqlite")) as database, database:
        database.executescript(change)
    with pytest.raises(InvalidFeed, match=said):
        await everything(await opened(DirectoryLake(tmp_path), schedule.text))


@pytest.mark.parametrize("seed", range(12))
async def test_an_index_of_energon_with_changed_bytes_gives_samples_or_is_refused_and_nothing_else(
    seed: int, tmp_path: Path
) -> None:
    schedule = energon(tmp_path)
    file = tmp_path / "jobs/tars/.nv-meta/index.sqlite"
    rng = np.random.default_rng(seed)
    body = bytearray(file.read_bytes())
    for at in rng.integers(0, len(body), int(rng.integers(1, 200))):
        body[at] = int(rng.integers(0, 256))
    file.write_bytes(body)
    try:
        samples = await everything(await opened(DirectoryLake(tmp_path), schedule.text))
    except InvalidFeed as refused:
        assert ".nv-meta" in refused.subject
    else:
        assert len(samples) == COUNT


async def test_a_copy_of_energons_index_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = energon(tmp_path / "lake")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert len(await everything(await opened(DirectoryLake(tmp_path / "lake"), schedule.text))) == COUNT
    assert os.listdir(tmp_path / "scratch") == []


async def test_an_id_that_no_map_holds_is_refused_with_its_row(tmp_path: Path) -> None:
    schedule = bins(tmp_path, 3)
    ids = np.load(tmp_path / "jobs/steps/step_0000002.npy")
    ids[1, 2] += 1
    np.save(tmp_path / "jobs/steps/step_0000002.npy", ids)
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    assert len(await feed.group(2, 0)) == BATCH
    with pytest.raises(InvalidFeed, match=rf"step_0000002\.npy: row 1: slot 2 is sample {ids[1, 2]}, which is in no map"):
        await feed.group(2, 1)


async def test_maps_that_overlap_are_refused(tmp_path: Path) -> None:
    schedule = bins(tmp_path)
    said = json.loads((tmp_path / "jobs/bins.json").read_text())
    said["maps"][1]["first"] -= 1
    (tmp_path / "jobs/bins.json").write_text(json.dumps(said))
    with pytest.raises(InvalidFeed, match="begins at id 11, where another map holds up to 11"):
        await opened(DirectoryLake(tmp_path), schedule.text)


async def test_a_shard_of_another_count_than_the_index_says_is_refused_whenever_it_is_asked(tmp_path: Path) -> None:
    schedule = mds(tmp_path)
    with (tmp_path / "jobs/mds/shard.00000.mds").open("r+b") as file:
        file.write((COUNT // 2 + 1).to_bytes(4, "little"))
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    for _ in range(2):
        with pytest.raises(InvalidFeed, match=f"holds {COUNT // 2 + 1} samples, index.json says {COUNT // 2}"):
            await everything(feed)


async def test_an_epoch_of_streaming_that_was_half_read_is_followed_by_the_next(tmp_path: Path) -> None:
    mds(tmp_path)
    feed = await opened(DirectoryLake(tmp_path), f"{MOSAIC}epochs = 2\nsample_in_epoch = {COUNT // 2}\n")
    for rank in range(WORLD):
        read = [sample.sample_id for step in await feed.steps() for sample in await feed.group(step, rank)]
        numbers = (*MOSAIC_ORDER[0][rank][STEPS * BATCH // 2 :], *MOSAIC_ORDER[1][rank])
        assert read == [f"{number:09d}" for number in numbers]


async def test_a_world_that_streaming_has_no_order_for_is_refused(tmp_path: Path) -> None:
    mds(tmp_path)
    with pytest.raises(InvalidFeed, match=r"index\.json: 3 canonical and 2 nodes don't divide each other"):
        await opened(DirectoryLake(tmp_path), f"{MOSAIC}num_canonical_nodes = 3\nnodes = 2\n")


async def test_a_stream_may_be_left_out_and_another_read_twice(tmp_path: Path) -> None:
    text = mds_streams(tmp_path).text.replace("repeat = 1.0", "repeat = 2.0").replace('b.json"', 'b.json", choose = 0')
    feed = await opened(DirectoryLake(tmp_path), text)
    read = [sample.sample_id for step in await feed.steps() for sample in await feed.group(step, 1)]
    assert read == 2 * [f"{number:09d}" for number in range(COUNT // 2 + 1, COUNT, WORLD)]


@pytest.mark.parametrize("instead", [", repeat = 1e9 }]", " }]\nepoch_size = 1_073_741_825"], ids=["repeat", "epoch_size"])
async def test_an_epoch_that_is_too_large_to_be_shuffled_is_refused(tmp_path: Path, instead: str) -> None:
    text = mds_streams(tmp_path).text.replace(", repeat = 1.0 }]", instead)
    with pytest.raises(InvalidFeed, match=r"an epoch has \d+ samples, more than 1073741824"):
        await opened(DirectoryLake(tmp_path), text)


async def test_the_count_of_a_shard_is_read_once(tmp_path: Path) -> None:
    schedule = mds(tmp_path, "")
    lake = DirectoryLake(tmp_path)
    feed = await opened(lake, schedule.text)
    await everything(feed)
    before = lake.reads
    await everything(feed)
    assert lake.reads - before == STEPS * WORLD + COUNT, "the order for each group, two offsets for each sample"


async def test_an_order_shorter_than_a_step_of_the_world_is_refused(tmp_path: Path) -> None:
    schedule = indices(tmp_path)
    os.truncate(tmp_path / "jobs/global_indices.npy", 4 * (WORLD * BATCH - 1))
    with pytest.raises(InvalidFeed, match="5 samples are less than one batch of the whole world"):
        await opened(DirectoryLake(tmp_path), schedule.text)


async def test_a_step_that_is_written_later_is_found(tmp_path: Path) -> None:
    schedule = arrow(tmp_path)
    late = tmp_path / "jobs/steps/step_0000003.parquet"
    body = late.read_bytes()
    late.unlink()
    feed = await opened(DirectoryLake(tmp_path), schedule.text)
    assert list(await feed.ranks(3)) == []
    late.write_bytes(body)
    assert list(await feed.ranks(3)) == [0, 1]
