"""`foremount.toml`, read and checked.

What it may say stands in `tables.py`, what must not go together in `checks.py`. What admins change while it runs is not
here but in the policy documents.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import msgspec

from vfs.config.addresses import LOOPBACK, host_and_port, is_plain_elsewhere
from vfs.config.checks import check
from vfs.config.tables import (
    DRAIN_S_MAX,
    READERS_PER_COPY,
    SAMPLES_READ_AHEAD,
    Admin,
    ArrowSite,
    Cache,
    Config,
    Foresight,
    HttpSite,
    Limits,
    LocalSite,
    MemorySite,
    Mount,
    Node,
    Port,
    Replica,
    ReplicaServer,
    S3Site,
    Samples,
    SiteConfig,
    Staging,
    WebHdfsSite,
    can_be_written,
    directories,
    foresight_store,
    local_path,
    mount_prefix,
    mount_replicas,
    mount_root,
    samples_directory,
    staging_directory,
)
from vfs.errors import InvalidConfig
from vfs.units import decode_unit

__all__ = [
    "DRAIN_S_MAX",
    "LOOPBACK",
    "READERS_PER_COPY",
    "SAMPLES_READ_AHEAD",
    "Admin",
    "ArrowSite",
    "Cache",
    "Config",
    "Foresight",
    "HttpSite",
    "Limits",
    "LocalSite",
    "MemorySite",
    "Mount",
    "Node",
    "Port",
    "Replica",
    "ReplicaServer",
    "S3Site",
    "Samples",
    "SiteConfig",
    "Staging",
    "WebHdfsSite",
    "can_be_written",
    "directories",
    "explain_mismatch",
    "foresight_store",
    "host_and_port",
    "is_plain_elsewhere",
    "load",
    "local_path",
    "mount_prefix",
    "mount_replicas",
    "mount_root",
    "parse",
    "samples_directory",
    "staging_directory",
]


def load(path: str | os.PathLike[str]) -> Config:
    """Read and check a configuration file.

    Raises:
        InvalidConfig: with the file, the key path or line, and a hint.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise InvalidConfig(name, f"can't be read: {exc.strerror}", "name an existing file") from exc
    except UnicodeDecodeError as exc:
        raise InvalidConfig(name, "is not UTF-8 text") from exc
    return parse(text, name)


def parse(text: str, name: str = "foremount.toml") -> Config:
    """Return the configuration that `text` states; `name` is for messages.

    Raises:
        InvalidConfig: as `load`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidConfig(name, f"is no TOML: {exc}") from exc
    try:
        config = msgspec.convert(document, Config, dec_hook=decode_unit)
    except msgspec.ValidationError as exc:
        raise explain_mismatch(name, exc, Config) from exc
    check(config, name)
    return config


def explain_mismatch(
    name: str, error: msgspec.ValidationError, root: Any, as_error: type[InvalidConfig] | Any = InvalidConfig
) -> Any:
    """Return msgspec's complaint as an error of ours with key path and, for an unknown key, the nearest known one."""
    sentence, _, at = str(error).partition(" - at `")
    where = at.rstrip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"unknown field `(.+?)`", sentence)
    hint = ""
    if unknown:
        key = unknown[1]
        where = f"{where}.{key}" if where else key
        sentence = "unknown key"
        close = difflib.get_close_matches(key, sorted(_field_names(root)), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "remove it, or see docs/configuration.md"
    return as_error(f"{name}: {where}" if where else name, sentence, hint)


def _field_names(kind: Any, seen: set[Any] | None = None) -> set[str]:
    """Return every key that a document of this type may hold at any depth."""
    seen = set() if seen is None else seen
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return set()
        seen.add(kind)
        names = {field.encode_name for field in msgspec.structs.fields(kind)}
        return names.union(*(_field_names(field.type, seen) for field in msgspec.structs.fields(kind)))
    return set().union(*(_field_names(part, seen) for part in typing.get_args(kind)))
