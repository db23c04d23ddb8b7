"""`foremount operator`: try, sign and list operators of one's own."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from vfs.cli import output
from vfs.errors import ForemountError, InvalidConfig, NotFound
from vfs.model import LakePath
from vfs.samples.operators.registry import Operator


@click.group("operator")
def operator() -> None:
    """Try, sign and list the operators that transform samples."""


@operator.command()
@click.argument("file")
def key(file: str) -> None:
    """Make a private key in FILE; print the line that trusts it."""
    from vfs.samples.operators import signing

    click.echo(f"{signing.new_key(file)} {os.path.basename(file).partition('.')[0]}")


@operator.command()
@click.argument("declaration")
@click.option("--key", "key_file", required=True, help="Private key, as `foremount operator key` makes it.")
def sign(declaration: str, key_file: str) -> None:
    """Sign the operator of DECLARATION (NAME.toml): writes NAME.sig beside it."""
    from vfs.samples.operators import signing
    from vfs.samples.operators.declare import statement
    from vfs.samples.operators.registry import load_own

    found = load_own(declaration, None)
    line = signing.sign(key_file, statement(found.declaration, found.digest))
    path = declaration.removesuffix(".toml") + ".sig"
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(line)
    except OSError as exc:
        raise InvalidConfig(path, f"can't be written: {exc.strerror}") from exc
    click.echo(f"{found.name} signed: {path}")


@operator.command("list")
@click.option("--operators", "directory", default="", help="Directory of operators of one's own.")
@click.option("--keys", default="", help="File of trusted keys.")
@output.json_option
def list_operators(directory: str, keys: str, as_json: bool) -> None:
    """List the operators that may be run here, and those that are refused."""
    from vfs.samples.operators.registry import load_registry

    registry = load_registry(directory, keys)
    rows = {
        name: {"signer": each.signer, "digest": each.digest, "libraries": each.libraries}
        for name, each in sorted(registry.operators.items())
    }
    if as_json:
        output.print_json({"operators": rows, "refused": registry.refused})
    else:
        lines = [(name, each.signer or "built in", each.digest[:16]) for name, each in sorted(registry.operators.items())]
        lines += [(name, "refused", why) for name, why in sorted(registry.refused.items())]
        click.echo("\n".join(output.columns(lines, indent="")))
    sys.exit(1 if registry.refused else 0)


@operator.command()
@click.argument("name")
@click.argument("file")
@click.option("--params", default="", help="JSON object.")
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", "made", required=True, help="File to write.")
@click.option("--sandbox/--no-sandbox", "sandboxed", default=True, show_default=True, help="Keep it from this host.")
@click.option("--operators", "directory", default="", help="Directory of operators of one's own.")
@click.option("--keys", default="", help="File of trusted keys.")
def run(
    name: str, file: str, params: str, seed: int, made: str, sandboxed: bool, directory: str, keys: str
) -> None:  # fmt: skip
    """Run operator NAME on FILE, as a node does. NAME.toml is one of one's own that need not be signed yet."""
    from vfs.samples.identity import identity_of, provenance
    from vfs.samples.model import Sample
    from vfs.samples.operators.registry import load_own, load_registry
    from vfs.samples.stream import digest_of

    found = load_own(name, None) if name.endswith(".toml") else load_registry(directory, keys).find(name)
    raw = _read(file)
    sample = Sample("", 0, 0, 0, "", LakePath(file), 0, len(raw), found.name, params, seed)
    told = provenance(identity_of(sample, digest_of(raw), found.name, found.digest, found.libraries))
    body = _sandboxed(found, raw, params, seed, told) if sandboxed else _plain(found, raw, params, seed, told)
    with open(made, "wb") as opened:
        opened.write(body)
    click.echo(msgspec.json.encode({"size": len(body), "digest": digest_of(body)}).decode())


def _plain(found: Operator, raw: bytes, params: str, seed: int, told: str) -> bytes:
    from vfs.samples.operators import apply

    function = apply.own(found.declaration, found.code) if found.code else apply.built_in(found.declaration)
    return apply.apply(
        found.declaration, function, memoryview(raw), params=params, seed=seed, provenance=told
    ).file  # fmt: skip


def _sandboxed(found: Operator, raw: bytes, params: str, seed: int, told: str) -> bytes:
    from vfs.samples.engines.protocol import task_of
    from vfs.samples.sandbox.jail import Cell, Jail
    from vfs.samples.sandbox.messages import Settings
    from vfs.samples.sandbox.outcome import Fault

    jail = Jail(Settings(idle=False), [found])
    try:
        cell = Cell(jail)
        try:
            task = task_of(found.declaration, params=params, seed=seed, provenance=told, size=len(raw))
            outcome = cell.run(task, raw)
        finally:
            cell.close()
    finally:
        jail.close()
    if isinstance(outcome, Fault):
        raise ForemountError(found.name, f"{outcome.reason}: {outcome.text}")
    return outcome.file


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise NotFound(path, f"can't be read: {exc.strerror}") from exc
