"""What makes two transformed samples the same bytes: all that went into them.

Pure: no I/O, no clock. Equal identities are equal bytes, on the node, on the training host and in a plain script. Where a
part of it is not known, nothing is transformed: the sample stays raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vfs.samples.model import Sample


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bytes of a transformed sample depend on.

    Attributes:
        dataset_version: as the schedule tells it.
        source, ranges: where the raw bytes lie.
        raw: their XXH3-128.
        operator: "name@version"; `code` is the SHA-256 of its source.
        libraries: version of everything it computes with, and the machine's instruction set.
        params: canonical JSON; `seed` of everything random.
    """

    dataset_version: str
    source: str
    ranges: tuple[tuple[int, int], ...]
    raw: str
    operator: str
    code: str
    libraries: dict[str, str]
    params: str
    seed: int


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: keys sorted, no blanks."""
    return msgspec.json.encode(value, order="deterministic").decode()


def identity_of(sample: Sample, raw: str, operator: str, code: str, libraries: Mapping[str, str]) -> Identity:
    """Return the identity of what `operator` makes of `sample`.

    Args:
        raw: digest of the raw bytes, "" where it is not known; likewise `operator`, `code` and `libraries`.
    """
    return Identity(
        dataset_version=sample.dataset_version,
        source=sample.source,
        ranges=sample.ranges,
        raw=raw,
        operator=operator,
        code=code,
        libraries=dict(libraries),
        params=canonical(msgspec.json.decode(sample.params)) if sample.params else "{}",
        seed=sample.seed,
    )


def missing(identity: Identity) -> list[str]:
    """Return which parts are not known. Nothing may be transformed unless this is empty."""
    found = [name for name in ("dataset_version", "source", "raw", "operator", "code") if not getattr(identity, name)]
    if "@" not in identity.operator:
        found.append("operator version")
    if not identity.libraries or not all(identity.libraries.values()):
        found.append("library versions")
    return found


def provenance(identity: Identity) -> str:
    """Return the identity as it is told to readers, and written into safetensors files: canonical JSON."""
    return canonical(identity)
