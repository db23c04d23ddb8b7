"""What a file's name says that it is.

Pure: no I/O, no clock.
"""

from __future__ import annotations

BY_ENDING = {
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".tar": "tar",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".distcp": "dcp",
}
"""DCP and ByteCheckpoint shards are alike, and so are Feather and Arrow files."""
FORMATS = tuple(dict.fromkeys(BY_ENDING.values()))


def format_of(path: str) -> str | None:
    """Return the format that a file's name promises, in any case of letters; None: it promises none."""
    name = path.rpartition("/")[2]
    return BY_ENDING.get(name[name.rfind(".") :].lower()) if "." in name else None
