"""Which files commit a checkpoint, and what must be durable before one of them may be seen.

Pure: no I/O, no clock. One function for each format. Paths are lake paths.

A *marker* is a file whose presence, or whose content, tells readers that others are there. Each rule returns what its marker
*covers*. What a marker names is covered whoever writes it, on this host or another; what merely lies beside it is covered as
far as it was begun on this host before the marker was.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from vfs.checkpoints import dcp, safetensors
from vfs.checkpoints.layout import NoLayout, run
from vfs.model import join, split

BODY_BYTES_MAX = 64 << 20
"""Markers that say more than this are taken for what lies beside them: the metadata of some 300,000 tensors fits."""
_STEP = re.compile(r"(?:^|[^a-z])(?:global_step|step|iter|iteration|checkpoint|ckpt)[=_-]?0*([0-9]{1,15})(?![0-9])", re.I)
_TAG = re.compile(r"[^/\0\n]{1,200}")
TRACKER = "latest_checkpointed_iteration.txt"


class Cover(msgspec.Struct, frozen=True):
    """What a marker vouches for.

    Attributes:
        format: "dcp", "bytecheckpoint", "megatron", "deepspeed", "huggingface", "success" or "glob".
        directory: of the checkpoint.
        named: path → bytes that it has at least. The marker's content says that these are there.
        below: directories; covers what was begun here before the marker.
        step: of training, None where nothing tells it.
        tensors: how many the marker counts, 0 where it does not.
    """

    format: str
    directory: str
    named: dict[str, int] = {}
    below: tuple[str, ...] = ()
    step: int | None = None
    tensors: int = 0


def torch_metadata(path: str, body: bytes) -> Cover | None:
    """Return what a `.metadata` covers: every file that it places a tensor in, as long as its last item reaches.

    ByteCheckpoint renames it into place before asynchronous data is written: the names count, not what is there.

    Source: torch 2.14 distributed/checkpoint/filesystem.py, `FileSystemWriter.finish`: .metadata.tmp, fsync, rename;
    bytecheckpoint 0.0.3 `save_engine.py`.
    """
    directory = split(path)[0]
    try:
        files = run(dcp.layouts(len(body)), lambda offset, length: body[offset : offset + length])
    except NoLayout:
        return Cover("dcp", directory, below=(directory,), step=step_of(directory))
    named = {join(directory, file): layout.size for file, layout in files.items()}
    tensors = len({member.name.partition("@")[0] for layout in files.values() for member in layout})
    return Cover(
        next(iter(files.values())).format,
        directory,
        named=named,
        below=(directory,),
        step=step_of(directory),
        tensors=tensors,
    )


def iteration_tracker(path: str, body: bytes) -> Cover | None:
    """Return what `latest_checkpointed_iteration.txt` covers: the directory of the iteration that it names, or "release".

    Megatron calls it `iter_0000123`, ByteCheckpoint `global_step_123`. Where `.metadata` in it names files of other hosts,
    it is a marker of its own, and this one waits for it.

    Source: Megatron-LM of August 2026, training/checkpointing.py, `get_checkpoint_tracker_filename`, `read_metadata`;
    bytecheckpoint 0.0.3, `meta_type.py`.
    """
    parent, text = split(path)[0], body.decode("ascii", "replace").strip()
    if text == "release":
        return Cover("megatron", join(parent, text), below=(join(parent, text),))
    if not text.isdecimal() or len(text) > 15:
        return None
    step = int(text)
    below = join(parent, f"iter_{step:07d}"), join(parent, f"global_step_{step}")
    return Cover("megatron", below[0], below=below, step=step)


def deepspeed_latest(path: str, body: bytes) -> Cover | None:
    """Return what `latest` or `latest_universal` covers: the directory of the tag that is its text.

    Nothing names the files of other ranks. Over several hosts the barrier before it is only worth what a write is worth when
    it returns: let fsync and close wait for the origin there (`write_durability = "remote"`).

    Source: DeepSpeed 0.17 runtime/engine.py, `save_checkpoint`: written by rank 0 after a barrier.
    """
    parent, tag = split(path)[0], body.decode("utf-8", "replace").strip()
    if not _TAG.fullmatch(tag) or tag in (".", ".."):
        return None
    directory = join(parent, tag)
    return Cover("deepspeed", directory, below=(directory,), step=step_of(tag))


def shard_index(path: str, body: bytes) -> Cover | None:
    """Return what `….safetensors.index.json` or `….bin.index.json` covers: each shard that its `weight_map` names.

    Source: transformers 4.57 modeling_utils.py, `save_pretrained`: shards first, the index last, all in one directory.
    """
    directory = split(path)[0]
    try:
        shards = run(safetensors.shards(len(body)), lambda offset, length: body[offset : offset + length])
    except NoLayout:
        return None
    named = {join(directory, shard): 1 for shard in shards}
    tensors = sum(map(len, shards.values()))
    return Cover("huggingface", directory, named=named, step=step_of(directory), tensors=tensors)


def success_file(path: str, body: bytes) -> Cover | None:
    """Return what `_SUCCESS` covers: what was written below its directory before it.

    Source: Hadoop 3.4 FileOutputCommitter, `commitJobInternal`; Spark writes the same.
    """
    directory = split(path)[0]
    return Cover("success", directory, below=(directory,), step=step_of(directory))


def glob_marker(path: str, body: bytes) -> Cover | None:
    """Return what a file covers that the policy's `commit_marker` matches: what was written below its directory before it."""
    directory = split(path)[0]
    return Cover("glob", directory, below=(directory,), step=step_of(directory))


Rule = Callable[[str, bytes], Cover | None]
_BY_NAME: dict[str, Rule] = {
    dcp.METADATA: torch_metadata,
    TRACKER: iteration_tracker,
    "latest": deepspeed_latest,
    "latest_universal": deepspeed_latest,
    "_SUCCESS": success_file,
}
MARKER_NAMES = tuple(_BY_NAME)
"""Names that are markers whatever is in them."""
_BY_ENDING: dict[str, Rule] = {".safetensors.index.json": shard_index, ".bin.index.json": shard_index}


def rule_for(path: str, commit_marker: str = "") -> Rule | None:
    """Return the rule for a file of this path, None where it commits nothing.

    Args:
        commit_marker: a glob for file names that the policy adds, "" for none.
    """
    name = split(path)[1]
    if commit_marker and fnmatch.fnmatchcase(name, commit_marker):
        return glob_marker
    return _BY_NAME.get(name) or next((rule for ending, rule in _BY_ENDING.items() if name.endswith(ending)), None)


def step_of(path: str) -> int | None:
    """Return the step of training that the last telling component of a path states: "run7/step_0012000/model" is 12000."""
    for component in reversed(path.split("/")):
        if found := _STEP.search(component):
            return int(found[1])
    return None


@dataclass(frozen=True, slots=True)
class Here:
    """A file that is staged on this host.

    Attributes:
        durable: the origin holds what it holds now, verified, where it is to be.
        earlier: it was begun before the marker.
        why: in words for people, what it waits for where it is not durable.
    """

    durable: bool
    earlier: bool
    why: str = "is not at the origin yet"


class Blocker(NamedTuple):
    """A covered file that is not there yet, and why."""

    path: str
    why: str


def unknown_names(cover: Cover, here: Iterable[str]) -> Set[str]:
    """Return the named files that only the origin can tell about."""
    return cover.named.keys() - set(here)


def blockers(cover: Cover, here: Mapping[str, Here], there: Mapping[str, int | None]) -> list[Blocker]:
    """Return what keeps the marker from being shown, in the order of the paths; nothing: it may be shown.

    Args:
        here: files that are staged on this host, by path; those of the marker itself are left out by the caller.
        there: bytes of the named files that are not, as the origin states them; None: it has no such file.
    """
    found = []
    for path, state in sorted(here.items()):
        if not state.durable and (path in cover.named or (state.earlier and _is_below(path, cover.below))):
            found.append(Blocker(path, state.why))
    for path in sorted(unknown_names(cover, here)):
        size = there.get(path)
        if size is None:
            found.append(Blocker(path, "is not at the origin, and not on this host"))
        elif size < cover.named[path]:
            found.append(Blocker(path, f"has {size} bytes at the origin, {cover.named[path]} are needed"))
    return found


def covers(cover: Cover, path: str, *, earlier: bool) -> bool:
    """Return whether the marker vouches for a file."""
    return path in cover.named or (earlier and _is_below(path, cover.below))


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(not directory or path.startswith(directory + "/") for directory in directories)
