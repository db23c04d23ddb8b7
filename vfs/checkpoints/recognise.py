"""Which parser a file's name promises.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from vfs.checkpoints import arrow, dcp, parquet, safetensors, tar, torchzip
from vfs.checkpoints.formats import format_of
from vfs.checkpoints.layout import Layout, Needs

_PARSERS: dict[str, Callable[[int], Needs[Layout]]] = {
    "safetensors": safetensors.layout,
    "torch": torchzip.layout,
    "tar": tar.layout,
    "parquet": parquet.layout,
    "arrow": arrow.layout,
}


def recognise(path: str, size: int) -> Needs[Layout] | None:
    """Return a parser for a file of that name and size, or None: its bytes have no layout that could be known from them.

    The parser looks at the bytes before it believes the name: `NoLayout` is what a wrong guess costs.
    """
    make = _PARSERS.get(format_of(path) or "")
    return make(size) if make is not None and size > 0 else None


def described_by(path: str) -> str | None:
    """Return the path of the file that describes this one and those beside it, or None.

    It is read with `dcp.layouts`, whose result has them by their path relative to its directory.
    """
    directory, slash, _ = path.rpartition("/")
    return directory + slash + dcp.METADATA if format_of(path) == "dcp" else None


def index_of(path: str) -> str | None:
    """Return the path that an index of a tar archive would have, or None; it is read as a whole, for `tar.indexed`."""
    return path + ".idx" if format_of(path) == "tar" else None
