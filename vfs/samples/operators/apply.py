"""Runs one operator on one sample in this process: what a sandbox does, and a plain script may do with bytes it trusts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from vfs.samples.operators.builtin import MODULES
from vfs.samples.operators.declare import BadParameters, Declaration, parameters
from vfs.samples.operators.made import Made
from vfs.samples.operators.produce import produce

Function = Callable[[memoryview, dict[str, Any], np.random.Generator], Any]


class Applied(msgspec.Struct, frozen=True):
    """The file that an operator made, and the size of what it decoded."""

    file: bytes
    pixels: int = 0
    seconds: float = 0.0


def built_in(declaration: Declaration) -> Function:
    """Return the function of an operator that comes with the package."""
    function: Function = getattr(importlib.import_module(MODULES[declaration.name]), declaration.function)
    return function


def own(declaration: Declaration, code: bytes) -> Function:
    """Return the function of an operator of one's own. Runs its module: check the signature before."""
    namespace: dict[str, Any] = {"__name__": f"foremount_operator_{declaration.name}", "__file__": declaration.code}
    exec(compile(code, declaration.code, "exec"), namespace)  # noqa: S102  # signed code is what this room is for
    function: Function = namespace[declaration.function]
    return function


def apply(
    declaration: Declaration, function: Function, raw: memoryview, *, params: str, seed: int, provenance: str
) -> Applied:  # fmt: skip
    """Return what the operator makes of `raw`. Equal arguments give equal bytes.

    Raises:
        BadParameters, OutputOverDeclaration: as named.
        Exception: whatever the operator and its libraries raise.
    """
    wanted, given = parameters(params, declaration)
    rng = np.random.Generator(np.random.PCG64(seed & (1 << 64) - 1))
    try:
        made = function(raw, given, rng)
    except msgspec.ValidationError as exc:
        raise BadParameters(declaration.full_name, f"does not take these parameters: {exc}") from exc
    if not isinstance(made, Made):
        made = Made(made)
    file = produce(made.arrays, wanted, declaration.output, provenance)
    return Applied(file, made.pixels, made.seconds)
