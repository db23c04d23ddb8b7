"""What a job is: a small TOML document in the lake, or given to `foremount job start`. Defaults live here, once.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import xxhash

from vfs.config import explain_mismatch
from vfs.errors import InvalidFeed
from vfs.model import LakePath, can_posix_carry, split
from vfs.samples import tree
from vfs.samples.model import Sample
from vfs.units import Seconds, decode_unit

DOCUMENT_BYTES_MAX = 1 << 20
Fallback = Literal["raw", "local", "wait"]
Dtype = Literal["uint16", "uint32", "int32", "int64"]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class ArrowSource(_Document, frozen=True, tag_field="kind", tag="arrow"):
    """Per-step files in the schema of docs/samples.md.

    Attributes:
        path: directory in the lake, relative to the document's own or absolute with a leading "/".
    """

    path: str


class BinsSource(_Document, frozen=True, tag_field="kind", tag="bins"):
    """Bins, maps from sample id to place, and per-step files of ids.

    Attributes:
        path: of `bins.json`.
    """

    path: str


class Batches(_Document, frozen=True):
    """How the samples of an order become steps, ranks and slots. Without it nothing says who reads what.

    Attributes:
        world_size: ranks.
        batch_size: samples of one rank in one step.
        layout: "strided": rank r takes every world_size-th sample; "blocked": batch_size consecutive ones;
            "micro": micro_batch_size consecutive ones out of each world_size * micro_batch_size.
        micro_batch_size: of "micro"; divides batch_size.
        first: samples of the order before step 0, in a job that goes on where another ended.
    """

    world_size: int
    batch_size: int
    layout: Literal["strided", "blocked", "micro"] = "strided"
    micro_batch_size: int = 1
    first: int = 0


class MegatronSource(_Document, frozen=True, tag_field="kind", tag="megatron"):
    """The index files that Megatron's GPTDataset caches.

    Attributes:
        path: prefix of `…-document_index.npy`, `…-sample_index.npy` and `…-shuffle_index.npy`.
        data: prefix of the `.idx` and `.bin` files.
        add_extra_token: as in the training's configuration.
    """

    path: str
    data: str
    batches: Batches
    add_extra_token: bool = True


class IndicesSource(_Document, frozen=True, tag_field="kind", tag="indices"):
    """`global_indices*.npy` of OLMo, with or without NumPy's header, over flat files of tokens.

    Attributes:
        path: of the indices.
        data: files of tokens in their order.
        dtype: of a token.
        chunk_tokens: tokens of one sample; a file's rest is left out.
        index_dtype: of an index where the file has no header.
    """

    path: str
    data: list[str]
    batches: Batches
    dtype: Dtype = "uint16"
    chunk_tokens: int = 2048
    index_dtype: Dtype = "uint32"


class Stream(_Document, frozen=True):
    """One stream of a `StreamingDataset`; at most one of its weights is given.

    Attributes:
        path: of its `index.json`.
        proportion: of the epoch, against those of all other streams.
        repeat: how often an epoch has each of its samples.
        choose: how many of its samples an epoch has.
    """

    path: str
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None


class Streaming(_Document, frozen=True):
    """What decides the order of a `StreamingDataset`, in its words; defaults are its own.

    Attributes:
        ranks_per_node, nodes: of the world.
        batch_size: of one rank.
        streams: in their order; none: the one of the feed's `path`.
        epoch_size: samples of an epoch; 0: what the streams give.
        sampling_method, sampling_granularity: of streams that an epoch has in part.
        shuffle_block_size, num_canonical_nodes: 0: as the library has it where none is given.
        drop_last: as the DataLoader has it.
        epoch, sample_in_epoch: where step 0 is, as the `state_dict` says that a job goes on from.
        epochs: of the schedule, the first one included.
    """

    ranks_per_node: int
    batch_size: int
    nodes: int = 1
    shuffle: bool = False
    shuffle_algo: Literal["py1e", "py1br", "py1s", "py2s", "naive"] = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int = 0
    num_canonical_nodes: int = 0
    drop_last: bool = False
    epoch: int = 0
    sample_in_epoch: int = 0
    epochs: int = 1
    streams: list[Stream] = []
    epoch_size: int = 0
    sampling_method: Literal["balanced", "fixed"] = "balanced"
    sampling_granularity: int = 1


class MdsSource(_Document, frozen=True, tag_field="kind", tag="mds"):
    """Shards of MosaicML Streaming.

    Attributes:
        path: of `index.json`; "": of those that `streaming.streams` names.
        batches, order: who reads what, and the file of sample numbers (.npy); "": as the shards have them.
        streaming: in place of both, the order that the library itself computes.
        column: whose bytes are the sample; "": the whole encoded sample.
    """

    path: str = ""
    batches: Batches | None = None
    order: str = ""
    streaming: Streaming | None = None
    column: str = ""


class TarSource(_Document, frozen=True, tag_field="kind", tag="webdataset"):
    """WebDataset tars with an index.

    Attributes:
        path: directory of the tars.
        index: "tar.idx": one beside each tar (Energon's, or by `foremount index`), tars in the order of their names;
            "energon": the database in `.nv-meta`, tars in the order of its `.info.json`.
        order: file of sample numbers (.npy); "": as the tars have them.
        part: extension of the file that is the sample, "jpg"; "": the slice of the tar that holds all its files.
    """

    path: str
    batches: Batches
    index: Literal["tar.idx", "energon"] = "tar.idx"
    order: str = ""
    part: str = ""


Source = ArrowSource | BinsSource | MegatronSource | IndicesSource | MdsSource | TarSource


class Operator(_Document, frozen=True):
    """What is made of samples of which the feed does not say it.

    Attributes:
        name: "name" or "name@version".
    """

    name: str
    params: dict[str, Any] = {}


class Job(_Document, frozen=True):
    """The whole document.

    Attributes:
        feed: where the schedule comes from.
        format: of this document.
        name: "": as the document's file is called, without ".toml".
        operator: of samples that have none in the feed.
        extension: of the sample files' names; "": as the operator says.
        raw_extension: of the raw bytes; "": as their source is called.
        seed: of samples that have none in the feed: each gets one from this, its name and its epoch, which is its step where
            the feed knows no epochs.
        dataset_version: of samples that have none in the feed; "": the version of the files that the feed consists of.
        fallback: what a sample that is not ready becomes: the raw bytes; transformed by this host; or its reader waits.
        deadline: how long a reader waits with "wait" and "local", then it gets the raw bytes.
        ahead: steps prepared before they are read.
        behind: steps kept after they were read, for workers that are behind others of their rank.
        keep: samples stay after their step, as far as room allows: for repeated epochs or RL.
        nodes: node services to ask, "https://host:port"; none: those of foremount.toml.
    """

    feed: Source
    format: Literal[1] = 1
    name: str = ""
    operator: Operator | None = None
    extension: str = ""
    raw_extension: str = ""
    seed: int = 0
    dataset_version: str = ""
    fallback: Fallback = "raw"
    deadline: Seconds = Seconds(5.0)
    ahead: int = 4
    behind: int = 1
    keep: bool = False
    nodes: list[str] = []


def parse(text: str, file: str, name: str = "") -> Job:
    """Return the job that a document declares.

    Args:
        file: for messages.
        name: of a document that gives none.
    Raises:
        InvalidFeed: it can't be used; names file and key.
    """
    try:
        job: Job = msgspec.convert(tomllib.loads(text), Job, dec_hook=decode_unit)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidFeed(file, f"is no TOML: {exc}") from exc
    except msgspec.ValidationError as exc:
        raise explain_mismatch(file, exc, Job, InvalidFeed) from exc
    job = msgspec.structs.replace(job, name=job.name or name)
    _check(job, file)
    return job


def _check(job: Job, file: str) -> None:
    """Refuse what is well typed but can't work."""
    if not tree.is_job_name(job.name):
        raise InvalidFeed(f"{file}: name", f"{job.name!r} is no name of a directory")
    for key in ("extension", "raw_extension"):
        if getattr(job, key) and not tree.is_extension(getattr(job, key)):
            raise InvalidFeed(f"{file}: {key}", f"{getattr(job, key)!r} is no extension", "letters, digits and _, no dot")
    if not 0 <= job.seed < 1 << 63:
        raise InvalidFeed(f"{file}: seed", "is not in [0, 2**63)")
    for key, least in (("ahead", 1), ("behind", 0)):
        if getattr(job, key) < least:
            raise InvalidFeed(f"{file}: {key}", f"is less than {least}")
    batches = getattr(job.feed, "batches", None)
    if batches is not None:
        for key in ("world_size", "batch_size", "micro_batch_size"):
            if getattr(batches, key) < 1:
                raise InvalidFeed(f"{file}: feed.batches.{key}", "is less than 1")
        if batches.first < 0:
            raise InvalidFeed(f"{file}: feed.batches.first", "is negative")
        if batches.layout == "micro" and batches.batch_size % batches.micro_batch_size:
            raise InvalidFeed(f"{file}: feed.batches.micro_batch_size", "does not divide batch_size")
    if isinstance(job.feed, MdsSource):
        _check_mds(job.feed, file)
    if isinstance(job.feed, IndicesSource) and (job.feed.chunk_tokens < 1 or not job.feed.data):
        raise InvalidFeed(f"{file}: feed", "names no data", "give chunk_tokens and data")


def _check_mds(feed: MdsSource, file: str) -> None:
    streaming = feed.streaming
    if (feed.batches is None) == (streaming is None) or (streaming is not None and feed.order):
        raise InvalidFeed(f"{file}: feed", "needs batches, and order if there is one, or else streaming alone")
    if bool(feed.path) == bool(streaming is not None and streaming.streams):
        raise InvalidFeed(f"{file}: feed", "needs path, or else streaming.streams, each with a path")
    if streaming is None:
        return
    for key, least in (("ranks_per_node", 1), ("batch_size", 1), ("nodes", 1), ("epochs", 1), ("epoch", 0),
                       ("sample_in_epoch", 0), ("shuffle_seed", 0), ("num_canonical_nodes", 0), ("epoch_size", 0),
                       ("sampling_granularity", 1)):  # fmt: skip
        if getattr(streaming, key) < least:
            raise InvalidFeed(f"{file}: feed.streaming.{key}", f"is less than {least}")
    if streaming.shuffle_block_size < 0 or streaming.shuffle_block_size == 1:
        raise InvalidFeed(f"{file}: feed.streaming.shuffle_block_size", "is less than 2 and not 0")
    _check_weights(streaming, f"{file}: feed.streaming.streams")


def _check_weights(streaming: Streaming, where: str) -> None:
    weights = [
        [(key, value) for key in ("proportion", "repeat", "choose") if (value := getattr(stream, key)) is not None]
        for stream in streaming.streams
    ]
    for row, given in enumerate(weights):
        if len(given) > 1 or any(not 0 <= value < math.inf for _, value in given):
            raise InvalidFeed(
                f"{where}: row {row}", "has more than one of proportion, repeat and choose, or no finite one >= 0"
            )
    proportions = [value for given in weights for key, value in given if key == "proportion"]
    if proportions and (len(proportions) < len(weights) or not sum(proportions)):
        raise InvalidFeed(where, "have proportions in part, or all 0: all have one, or none has")
    if streaming.epoch_size and not proportions and any(weights):
        raise InvalidFeed(where, "have repeat or choose, which give an epoch its size, beside epoch_size")


def lake_path(path: str, directory: LakePath) -> LakePath:
    """Return a path of a document as a lake path.

    Args:
        directory: of the document, which paths without a leading "/" start from.
    Raises:
        InvalidFeed: it leaves the lake.
    """
    parts = [] if path.startswith("/") else directory.split("/")
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise InvalidFeed(path, "leads out of the lake")
            parts.pop()
        elif part not in ("", "."):
            if not can_posix_carry(part):
                raise InvalidFeed(path, "is no path")
            parts.append(part)
    return LakePath("/".join(part for part in parts if part))


def extension(job: Job, sample: Sample) -> str:
    """Return what the name of a sample ends in, in whichever form it is given: as its operator writes it."""
    if not sample.operator:
        return raw_extension(job, sample)
    wanted = json.loads(sample.params).get("format", "npy") if sample.params else "npy"
    return job.extension or (wanted if isinstance(wanted, str) and tree.is_extension(wanted) else "npy")


def raw_extension(job: Job, sample: Sample) -> str:
    """Return what names of a sample's raw bytes end in."""
    if job.raw_extension:
        return job.raw_extension
    if isinstance(job.feed, TarSource) and job.feed.part:
        found = job.feed.part.rpartition(".")[2]
    else:
        found = split(sample.source)[1].rpartition(".")[2] if "." in sample.source else ""
    return found if tree.is_extension(found) else "bin"


def filler(job: Job, feed_version: str) -> Callable[[Sample], Sample]:
    """Return what turns a sample as the feed has it into one with all that the job's document adds."""
    name = job.operator.name if job.operator else ""
    params = json.dumps(job.operator.params, sort_keys=True, separators=(",", ":")) if job.operator else ""
    version = job.dataset_version or feed_version

    def fill(sample: Sample) -> Sample:
        if sample.operator:
            return msgspec.structs.replace(sample, dataset_version=sample.dataset_version or version)
        seed = sample.seed or (seed_of(job.seed, sample.sample_id, sample.step) if name else 0)
        return msgspec.structs.replace(
            sample, operator=name, params=params, seed=seed, dataset_version=sample.dataset_version or version
        )

    return fill


def seed_of(seed: int, sample_id: str, epoch: int = 0) -> int:
    """Return the seed of one sample in one epoch: in [1, 2**63), equal on every host and whatever the world size."""
    return xxhash.xxh3_64_intdigest(f"{seed}\0{epoch}\0{sample_id}".encode()) % ((1 << 63) - 1) + 1
