"""The names below `.jobs`: path ⇄ job, step, rank, slot, or the sample's own name.

Pure: no I/O, no clock.

    <job>/step_0000012/rank_0003/000017.npy          what the policy of the job gives: transformed, or raw in its place
    <job>/by-id/<sample>.npy                         the same, by the sample's name, for the steps that are under way
    <job>/.raw/step_0000012/rank_0003/000017.jpg     the raw bytes, always
    <job>/.raw/by-id/<sample>.jpg

Each place has exactly one path: numbers are padded to at least the widths shown, and no other spelling is a name.
"""

from __future__ import annotations

import re

import msgspec

from vfs.model import can_posix_carry

RAW, BY_ID = ".raw", "by-id"
_STEP, _RANK, _SLOT = re.compile(r"step_(\d{7,18})"), re.compile(r"rank_(\d{4,9})"), re.compile(r"(\d{6,9})")
_EXTENSION = re.compile(r"[A-Za-z0-9_]{1,16}")


class Root(msgspec.Struct, frozen=True):
    """`.jobs` itself: its children are the jobs."""


class JobPlace(msgspec.Struct, frozen=True):
    """A job, or its `.raw` twin: its children are the steps and `by-id`; of the job itself also `.raw`."""

    job: str
    raw: bool = False


class StepPlace(msgspec.Struct, frozen=True):
    """A step: its children are the ranks."""

    job: str
    step: int
    raw: bool = False


class RankPlace(msgspec.Struct, frozen=True):
    """What one rank reads in one step: its children are the samples by slot."""

    job: str
    step: int
    rank: int
    raw: bool = False


class SlotPlace(msgspec.Struct, frozen=True):
    """One sample by its place in the schedule. `extension` is without the dot."""

    job: str
    step: int
    rank: int
    slot: int
    extension: str
    raw: bool = False


class ByIdPlace(msgspec.Struct, frozen=True):
    """The directory of samples by name."""

    job: str
    raw: bool = False


class IdPlace(msgspec.Struct, frozen=True):
    """One sample by its name."""

    job: str
    sample_id: str
    extension: str
    raw: bool = False


Place = Root | JobPlace | StepPlace | RankPlace | SlotPlace | ByIdPlace | IdPlace


def is_job_name(name: str) -> bool:
    """Return whether a job may be called so: one path component that is not hidden."""
    return can_posix_carry(name) and not name.startswith(".")


def is_sample_id(name: str) -> bool:
    """Return whether a sample may be called so: with an extension it has to stay one path component, "" would be hidden."""
    return bool(name) and can_posix_carry(name + "." + 16 * "x")


def is_extension(name: str) -> bool:
    """Return whether names of samples may end in "." and this."""
    return bool(_EXTENSION.fullmatch(name))


def parse(path: str) -> Place | None:
    """Return what a path relative to `.jobs` names; None: nothing can be there."""
    if not path:
        return Root()
    job, *rest = path.split("/")
    if not is_job_name(job):
        return None
    raw = rest[:1] == [RAW]
    if raw:
        rest = rest[1:]
    match rest:
        case []:
            return JobPlace(job, raw)
        case ["by-id"]:
            return ByIdPlace(job, raw)
        case ["by-id", name]:
            return _by_id(job, name, raw)
        case [step]:
            found: Place | None = None if (number := _number(_STEP, step)) is None else StepPlace(job, number, raw)
        case [step, rank]:
            numbers = _number(_STEP, step), _number(_RANK, rank)
            found = None if numbers[0] is None or numbers[1] is None else RankPlace(job, numbers[0], numbers[1], raw)
        case [step, rank, name]:
            found = _by_slot(job, step, rank, name, raw)
        case _:
            found = None
    return found if found is None or path_of(found) == path else None


def path_of(place: Place) -> str:
    """Return the one path of a place, relative to `.jobs`."""
    if isinstance(place, Root):
        return ""
    top = f"{place.job}/{RAW}" if place.raw else place.job
    match place:
        case JobPlace():
            return top
        case ByIdPlace():
            return f"{top}/{BY_ID}"
        case IdPlace():
            return f"{top}/{BY_ID}/{place.sample_id}.{place.extension}"
        case StepPlace():
            return f"{top}/{step_name(place.step)}"
        case RankPlace():
            return f"{top}/{step_name(place.step)}/{rank_name(place.rank)}"
        case SlotPlace():
            name = slot_name(place.slot, place.extension)
            return f"{top}/{step_name(place.step)}/{rank_name(place.rank)}/{name}"


def step_name(step: int) -> str:
    """Return the directory of a step."""
    return f"step_{step:07d}"


def rank_name(rank: int) -> str:
    """Return the directory of a rank."""
    return f"rank_{rank:04d}"


def slot_name(slot: int, extension: str) -> str:
    """Return the file of a slot."""
    return f"{slot:06d}.{extension}"


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return int(found[1]) if found and found[1].isascii() else None


def _by_id(job: str, name: str, raw: bool) -> IdPlace | None:
    sample_id, dot, extension = name.rpartition(".")
    if not dot or not is_sample_id(sample_id) or not _EXTENSION.fullmatch(extension):
        return None
    return IdPlace(job, sample_id, extension, raw)


def _by_slot(job: str, step_dir: str, rank_dir: str, name: str, raw: bool) -> SlotPlace | None:
    slot_text, _, extension = name.partition(".")
    step, rank, slot = _number(_STEP, step_dir), _number(_RANK, rank_dir), _number(_SLOT, slot_text)
    if step is None or rank is None or slot is None or not _EXTENSION.fullmatch(extension):
        return None
    return SlotPlace(job, step, rank, slot, extension, raw)
