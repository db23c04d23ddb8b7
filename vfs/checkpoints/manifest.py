"""What a committed checkpoint consists of: written once, never changed.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

import msgspec
import xxhash

from vfs.model import LakePath, SitePath, Version

_RANK = re.compile(r"(?:__|zero_pp_rank_|mp_rank_|extra_state_rank_|rank[_-])0*([0-9]{1,9})(?![0-9])")
_SHARD = re.compile(r"-0*([0-9]{1,9})-of-[0-9]+")


class Phases(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of one file went, seconds.

    Attributes:
        write: from its creation, as far as the agent saw it, to its last close.
        fsync: from the last close to being durable on this host; 0 where nobody asked for that.
        hash: reading and digesting, part of `upload`.
        upload: from the first byte to being verified at the origin.
    """

    write: float = 0.0
    fsync: float = 0.0
    hash: float = 0.0
    upload: float = 0.0


class ManifestFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a checkpoint.

    Attributes:
        path: relative to the checkpoint's directory, or absolute in the lake with a leading slash.
        digest: of its content (`object_digest`), "" where another host wrote it.
        at, version: where the origin holds it.
    """

    path: str
    size: int
    digest: str
    at: SitePath
    version: Version
    phases: Phases = Phases()


class Manifest(msgspec.Struct, frozen=True):
    """One checkpoint as it was committed.

    Attributes:
        save_id: 32 hex digits from the marker and the files: two saves of one path differ in it.
        marker: lake path of the file that commits it.
        tensors: as the marker counts them, 0 where it does not.
        written_ns: last close of the last file that was written here.
        local_ns: when all of it was durable on this host, 0: never asked for.
        committed_ns: when the marker was at the origin, verified.
    """

    path: LakePath
    marker: LakePath
    format: str
    step: int | None
    save_id: str
    files: list[ManifestFile]
    tensors: int = 0
    begun_ns: int = 0
    written_ns: int = 0
    local_ns: int = 0
    committed_ns: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


def object_digest(block_digests: bytes) -> str:
    """Return the digest of a whole file: XXH3-128 over the XXH3-64 of its 64 KiB blocks, each 8 bytes little-endian.

    Blocks can be digested in any order and again, as parts are sent; a digest of the bytes in one go could not.
    """
    return "xxh3-64k:" + xxhash.xxh3_128_hexdigest(block_digests)


def save_id_of(marker_digest: str, files: list[ManifestFile]) -> str:
    """Return what tells this save from every other one: equal only where marker and files are equal."""
    rows = [f"{file.path}\0{file.size}\0{file.digest or msgspec.json.encode(file.version).decode()}" for file in files]
    return xxhash.xxh3_128_hexdigest("\0".join([marker_digest, *sorted(rows)]).encode("utf-8", "surrogateescape"))


def rank_of(path: str) -> int | None:
    """Return the rank that wrote a file, from the names that savers give; None where the name does not tell."""
    name = path.rpartition("/")[2]
    found = _RANK.search(name) or _SHARD.search(name)
    return int(found[1]) if found else None
