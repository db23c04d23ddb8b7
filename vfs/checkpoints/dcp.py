"""Layouts of the files of a torch.distributed.checkpoint or ByteCheckpoint directory, from its `.metadata`.

Pure: no I/O, no clock.

`storage_data` maps (tensor, offset of the shard in it) to (file, offset, length), in both formats. An item is named by its
tensor, and where that is in several shards, by the shard's offset too: "model.layers.0.w", "model.layers.1.w@768,0".
"""

from __future__ import annotations

import posixpath
from typing import Any

from vfs.checkpoints import pickled
from vfs.checkpoints.layout import MEMBERS_MAX, Layout, Needs, NoLayout, build, want

METADATA = ".metadata"
METADATA_BYTES_MAX = 64 << 20
"""About 300,000 items at 190 B; some seconds of a thread."""
FILE_SIZE_MAX = 1 << 53

_ALLOWED = ("torch", "pathlib", "collections", "bytecheckpoint", "megatron")


def layouts(size: int) -> Needs[dict[str, Layout]]:
    """Return file, relative to the directory → its layout, from a `.metadata` of `size` bytes.

    The layouts' size is the end of the last item: the file's own is not known here.

    Raises:
        NoLayout: no such metadata, or items that overlap, lie outside the directory or are transformed (compressed).
    """
    if not 0 < size <= METADATA_BYTES_MAX:
        raise NoLayout(f"metadata of {size} bytes")
    body = yield from want(0, size, size)
    metadata = pickled.read(body, _ALLOWED)
    if not isinstance(metadata, pickled.Stub):
        raise NoLayout("no checkpoint metadata")
    storage = metadata.get("storage_data")
    if isinstance(storage, pickled.Stub):
        storage = storage.items
    if not isinstance(storage, dict) or not storage:
        raise NoLayout("the metadata has no storage_data")
    if len(storage) > MEMBERS_MAX:
        raise NoLayout(f"more than {MEMBERS_MAX} items")
    kind = "bytecheckpoint" if metadata.name.startswith("bytecheckpoint") else "dcp"
    files: dict[str, list[tuple[str, int, int]]] = {}
    for index, place in storage.items():
        file, item = _item(index, place)
        files.setdefault(file, []).append(item)
    return {file: _file(kind, items) for file, items in files.items()}


def _file(kind: str, items: list[tuple[str, int, int]]) -> Layout:
    size = max(offset + length for _, offset, length in items)
    return build(kind, min(size, FILE_SIZE_MAX), (0, 0), items)


def _item(index: Any, place: Any) -> tuple[str, tuple[str, int, int]]:
    """Return (file, (name, offset, length)) of one entry of `storage_data`."""
    if not isinstance(index, pickled.Stub) or not isinstance(place, pickled.Stub):
        raise NoLayout("storage_data maps something else")
    name, file, offset, length = index.get("fqn"), *map(place.get, ("relative_path", "offset", "length"))
    if not isinstance(name, str) or not isinstance(file, str) or type(offset) is not int or type(length) is not int:
        raise NoLayout("an item lacks its place")
    if place.get("transform_descriptors"):
        raise NoLayout("the items are transformed")
    if not file or file.startswith(("/", "..")) or "\0" in file or posixpath.normpath(file) != file:
        raise NoLayout(f"an item lies outside the directory: {file[:100]!r}")
    if offset < 0 or length < 0:
        raise NoLayout(f"an item of a negative size: {name[:100]!r}")
    return file, (name + _shard(index.get("offset")), offset, length)


def _shard(offset: Any) -> str:
    """Return the suffix for a shard that does not begin where its tensor does."""
    if isinstance(offset, pickled.Stub):  # torch.Size, called with one tuple
        offset = offset.args[0] if offset.args else ()
    if not isinstance(offset, tuple) or not all(type(each) is int for each in offset) or not any(offset):
        return ""
    return "@" + ",".join(str(each) for each in offset)
