"""Per-step files in the schema of docs/samples.md: `step_0000012.parquet` (or `.arrow`, Arrow IPC), one row for each sample.

A file is one step: it is read whole, checked whole, and refused whole.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vfs.errors import InvalidFeed
from vfs.model import Kind, LakePath, can_posix_carry, join
from vfs.samples import tree
from vfs.samples.feeds.protocol import Lake
from vfs.samples.jobs import Job, filler
from vfs.samples.loading import LoadCache
from vfs.samples.model import Sample

STEP_FILE_BYTES_MAX = 256 << 20
"""Some ten million samples in one step; what is larger is no step."""
_STEPS_KEPT = 8
"""What is read, prepared and read late at a time; more would only be memory."""
_SUFFIXES = ("parquet", "arrow")
_NAME = re.compile(r"step_(\d{7,18})\.(parquet|arrow)")
_WHOLE, _TEXT = ("rank", "slot", "offset", "length"), ("sample_id", "source")
_OPTIONAL_TEXT = ("job", "operator", "params", "dataset_version")
_COLUMNS = {"step", "seed", *_WHOLE, *_TEXT, *_OPTIONAL_TEXT}
_INT64_MAX = (1 << 63) - 1
Groups = Mapping[int, Sequence[Sample]]

SCHEMA = pa.schema(
    [
        pa.field("job", pa.string()),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("operator", pa.string()),
        pa.field("params", pa.string()),
        pa.field("seed", pa.int64()),
        pa.field("dataset_version", pa.string()),
    ]
)
"""What a writer of schedules uses. Readers take any integer and string types, and columns that may be missing."""


class ArrowFeed:
    """A directory of per-step files.

    Args:
        directory: in the lake.
        mtime_ns: of the schedule.
    """

    def __init__(self, lake: Lake, job: Job, directory: LakePath, mtime_ns: int) -> None:
        self._lake = lake
        self._job = job.name
        self._directory = directory
        # Steps are added while a job runs, so the files together have no version; rows or the job state one.
        self._fill = filler(job, "")
        self._mtime_ns = mtime_ns
        self._steps: LoadCache[int, Groups] = LoadCache(self._load, kept=_STEPS_KEPT)

    @classmethod
    async def open(cls, lake: Lake, job: Job, directory: LakePath) -> ArrowFeed:
        """Return the feed of a directory.

        Raises:
            InvalidFeed: there is no such directory, or no step in it.
        """
        entries = [entry for entry in await lake.list(directory) if entry.kind is Kind.FILE and _NAME.fullmatch(entry.name)]
        if not entries:
            raise InvalidFeed(directory, "holds no step_NNNNNNN.parquet or .arrow")
        return cls(lake, job, directory, min(entry.version.mtime_ns for entry in entries))

    @property
    def mtime_ns(self) -> int:
        """Return when the first step was written, which does not change as steps are added."""
        return self._mtime_ns

    async def steps(self) -> Sequence[int]:
        found = (_NAME.fullmatch(entry.name) for entry in await self._lake.list(self._directory))
        return sorted({int(match[1]) for match in found if match})

    async def ranks(self, step: int) -> Sequence[int]:
        return sorted(await self._steps.get(step))

    async def group(self, step: int, rank: int) -> Sequence[Sample]:
        return (await self._steps.get(step)).get(rank, ())

    async def _load(self, step: int) -> Groups:
        for suffix in _SUFFIXES:
            path = LakePath(join(self._directory, f"{tree.step_name(step)}.{suffix}"))
            entry = await self._lake.stat(path)
            if entry is None or entry.kind is not Kind.FILE:
                continue
            if entry.version.size > STEP_FILE_BYTES_MAX:
                raise InvalidFeed(path, f"has {entry.version.size} bytes, a step at most {STEP_FILE_BYTES_MAX}")
            body = await self._lake.read(path, entry.version, 0, entry.version.size)
            return await asyncio.to_thread(groups_of, body, path, self._job, step, self._fill)
        return {}


def groups_of(body: bytes, path: LakePath, job: str, step: int, fill: Callable[[Sample], Sample]) -> dict[int, list[Sample]]:
    """Return the samples of a step's file by rank, in the order of slots.

    Raises:
        InvalidFeed: the file is no table, its columns are not those of the schema, or a row can't be used.
    """
    table = _table(body, path)
    columns = _columns(table, path, job, step)
    found: dict[int, list[Sample]] = {}
    places: set[tuple[int, int]] = set()
    bytes_of: dict[str, tuple[str, int, int]] = {}
    for row in range(table.num_rows):
        value = {name: column[row] for name, column in columns.items()}
        try:
            sample = fill(_sample(value))
            place = sample.rank, sample.slot
            if place in places:
                raise ValueError(f"rank {sample.rank} has slot {sample.slot} a second time")
            lies = sample.source, sample.offset, sample.length
            if bytes_of.setdefault(sample.sample_id, lies) != lies:
                raise ValueError(f"sample {sample.sample_id!r} lies elsewhere than in a row before")
        except ValueError as exc:
            raise InvalidFeed(path, f"row {row}: {exc}") from exc
        places.add(place)
        found.setdefault(sample.rank, []).append(sample)
    for samples in found.values():
        samples.sort(key=lambda sample: sample.slot)
    return found


def _table(body: bytes, path: LakePath) -> pa.Table:
    try:
        if path.endswith(".parquet"):
            return pq.read_table(io.BytesIO(body))
        return pa.ipc.open_file(pa.BufferReader(body)).read_all()
    except (pa.ArrowException, OSError) as exc:
        raise InvalidFeed(path, f"is broken or cut off: {str(exc).splitlines()[0]}") from exc


def _columns(table: pa.Table, path: LakePath, job: str, step: int) -> dict[str, list[Any]]:
    """Return the columns as values of Python, all of the types that the schema gives them."""
    names = table.column_names
    missing = sorted({"step", *_WHOLE, *_TEXT} - set(names))
    if missing or len(set(names)) != len(names):
        raise InvalidFeed(path, f"has no column {missing[0]!r}" if missing else "has a column twice")
    if unknown := sorted(set(names) - _COLUMNS):
        raise InvalidFeed(path, f"has the unknown column {unknown[0]!r}", "docs/samples.md lists the columns")
    found = {}
    for name in names:
        whole = name in ("step", "seed", *_WHOLE)
        column = _cast(table[name], pa.int64() if whole else pa.string(), name, path)
        if name in ("step", *_WHOLE, *_TEXT) and column.null_count:
            raise InvalidFeed(path, f"row {_first(pc.is_null(column))}: {name} is null")
        if whole and (negative := _first(pc.less(column, 0))) is not None:
            raise InvalidFeed(path, f"row {negative}: {name} is negative")
        found[name] = column
    if (other := _first(pc.not_equal(found["step"], step))) is not None:
        raise InvalidFeed(path, f"row {other}: is of step {found['step'][other]}, the file of step {step}")
    if "job" in found and (other := _first(pc.not_equal(found["job"], job))) is not None:
        raise InvalidFeed(path, f"row {other}: is of job {found['job'][other].as_py()!r}, not of {job!r}")
    rows = {name: column.to_pylist() for name, column in found.items()}
    rows["job"] = [job] * table.num_rows
    return rows


def _cast(column: pa.ChunkedArray, wanted: pa.DataType, name: str, path: LakePath) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    fits = (
        pa.types.is_integer(kind)
        if pa.types.is_integer(wanted)
        else pa.types.is_string(kind) or pa.types.is_large_string(kind)
    )
    if not fits:
        raise InvalidFeed(path, f"column {name!r} is {column.type}, not {wanted}")
    try:
        return column.cast(kind).cast(wanted)
    except pa.ArrowException as exc:
        raise InvalidFeed(path, f"column {name!r}: {str(exc).splitlines()[0]}") from exc


def _first(found: pa.ChunkedArray) -> int | None:
    """Return the first row that is true."""
    index = pc.index(found, True).as_py()
    return None if index < 0 else int(index)


def _sample(value: Mapping[str, Any]) -> Sample:
    """Return a row as a sample.

    Raises:
        ValueError: a value can't be used.
    """
    sample_id, source = value["sample_id"], value["source"]
    if not tree.is_sample_id(sample_id):
        raise ValueError(f"sample_id {sample_id!r} is no name of a file")
    if not source or not all(can_posix_carry(part) for part in source.split("/")):
        raise ValueError(f"source {source!r} is no path in the lake")
    if value["length"] < 1 or value["offset"] + value["length"] > _INT64_MAX:
        raise ValueError(f"[{value['offset']}, +{value['length']}) is no range")
    return Sample(
        value["job"],
        value["step"],
        value["rank"],
        value["slot"],
        sample_id,
        LakePath(source),
        value["offset"],
        value["length"],
        operator=value.get("operator") or "",
        params=canonical(value.get("params") or ""),
        seed=value.get("seed") or 0,
        dataset_version=value.get("dataset_version") or "",
    )


def canonical(params: str) -> str:
    """Return JSON in its one spelling: sorted keys, no blanks; "" is none.

    Raises:
        ValueError: it is no JSON object.
    """
    if not params:
        return ""
    try:
        found = json.loads(params)
    except json.JSONDecodeError as exc:
        raise ValueError(f"params {params!r} is no JSON") from exc
    if not isinstance(found, dict):
        raise ValueError(f"params {params!r} is no JSON object")  # noqa: TRY004  # a wrong value of the feed, no bug
    return json.dumps(found, sort_keys=True, separators=(",", ":"), allow_nan=False)
