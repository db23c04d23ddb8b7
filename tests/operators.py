"""What a plain script makes of a sample's raw bytes with a shipped operator: none of our processes takes part."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from vfs.samples.operators import apply, signing
from vfs.samples.operators.declare import statement
from vfs.samples.operators.registry import Registry, load_own, load_registry


@cache
def _shipped() -> Registry:
    return load_registry()


def made(name: str, raw: bytes, *, params: str, seed: int, provenance: str = "") -> bytes:
    """Return the file that the operator "name@version" makes of `raw`."""
    declaration = _shipped().find(name).declaration
    function = apply.built_in(declaration)
    return apply.apply(declaration, function, memoryview(raw), params=params, seed=seed, provenance=provenance).file


def signed(directory: Path, name: str, declaration: str, code: str) -> tuple[Path, Path]:
    """Write and sign an operator of one's own; return its declaration and the file of trusted keys."""
    (directory / f"{name}.py").write_text(code)
    path = directory / f"{name}.toml"
    path.write_text(declaration)
    key = str(directory / "key.pem")
    public = signing.new_key(key)
    operator = load_own(str(path), None)
    (directory / f"{name}.sig").write_text(signing.sign(key, statement(operator.declaration, operator.digest)))
    keys = directory / "trusted"
    keys.write_text(f"# who may\n{public} alice\n")
    return path, keys
