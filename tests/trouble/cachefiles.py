"""The files of a mount's cache, found and damaged from outside, and a disk of its own for them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lake import Lake, http_lake, mounted, wait_until
from tests.servers.wan_origin import WanOrigin
from vfs.extents.layout import HEADER_BYTES, decode_header


@contextmanager
def lake_over(
    origin: WanOrigin,
    root: Path,
    *options: str,
    cache: str = "{base}/cache",
    size: str = "1GiB",
    deadline: str = "20s",
    ttl: str = "60s",
) -> Iterator[Lake]:
    """Mount `root` of the origin."""
    text = http_lake(f"{origin.url}/{root.name}", cache=cache, size=size, deadline=deadline, ttl=ttl)
    with mounted(text, None, *options) as lake:
        yield lake


def cached_files(lake: Lake, name: str) -> tuple[Path, Path]:
    """Return where data and digests of a file of the mount lie in the cache."""
    key = json.loads(lake.command("explain", str(lake.root / name), "--json").stdout)["key"]
    (data,) = (lake.base / "cache").rglob(f"{key}.data")
    return data, data.with_suffix(".sums")


def sealed_files(cache: Path) -> dict[str, Path]:
    """Return the data files of a cache that are sealed, by the path of their object at its site."""
    found = {}
    for sums in cache.rglob("*.sums"):
        header = decode_header(sums.read_bytes()[:HEADER_BYTES], str(sums))
        if header.seal is not None:
            found[str(header.identity.path)] = sums.with_suffix(".data")
    return found


def flip(path: Path, offset: int) -> None:
    """Change one byte in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def replace_with_other_bytes(path: Path) -> None:
    """Put another file of the same length in a file's place."""
    other = path.with_suffix(".new")
    other.write_bytes(os.urandom(path.stat().st_size))
    other.replace(path)


@contextmanager
def disk_image(size: int) -> Iterator[tuple[Path, Path]]:
    """A file system on a loop device, and the image below it; skips where there is none."""
    with tempfile.TemporaryDirectory(prefix="foremount-disk-") as made, ExitStack() as stack:
        image, disk = Path(made) / "image", Path(made) / "disk"
        with open(image, "wb") as file:
            os.truncate(file.fileno(), size)
        disk.mkdir()
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=False).returncode:
            pytest.skip("no loop device can be had here")
        unmount = ["umount", str(disk)]
        stack.callback(wait_until, lambda: not subprocess.run(unmount, check=False).returncode, "the disk is free")
        yield disk, image
