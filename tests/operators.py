"""What a plain script makes of a sample's raw bytes with a shipped operator: none of our processes takes part."""

from __future__ import annotations

from functools import cache

from vfs.samples.operators import apply
from vfs.samples.operators.registry import Registry, load_registry


@cache
def _shipped() -> Registry:
    return load_registry()


def made(name: str, raw: bytes, *, params: str, seed: int, provenance: str = "") -> bytes:
    """Return the file that the operator "name@version" makes of `raw`."""
    declaration = _shipped().find(name).declaration
    function = apply.built_in(declaration)
    return apply.apply(declaration, function, memoryview(raw), params=params, seed=seed, provenance=provenance).file
