"""Small data sets with a schedule of each kind, and what each slot of it has to be: for tests of feeds, jobs and mounts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import struct
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vfs.errors import NotFound, Stale
from vfs.model import Entry, Kind, LakePath, Version
from vfs.samples import jobs
from vfs.samples.feeds.arrow import SCHEMA
from vfs.samples.feeds.bins import RECORD
from vfs.samples.feeds.open import open_feed
from vfs.samples.feeds.protocol import Feed
from vfs.samples.model import Sample

WORLD, BATCH, STEPS = 2, 3, 4
COUNT = WORLD * BATCH * STEPS
Slots = dict[tuple[int, int, int], bytes]


@dataclass
class DirectoryLake:
    """A lake that is a directory: what feeds need of one.

    Attributes:
        bytes_read, reads: so far.
    """

    root: Path
    bytes_read: int = 0
    reads: int = 0

    async def stat(self, path: LakePath) -> Entry | None:
        """Return the entry of a path."""
        try:
            found = os.stat(self.root / path)
        except FileNotFoundError:
            return None
        kind = Kind.DIRECTORY if (self.root / path).is_dir() else Kind.FILE
        return Entry(Path(path).name, kind, Version(found.st_size, found.st_mtime_ns))

    async def list(self, path: LakePath) -> Sequence[Entry]:
        """Return the entries of a directory."""
        if not (self.root / path).is_dir():
            return []
        found = [await self.stat(LakePath(f"{path}/{name}")) for name in os.listdir(self.root / path)]
        return [entry for entry in found if entry is not None]

    async def read(self, path: LakePath, version: Version, offset: int, length: int) -> bytes:
        """Return bytes of this version."""
        entry = await self.stat(path)
        if entry is None:
            raise NotFound(path)
        if entry.version != version:
            raise Stale(path)
        assert offset + length <= version.size, "a feed reads what is there"
        self.bytes_read += length
        self.reads += 1
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)


@dataclass
class Schedule:
    """A job and what it reads.

    Attributes:
        text: of its document, which lies in the directory `jobs` of the lake.
        slots: raw bytes by (step, rank, slot).
        indices: files of the schedule, relative to the lake, each of which can be cut off.
    """

    text: str
    slots: Slots
    indices: list[str] = field(default_factory=list)


def payload(number: int) -> bytes:
    """Return the raw bytes of a sample: another length and other bytes for each."""
    return bytes(np.random.default_rng(number).integers(0, 256, 200 + 17 * number, np.uint8))


async def opened(lake: DirectoryLake, text: str) -> Feed:
    """Return the feed of a document that lies in the directory `jobs` of the lake."""
    return await open_feed(lake, jobs.parse(text, "jobs/run.toml", "run"), LakePath("jobs"))


async def everything(feed: Feed) -> list[Sample]:
    """Return all samples by step, rank and slot."""
    return [
        sample
        for step in await feed.steps()
        for rank in await feed.ranks(step)
        for sample in await feed.group(step, rank)
    ]  # fmt: skip


async def slots_of(feed: Feed, lake: Path) -> Slots:
    """Return the raw bytes of all samples by (step, rank, slot), read from the files that the feed names."""
    found: Slots = {}
    for sample in await everything(feed):
        body = (lake / sample.source).read_bytes()
        place = sample.step, sample.rank, sample.slot
        found[place] = b"".join(body[offset : offset + length] for offset, length in sample.ranges)
    return found


def order_of(count: int = COUNT) -> np.ndarray:
    """Return a shuffled order of sample numbers."""
    return np.random.default_rng(7).permutation(count)


def strided(bodies: Sequence[bytes]) -> Slots:
    """Return who reads what where ranks take turns, written as a loop: the order's samples one after the other."""
    found: Slots = {}
    for position, body in enumerate(bodies):
        step, within = divmod(position, WORLD * BATCH)
        slot, rank = divmod(within, WORLD)
        found[step, rank, slot] = body
    return found


def write(lake: Path, name: str, body: bytes) -> None:
    """Write a file of the lake."""
    (lake / name).parent.mkdir(parents=True, exist_ok=True)
    (lake / name).write_bytes(body)


def npy(array: np.ndarray) -> bytes:
    """Return an array as .npy."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def arrow_table(samples: Sequence[Sample]) -> pa.Table:
    """Return samples as a table in the schema of schedules."""
    names = [name for name in Sample.__struct_fields__ if name != "more"]
    return pa.table({name: [getattr(each, name) for each in samples] for name in names}, schema=SCHEMA)


def arrow(lake: Path, suffix: str = "parquet") -> Schedule:
    """Write one file with the raw bytes of all samples, and a file for each step."""
    slots = strided([payload(number) for number in order_of()])
    body, places = b"", {}
    for number in range(COUNT):
        places[payload(number)] = (f"s{number}", len(body), len(payload(number)))
        body += payload(number)
    write(lake, "data/all.bin", body)
    for step in range(STEPS):
        samples = [
            Sample("run", at, rank, slot, places[raw][0], LakePath("data/all.bin"), *places[raw][1:])
            for (at, rank, slot), raw in slots.items()
            if at == step
        ]
        stream = io.BytesIO()
        if suffix == "parquet":
            pq.write_table(arrow_table(samples), stream)
        else:
            with pa.ipc.new_file(stream, SCHEMA) as writer:
                writer.write_table(arrow_table(samples))
        write(lake, f"jobs/steps/step_{step:07d}.{suffix}", stream.getvalue())
    return Schedule('[feed]\nkind = "arrow"\npath = "steps"', slots, [f"jobs/steps/step_0000001.{suffix}"])


def bins(lake: Path, gap: int = 1) -> Schedule:
    """Write two bins, two maps and a file for each step. With a gap of more than 1 the ids leave numbers out."""
    records = np.zeros(COUNT, RECORD)
    for which in range(2):
        body = b""
        for number in range(which, COUNT, 2):
            records[number] = (gap * number, which, len(body), len(payload(number)))
            body += payload(number)
        write(lake, f"data/{which}.bin", body)
    half = COUNT // 2
    write(lake, "jobs/maps/0.map", records[:half].tobytes())
    write(lake, "jobs/maps/1.map", records[half:].tobytes())
    maps = [
        {"path": "maps/0.map", "first": 0, "last": int(records["id"][half - 1])},
        {"path": "maps/1.map", "first": int(records["id"][half]), "last": int(records["id"][-1])},
    ]
    said = {"bins": ["../data/0.bin", "/data/1.bin"], "maps": maps, "steps": "steps"}
    write(lake, "jobs/bins.json", json.dumps(said).encode())
    order = order_of().reshape(STEPS, WORLD, BATCH)
    slots: Slots = {}
    for step in range(STEPS):
        write(lake, f"jobs/steps/step_{step:07d}.npy", npy(gap * order[step]))
        for rank in range(WORLD):
            slots |= {(step, rank, slot): payload(int(order[step, rank, slot])) for slot in range(BATCH)}
    return Schedule('[feed]\nkind = "bins"\npath = "bins.json"', slots, ["jobs/maps/0.map", "jobs/steps/step_0000001.npy"])


_BATCHES = f"batches = {{ world_size = {WORLD}, batch_size = {BATCH} }}\n"


def megatron(lake: Path) -> Schedule:
    """Write documents of tokens with the index that Megatron caches; samples go across documents."""
    length = 10
    generator = np.random.default_rng(3)
    documents = [generator.integers(0, 60000, size, np.uint16) for size in generator.integers(3, 25, 40)]
    lengths = np.array([len(each) for each in documents], np.int32)
    pointers = np.concatenate([[0], 2 * np.cumsum(lengths)[:-1]]).astype(np.int64)
    write(lake, "data/text.bin", b"".join(each.tobytes() for each in documents))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
    starts = np.arange(len(documents) + 1, dtype=np.int64)
    write(lake, "data/text.idx", head + lengths.tobytes() + pointers.tobytes() + starts.tobytes())
    document_index = generator.permutation(len(documents)).astype(np.int32)
    line = [(place, token) for place, which in enumerate(document_index) for token in range(lengths[which])]
    tokens = np.concatenate([documents[which] for which in document_index])
    sample_index = np.array([line[at] for at in range(0, length * COUNT + 1, length)], np.int32)
    shuffle = order_of().astype(np.uint32)
    for name, array in (("document", document_index), ("sample", sample_index), ("shuffle", shuffle)):
        write(lake, f"jobs/cache/x-GPTDataset-train-{name}_index.npy", npy(array))
    slots: Slots = {}
    for position, number in enumerate(shuffle):
        step, within = divmod(position, WORLD * BATCH)
        slot, rank = divmod(within, WORLD)  # micro batches of 1: dealt in turn
        slots[step, rank, slot] = tokens[length * number : length * number + length + 1].tobytes()
    text = '[feed]\nkind = "megatron"\npath = "cache/x-GPTDataset-train"\ndata = "/data/text"\n'
    indices = [f"jobs/cache/x-GPTDataset-train-{name}_index.npy" for name in ("document", "sample", "shuffle")]
    batches = _BATCHES.replace(" }", ', layout = "micro" }')
    return Schedule(text + batches, slots, [*indices, "data/text.idx"])


def indices(lake: Path, header: bool = False) -> Schedule:
    """Write two files of tokens and OLMo's order of their chunks."""
    chunk, parts = 8, (10, COUNT - 10)
    generator = np.random.default_rng(5)
    files = [generator.integers(0, 60000, chunk * count + 5, np.uint16) for count in parts]
    for which, tokens in enumerate(files):
        write(lake, f"data/part{which}.npy", tokens.tobytes())
    chunks = [
        tokens[chunk * at : chunk * (at + 1)] for tokens, count in zip(files, parts, strict=True) for at in range(count)
    ]
    order = order_of().astype(np.uint32)
    write(lake, "jobs/global_indices.npy", npy(order) if header else order.tobytes())
    text = (
        f'[feed]\nkind = "indices"\npath = "global_indices.npy"\nchunk_tokens = {chunk}\n'
        'data = ["../data/part0.npy", "../data/part1.npy"]\n'
    )
    return Schedule(text + _BATCHES, strided([chunks[number].tobytes() for number in order]), ["jobs/global_indices.npy"])


def webdataset(lake: Path, part: str = "jpg") -> Schedule:
    """Write three tars of two files for each sample, with the index beside each."""
    each = COUNT // 3
    raws: list[bytes] = []
    for which in range(3):
        stream, offsets = io.BytesIO(), []
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for number in range(which * each, (which + 1) * each):
                offsets.append(archive.offset)
                for suffix, body in (("jpg", payload(number)), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(body)
                    archive.addfile(member, io.BytesIO(body))
            offsets.append(archive.offset)
        body = stream.getvalue()
        raws += [
            payload(which * each + at) if part else body[offsets[at] : offsets[at + 1]] for at in range(each)
        ]  # fmt: skip
        write(lake, f"jobs/tars/shard-{which:06d}.tar", body)
        write(lake, f"jobs/tars/shard-{which:06d}.tar.idx", np.array(offsets, "<u8").tobytes())
    write(lake, "jobs/order.npy", npy(order_of()))
    text = f'[feed]\nkind = "webdataset"\npath = "tars"\norder = "order.npy"\npart = "{part}"\n'
    cut = ["jobs/tars/shard-000001.tar.idx", "jobs/tars/shard-000001.tar", "jobs/order.npy"]
    return Schedule(text + _BATCHES, strided([raws[number] for number in order_of()]), cut)


def energon(lake: Path, part: str = "jpg") -> Schedule:
    """Write the tars of `webdataset` with the database that `energon prepare` makes of them, and no other index."""
    schedule = webdataset(lake, part)
    meta, counts = lake / "jobs/tars/.nv-meta", {}
    meta.mkdir()
    with contextlib.closing(sqlite3.connect(meta / "index.sqlite")) as database, database:
        database.executescript(ENERGON_TABLES)
        for tar, path in enumerate(sorted((lake / "jobs/tars").glob("*.tar"))):
            offsets = np.fromfile(f"{path}.idx", "<u8").tolist()
            counts[path.name] = len(offsets) - 1
            with tarfile.open(path) as archive:
                for member in archive:
                    row = next(row for row, end in enumerate(offsets[1:]) if member.offset < end)
                    key, _, suffix = member.name.partition(".")
                    values = (tar, key, row, offsets[row], offsets[row + 1] - offsets[row])
                    database.execute("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?)", values)
                    place = (tar, row, suffix, member.offset_data, member.size)
                    database.execute("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", place)
            Path(f"{path}.idx").unlink()
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    text = schedule.text.replace('kind = "webdataset"\n', 'kind = "webdataset"\nindex = "energon"\n')
    cut = ["jobs/tars/.nv-meta/index.sqlite", "jobs/tars/.nv-meta/.info.json", "jobs/order.npy"]
    return Schedule(text, schedule.slots, cut)


def mds(lake: Path, column: str = "image") -> Schedule:
    """Write two shards as MosaicML Streaming does, of an integer and a variable column."""
    half, shards, raws = COUNT // 2, [], []
    for which in range(2):
        samples = [
            struct.pack("<I", len(payload(number))) + payload(number) + struct.pack("<q", number)
            for number in range(which * half, (which + 1) * half)
        ]
        config = b"{}"
        ends = np.cumsum([4 * (half + 2) + len(config), *map(len, samples)]).astype("<u4")
        body = struct.pack("<I", half) + ends.tobytes() + config + b"".join(samples)
        name = f"shard.{which:05d}.mds"
        write(lake, f"jobs/mds/{name}", body)
        shards.append(
            {
                "format": "mds", "version": 2, "samples": half, "compression": None, "hashes": [], "size_limit": 1 << 26,
                "column_names": ["image", "label"], "column_encodings": ["bytes", "int"], "column_sizes": [None, 8],
                "raw_data": {"basename": name, "bytes": len(body), "hashes": {}}, "zip_data": None,
            }
        )  # fmt: skip
        raws += [payload(which * half + at) if column else samples[at] for at in range(half)]
    write(lake, "jobs/mds/index.json", json.dumps({"version": 2, "shards": shards}).encode())
    write(lake, "jobs/order.npy", npy(order_of()))
    text = f'[feed]\nkind = "mds"\npath = "mds/index.json"\norder = "order.npy"\ncolumn = "{column}"\n'
    cut = ["jobs/mds/index.json", "jobs/mds/shard.00001.mds", "jobs/order.npy"]
    return Schedule(text + _BATCHES, strided([raws[number] for number in order_of()]), cut)


MOSAIC_ORDER = (
    ((8, 12, 2, 23, 16, 3, 19, 7, 15, 4, 20, 13), (21, 11, 22, 14, 6, 9, 18, 10, 1, 17, 5, 0)),
    ((3, 2, 10, 12, 20, 16, 9, 18, 22, 14, 5, 6), (19, 8, 17, 23, 4, 1, 11, 0, 15, 7, 21, 13)),
)
"""What each rank reads in epochs 0 and 1 of two shards of 12, with the defaults of mosaicml-streaming 0.13.0 and shuffle."""
MOSAIC = (
    '[feed]\nkind = "mds"\npath = "mds/index.json"\ncolumn = "image"\n'
    f"[feed.streaming]\nshuffle = true\nranks_per_node = {WORLD}\nbatch_size = {BATCH}\n"
)


def mds_streaming(lake: Path) -> Schedule:
    """Write the shards of `mds`, to be read in the order that the library computes."""
    cut = mds(lake).indices[:2]
    numbers = np.array(MOSAIC_ORDER[0]).reshape(WORLD, STEPS, BATCH)
    return Schedule(
        MOSAIC, {place[1::-1] + place[2:]: payload(int(number)) for place, number in np.ndenumerate(numbers)}, cut
    )


def mds_streams(lake: Path) -> Schedule:
    """Write the shards of `mds` as two streams, the second one first."""
    mds(lake)
    index = json.loads((lake / "jobs/mds/index.json").read_text())
    for name, shard in zip(("a", "b"), index["shards"], strict=True):
        write(lake, f"jobs/mds/{name}.json", json.dumps({"version": 2, "shards": [shard]}).encode())
    text = (
        '[feed]\nkind = "mds"\ncolumn = "image"\n'
        f"[feed.streaming]\nranks_per_node = {WORLD}\nbatch_size = {BATCH}\n"
        'streams = [{ path = "mds/b.json" }, { path = "mds/a.json", repeat = 1.0 }]\n'
    )
    numbers = np.roll(np.arange(COUNT), COUNT // 2).reshape(STEPS, BATCH, WORLD)
    slots = {(step, rank, slot): payload(int(number)) for (step, slot, rank), number in np.ndenumerate(numbers)}
    return Schedule(text, slots, ["jobs/mds/a.json", "jobs/mds/b.json", "jobs/mds/shard.00001.mds"])


ENERGON_TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER);
CREATE INDEX by_tar ON samples(tar_file_id, sample_index);
CREATE INDEX of_sample ON sample_parts(tar_file_id, sample_index, content_byte_offset);
"""


KINDS: dict[str, Callable[[Path], Schedule]] = {
    "parquet": arrow,
    "arrow-ipc": lambda lake: arrow(lake, "arrow"),
    "bins": bins,
    "bins-with-gaps": lambda lake: bins(lake, 3),
    "megatron": megatron,
    "indices": indices,
    "indices-with-header": lambda lake: indices(lake, header=True),
    "webdataset": webdataset,
    "webdataset-slices": lambda lake: webdataset(lake, ""),
    "energon": energon,
    "energon-slices": lambda lake: energon(lake, ""),
    "mds": mds,
    "mds-whole": lambda lake: mds(lake, ""),
    "mds-streaming": mds_streaming,
    "mds-streams": mds_streams,
}
