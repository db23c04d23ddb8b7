"""One result of `doctor`, and what the results mean for frameworks.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

OK, WARNING, BAD, SKIPPED, HANGS = "ok", "warning", "bad", "skipped", "hangs"
WORKS, FAILS, NOT_TRIED = "works", "fails", "not tried"


class Check(msgspec.Struct, frozen=True):
    """What was looked at and what was found.

    Attributes:
        verdict: "ok", "warning" (works, but slower or with less), "bad", "skipped" or "hangs".
        found: a few words.
        hint: what to do about it, "" where nothing is to be done.
    """

    name: str
    verdict: str
    found: str
    hint: str = ""


class FrameworkVerdict(msgspec.Struct, frozen=True):
    """Whether a framework's way to use files works here, and what decides it."""

    framework: str
    verdict: str
    because: str


NEEDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("safetensors load_file, safe_open", ("read", "mmap shared", "mmap private")),
    ("safetensors save_file", ("create and write",)),
    ("torch.load, also mmap=True", ("read", "mmap private")),
    ("torch.save", ("create and write", "rename over")),
    ("DCP load", ("read",)),
    ("DCP save", ("create and write", "fsync", "rename over")),
    ("HF datasets, load_from_disk", ("read", "mmap shared")),
    ("HF datasets, save_to_disk and cache", ("create and write", "rename over", "flock exclusive", "mmap shared write")),
    ("HF hub cache", ("create and write", "rename over", "flock exclusive", "symlink")),
    ("WebDataset, tar shards", ("read",)),
    ("DALI, KvikIO, flashpack: O_DIRECT", ("O_DIRECT",)),
    ("PIL, ffmpeg", ("read", "seek")),
    ("git", ("create and write", "fsync", "rename over", "hard link", "mmap private", "chmod")),
    ("rsync", ("create and write", "rename over", "ftruncate", "utime", "chmod")),
    ("SQLite, filelock", ("create and write", "flock exclusive", "record lock", "fsync", "fsync of a directory")),
)
"""What each does with files, from its source: memmap2 maps shared, torch's UntypedStorage.from_file private, DCP writes
".metadata.tmp" and renames, rsync writes beside and renames."""


def judge(checks: Sequence[Check]) -> list[FrameworkVerdict]:
    """Return a verdict for each framework in `NEEDS`, in that order. A check that is absent was not tried."""
    by_name = {check.name: check for check in checks}
    return [_judge_one(framework, needs, by_name) for framework, needs in NEEDS]


def _judge_one(framework: str, needs: tuple[str, ...], by_name: dict[str, Check]) -> FrameworkVerdict:
    failing = [name for name in needs if name in by_name and by_name[name].verdict in (BAD, HANGS)]
    if failing:
        reasons = "; ".join(f"{name}: {by_name[name].found}" for name in failing)
        return FrameworkVerdict(framework, FAILS, reasons)
    untried = [name for name in needs if name not in by_name or by_name[name].verdict == SKIPPED]
    if untried:
        first = by_name.get(untried[0])
        return FrameworkVerdict(framework, NOT_TRIED, f"{', '.join(untried)}: {first.found if first else 'not run'}")
    return FrameworkVerdict(framework, WORKS, ", ".join(needs))


def has_trouble(checks: Sequence[Check]) -> bool:
    """Return whether something has to be done."""
    return any(check.verdict in (BAD, HANGS) for check in checks)
