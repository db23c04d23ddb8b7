"""Which operators may be run here: those of the package, and those of one directory whose signature holds.

Reading a declaration runs nothing: code of one's own is executed in a sandbox only.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

from vfs.errors import InvalidConfig
from vfs.samples.operators.builtin import DECLARATIONS, SOURCES
from vfs.samples.operators.declare import (
    Declaration,
    OperatorRefused,
    digest_of_code,
    parse_declaration,
    split_name,
    statement,
)

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that may be run.

    Attributes:
        code: source of one of one's own; empty for those that are built in.
        digest: of its code.
        libraries: versions that its output depends on; "" for one that is not installed.
        signer: name of the key, "" for those that are built in.
    """

    declaration: Declaration
    digest: str
    libraries: dict[str, str]
    code: bytes = b""
    signer: str = ""

    @property
    def name(self) -> str:
        """Return "name@version"."""
        return self.declaration.full_name


@dataclass
class Registry:
    """Operators by full name, and why others were refused."""

    operators: dict[str, Operator] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Operator:
        """Return the operator of "name@version", or the only version of "name".

        Raises:
            OperatorRefused: there is none, or several, or it was refused.
        """
        if name in self.operators:
            return self.operators[name]
        wanted, version = split_name(name)
        same = [operator for operator in self.operators.values() if operator.declaration.name == wanted]
        if len(same) == 1 and not version:
            return same[0]
        if name in self.refused:
            raise OperatorRefused(name, self.refused[name])
        versions = ", ".join(sorted(operator.name for operator in same))
        known = versions or ", ".join(sorted(self.operators))
        raise OperatorRefused(
            name, "is no operator of this host" if not version or not same else "has no such version", known
        )


def load_registry(directory: str = "", keys: str = "") -> Registry:
    """Return what is built in, and what in `directory` is signed by one of `keys`.

    Args:
        directory: holds NAME.toml with NAME.sig and the code that it names; "" for none.
        keys: file of trusted public keys; "" for none.
    Raises:
        InvalidConfig: directory or keys can't be read.
    """
    registry = Registry({each.full_name: _built_in(each) for each in DECLARATIONS})
    if not directory:
        return registry
    trusted = _trusted(keys)
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".toml"))
    except OSError as exc:
        raise InvalidConfig(directory, f"can't be read: {exc.strerror}", "node.operators names the directory") from exc
    for name in names:
        path = os.path.join(directory, name)
        try:
            operator = load_own(path, trusted)
            if operator.name in registry.operators:
                raise OperatorRefused(path, f"there is another {operator.name}", "give it another name or version")
            registry.operators[operator.name] = operator
        except (OperatorRefused, InvalidConfig) as exc:
            registry.refused[_stated_name(path)] = str(exc)
    return registry


def load_own(path: str, trusted: dict[str, str] | None) -> Operator:
    """Return the operator that a declaration file describes.

    Args:
        trusted: keys of which one has to have signed it; None: it is not asked (the author tries it out).
    Raises:
        InvalidConfig: it can't be read.
        OperatorRefused: it isn't signed as it should be.
    """
    declaration = parse_declaration(_text(path), path)
    code = _bytes(os.path.join(os.path.dirname(path), declaration.code))
    digest, signer = digest_of_code(code), ""
    if trusted is not None:
        from vfs.samples.operators import signing

        signature_path = path.removesuffix(".toml") + ".sig"
        if not os.path.exists(signature_path):
            raise OperatorRefused(declaration.full_name, "is not signed", f"foremount operator sign {path}")
        signer = signing.check(declaration.full_name, _text(signature_path), statement(declaration, digest), trusted)
    return Operator(declaration, digest, library_versions(declaration.libraries), code, signer)


def library_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the versions that an output depends on, with those of numpy, of what the wheels carry, and of the machine."""
    found = {"python": platform.python_version(), "machine": f"{platform.machine()}-{sys.byteorder}"}
    for name in ("numpy", *distributions):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    if found.get("pillow"):
        found["jpeg"] = _jpeg_version()
    if found.get("av"):
        found |= _av_versions()
    return found


@functools.cache
def _jpeg_version() -> str:
    from PIL import features

    turbo = features.version("libjpeg_turbo")
    return f"turbo {turbo}" if turbo else str(features.version("jpg"))


@functools.cache
def _av_versions() -> dict[str, str]:
    import av

    names = ("libavcodec", "libavformat", "libswscale", "libswresample")
    return {name: ".".join(map(str, av.library_versions[name])) for name in names}


@functools.cache
def _built_in(declaration: Declaration) -> Operator:
    digest = digest_of_code(*((_HERE / name).read_bytes() for name in SOURCES[declaration.name]))
    return Operator(declaration, digest, library_versions(declaration.libraries))


def _trusted(keys: str) -> dict[str, str]:
    if not keys:
        return {}
    from vfs.samples.operators import signing

    return signing.trusted_keys(_text(keys), keys)


def _stated_name(path: str) -> str:
    """Return the full name that a declaration states, its path where it can't be read."""
    try:
        return parse_declaration(_text(path), path).full_name
    except InvalidConfig:
        return path


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise InvalidConfig(path, f"can't be read: {exc.strerror}") from exc


def _text(path: str) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise InvalidConfig(path, "is not UTF-8 text") from exc
