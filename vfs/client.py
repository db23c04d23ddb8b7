"""For training code: what a path of the lake tells beyond its bytes. Standard library only; needs no mount to import.

Not needed to read anything: unmodified programs open the paths themselves.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO

FORM, PROVENANCE = "user.foremount.form", "user.foremount.provenance"
TRANSFORMED, RAW = "transformed", "raw"

Content = bytes | bytearray | memoryview


def open_sample(
    path: str | os.PathLike[str], local: Callable[[bytes], Content] | None = None, *, magic: bytes = b""
) -> BinaryIO:
    """Open a sample file of `.jobs` so that it reads as transformed, whatever form the node had it ready in.

    `np.load(open_sample(path, local=decode))` gives the same array for a sample that is ready as for one that is not.

    Args:
        local: the operator on the training host: makes of the raw bytes what the node would have made, as the content of the
            file. None: raw bytes are given out as they are, to tell by `form_of`.
        magic: what a transformed sample begins with (`b"\\x93NUMPY"` of .npy) and a raw one never does. Given, the bytes
            themselves are believed, which costs nothing; else the file's attribute is asked for, 50 us for each file.
    Returns:
        A file at its start, opened for reading. Who opens it closes it.
    Raises:
        OSError: as `open`. What `local` raises goes through.
    """
    file = open(path, "rb")  # noqa: SIM115 - handed on
    try:
        if local is None:
            return file
        if magic:
            is_raw = file.read(len(magic)) != magic
            file.seek(0)
        else:
            is_raw = form_of(file.fileno()) == RAW  # of what is open: its form never changes
        if not is_raw:
            return file
        with file:
            return io.BytesIO(local(file.read()))
    except BaseException:
        file.close()
        raise


def form_of(file: str | os.PathLike[str] | int) -> str:
    """Return "transformed" or "raw" for a path or descriptor; "transformed" for a file that is no sample of `.jobs`.

    A copy of a sample on another file system is what its bytes are: attributes do not travel with them.
    """
    found = _attribute(file, FORM)
    return TRANSFORMED if found is None else found.decode()


def provenance_of(file: str | os.PathLike[str] | int) -> dict[str, Any]:
    """Return what a sample was made of, and why it is raw where it is; {} for other files."""
    found = _attribute(file, PROVENANCE)
    document: dict[str, Any] = json.loads(found) if found else {}
    return document


def _attribute(file: str | os.PathLike[str] | int, name: str) -> bytes | None:
    try:
        return os.getxattr(file, name)
    except OSError as exc:
        if exc.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise
