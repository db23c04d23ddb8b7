"""How a cached object lies on the disk. Written by the agent, read by the fs worker without asking it.

Pure: no I/O, no clock.

An object's version is two sparse files in `<root>/objects/<first two digits of the key>/`:

    <key>.data   the object's bytes at their own offsets; what was not fetched yet is a hole
    <key>.sums   a header of 4096 bytes, then one u64 little-endian XXH3-64 for each block of 64 KiB; 0: block is absent

Both processes map the `.sums` file. The agent writes a block's bytes first and its digest after; a reader that finds a
digest reads the whole block and checks it, so torn writes, flipped bits, truncation and punched holes are all just a
mismatch. There is no index to repair after a crash: every block proves itself.

An object that leaves the store has its magic overwritten before its files are unlinked: who still has them open reads on,
and learns from the header that blocks which come later lie in other files of the same name.

When all blocks are there and were read back, the agent *seals* the object: the header then holds inode, mtime and ctime of
the data file. As long as they match what fstat says nobody has touched the file since, and the kernel may serve it in
passthrough, where no digest is checked any more.

Source: 64 KiB keep a partial read's check at 4 us (XXH3 at 15 GB/s) and the digests at 0.012 % of the data (docs/adr/0002).
"""

from __future__ import annotations

import os
import struct

import msgspec
import xxhash

from vfs.errors import Corrupt
from vfs.model import ObjectKey, SiteName, SitePath, Version, object_key

FORMAT = 1
"""Part of the store's directory name; a store of another format is discarded."""
BLOCK = 64 << 10
PASSTHROUGH_BYTES_MIN = 256 << 10
"""Smaller objects are read through the kernel's page cache even when they are sealed: an open then touches no file.
Passthrough opens two files, reads their seal and registers one: 200 us, more than a small file's bytes cost."""
HEADER_BYTES = 4096
DIGEST_BYTES = 8
_FIXED = struct.Struct("<8sIIQQqqI")
_MAGIC = b"FMTSUMS\n"
_SEAL = struct.Struct("<Qqq")
SEAL_OFFSET = 24
"""Of the seal in the header: it is written and read alone, a torn one matches no file."""
GONE = b"FMTGONE\n"
"""What the magic becomes when the object leaves the store."""
assert len(GONE) == len(_MAGIC) and struct.calcsize("<8sIIQ") == SEAL_OFFSET


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Which version of which object it is, as kept in the header: enough to fetch it without any index."""

    site: SiteName
    path: SitePath
    version: Version

    @property
    def key(self) -> ObjectKey:
        """Return the name under which it is cached."""
        return object_key(self.site, self.path, self.version)


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """What fstat said of the data file when every block of it had been verified."""

    inode: int
    mtime_ns: int
    ctime_ns: int


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first 4096 bytes of a `.sums` file."""

    identity: Identity
    seal: Seal | None = None


def store_root(directory: str) -> str:
    """Return where the objects of this format lie in a cache directory."""
    return f"{directory}/v{FORMAT}"


def block_count(size: int) -> int:
    """Return how many blocks an object of `size` bytes has; an empty one has none."""
    return -(-size // BLOCK)


def sums_bytes(size: int) -> int:
    """Return the length of the `.sums` file of an object of `size` bytes."""
    return HEADER_BYTES + DIGEST_BYTES * block_count(size)


def block_length(index: int, size: int) -> int:
    """Return the bytes in block `index`: 64 KiB but for the last one."""
    return min(BLOCK, size - index * BLOCK)


def blocks_of(offset: int, length: int) -> range:
    """Return the blocks that `[offset, offset + length)` touches; `length` > 0."""
    return range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)


def digest(block: bytes | bytearray | memoryview) -> int:
    """Return the block's XXH3-64, never 0, which means absent."""
    return xxhash.xxh3_64_intdigest(block) or 1


def data_path(root: str, key: ObjectKey) -> str:
    """Return where the object's bytes lie."""
    return f"{root}/objects/{key[:2]}/{key}.data"


def sums_path(root: str, key: ObjectKey) -> str:
    """Return where the object's digests lie."""
    return f"{root}/objects/{key[:2]}/{key}.sums"


def seal_of(stat: os.stat_result) -> Seal:
    """Return the seal that matches this stat of a data file."""
    return Seal(stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)


def encode_seal(seal: Seal | None) -> bytes:
    """Return the seal's bytes in the header; None is zeros."""
    return _SEAL.pack(seal.inode, seal.mtime_ns, seal.ctime_ns) if seal else bytes(_SEAL.size)


def decode_seal(raw: bytes) -> Seal | None:
    """Return the seal in a header, of which `raw` is at least the first 48 bytes; None where there is none."""
    inode, mtime_ns, ctime_ns = _SEAL.unpack_from(raw, SEAL_OFFSET)
    return Seal(inode, mtime_ns, ctime_ns) if inode and raw[: len(_MAGIC)] == _MAGIC else None


def encode_header(header: Header) -> bytes:
    """Return the header's 4096 bytes.

    Raises:
        ValueError: site and path are too long to fit; such an object can't be cached.
    """
    identity = msgspec.msgpack.encode(header.identity)
    if len(identity) > HEADER_BYTES - _FIXED.size:
        raise ValueError(f"site and path take {len(identity)} bytes, {HEADER_BYTES - _FIXED.size} fit")
    seal = header.seal or Seal(0, 0, 0)
    fixed = _FIXED.pack(
        _MAGIC, FORMAT, BLOCK, header.identity.version.size, seal.inode, seal.mtime_ns, seal.ctime_ns, len(identity)
    )
    return (fixed + identity).ljust(HEADER_BYTES, b"\0")


def decode_header(raw: bytes | memoryview, subject: str) -> Header:
    """Return the header; `subject` names the file in errors.

    Raises:
        Corrupt: it is none, is of another format, or contradicts itself.
    """
    try:
        magic, fmt, block, size, inode, mtime_ns, ctime_ns, length = _FIXED.unpack_from(raw)
        if magic != _MAGIC or fmt != FORMAT or block != BLOCK:
            raise Corrupt(subject, "is no digest file of this format")
        identity = msgspec.msgpack.decode(raw[_FIXED.size : _FIXED.size + length], type=Identity)
    except (struct.error, msgspec.DecodeError) as exc:
        raise Corrupt(subject, "has a broken header") from exc
    if identity.version.size != size:
        raise Corrupt(subject, "has a header that contradicts itself")
    return Header(identity, Seal(inode, mtime_ns, ctime_ns) if inode else None)
