"""`foremount index`: the offsets of the samples in tars, beside them, as WebDataset schedules and Energon read them."""

from __future__ import annotations

import os
import tarfile

import click
import numpy as np

from vfs.cli import output
from vfs.errors import InvalidFeed
from vfs.oserrors import Translated


@click.command()
@click.argument("tars", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also where there is an index already.")
@output.json_option
def index(tars: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Write TAR.idx beside each of TARS: where each sample (the files of one basename) begins, and where the last ends.

    Reads the headers only. Numbers are little-endian with 64 bits.
    """
    written = []
    for path in tars:
        target = f"{path}.idx"
        if os.path.exists(target) and not force:
            continue
        with Translated(path):
            offsets = sample_offsets(path)
            partial = f"{target}.partial"
            with open(partial, "wb") as file:
                file.write(np.array(offsets, "<u8").tobytes())
            os.replace(partial, target)
        written.append({"path": target, "samples": len(offsets) - 1})
    if as_json:
        output.print_json({"written": written})
        return
    for each in written:
        click.echo(f"{each['path']}: {each['samples']} samples")


def sample_offsets(path: str) -> list[int]:
    """Return where each sample of a tar begins, and where the last one ends.

    Raises:
        InvalidFeed: it is no tar, is cut off, or one sample's files don't lie together.
        OSError: it can't be read.
    """
    offsets: list[int] = []
    seen: set[str] = set()
    key, end = "", 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if not member.isreg():
                    continue
                directory, _, name = member.name.rpartition("/")
                found = f"{directory}/{name.partition('.')[0]}"
                if found != key or not offsets:
                    if found in seen:
                        raise InvalidFeed(path, f"the files of sample {found.lstrip('/')!r} don't lie together")
                    seen.add(found)
                    offsets.append(member.offset)
                    key = found
                archive.members = []  # type: ignore[attr-defined]  # else all of them stay in memory
    except tarfile.TarError as exc:
        raise InvalidFeed(path, f"is no tar, or cut off: {exc}") from exc
    if not offsets:
        raise InvalidFeed(path, "holds no sample")
    if end > os.path.getsize(path):
        raise InvalidFeed(path, "is cut off")
    return [*offsets, end]
