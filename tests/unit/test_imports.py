"""Which module may import which: values, pure, services, file system, adapters, mains, in this direction only (DESIGN §7).

Reads the sources with `ast`: an import inside a function or for types only counts like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = ("values", "pure", "services", "file system", "adapters", "mains")
VALUES = {
    *(
        "vfs",
        "vfs.model",
        "vfs.errors",
        "vfs.units",
        "vfs.clock",
        "vfs.config",
        "vfs.config.addresses",
        "vfs.config.checks",
        "vfs.config.tables",
        "vfs.frames",
        "vfs.wire",
        "vfs.logs",
        "vfs.oserrors",
    ),
    "vfs.usage",
    "vfs.backoff",
    "vfs.rates",
    *("vfs.rundir", "vfs.sites.protocol", "vfs.extents.layout", "vfs.extents.limits", "vfs.extents.counters"),
}
LAYER_OF_PACKAGE = {
    "vfs.keeper": "services",
    "vfs.sites": "services",
    "vfs.extents": "services",
    "vfs.checkpoints": "services",
    "vfs.namespace": "services",
    "vfs.policy": "services",
    "vfs.samples.node": "adapters",  # a service of its own: HTTP with the admin API's access
    "vfs.samples": "services",
    "vfs.foresight": "services",
    "vfs.training": "services",
    "vfs.unixhttp": "services",
    "vfs.httpservice": "services",
    "vfs.processes": "services",
    "vfs.tls": "services",
    "vfs.filesystem": "file system",
    "vfs.traces": "file system",
    "vfs.agent": "file system",  # the rooms that do for the agent what the file system does for the fs worker
    "vfs.kernel": "adapters",
    "vfs.admin": "adapters",
    "vfs.cli": "adapters",
    "vfs.client": "adapters",  # of training code: needs nothing of ours
}
PURE_MARK = "Pure: no I/O"

# Library → packages that may import it, and what to do instead elsewhere.
OWNERS = {
    "pyfuse3": (("vfs.kernel",), "the kernel's requests end in vfs/kernel/; speak to vfs.filesystem in values"),
    "lmdb": (
        # the shared catalog is the controller's, and no agent may stand beside it
        ("vfs.namespace.inodes", "vfs.namespace.catalog", "vfs.namespace.soundness", "vfs.foresight.stores.embedded"),
        "keep it behind InodeTable, Catalog or a Store of vfs.foresight",
    ),
    "aiohttp": (
        # etcd is spoken to over HTTP: its JSON gateway needs no client library
        (
            "vfs.sites",
            "vfs.admin",
            "vfs.httpservice",
            "vfs.samples.node",
            "vfs.samples.nodeclient",
            "vfs.foresight.controller",
            "vfs.foresight.replicaserver",
            "vfs.foresight.stores.etcd",
        ),
        "ask a Site, or add a route to vfs/admin/api.py",
    ),
    "aiobotocore": (("vfs.sites.s3writer",), "ask a SiteWriter"),
    "botocore": (("vfs.sites.s3writer",), "ask a SiteWriter"),
    "pyarrow": (
        ("vfs.sites", "vfs.checkpoints", "vfs.traces.parquet", "vfs.samples.feeds"),
        "ask a Site, a layout of vfs.checkpoints, a trace file, or a feed",
    ),
    "trio": (("vfs.kernel", "vfs.filesystem"), "trio is the fs worker's loop; the agent's is asyncio"),
    "click": (("vfs.cli",), "only commands speak to people; return values or raise an error with a hint"),
    "rich": (("vfs.cli",), "only commands speak to people; return values or raise an error with a hint"),
}
ASYNCIO_FREE = ("vfs.kernel", "vfs.filesystem", "vfs.namespace", "vfs.keeper", "vfs.policy")
KEEPER_MAY = ("vfs", "vfs.rundir", "vfs.keeper")
IO_MODULES = {
    *(
        "asyncio",
        "trio",
        "socket",
        "subprocess",
        "threading",
        "time",
        "random",
        "shutil",
        "tempfile",
        "select",
        "urllib.request",
    ),
    *OWNERS,
}
APART = {
    ("vfs.filesystem", "vfs.agent"): "they are two processes; what crosses between them is in vfs/wire.py",
    ("vfs.filesystem", "vfs.sites"): "the fs worker has no network; ask the agent",
    ("vfs.kernel", "vfs.sites"): "the fs worker has no network; ask the agent",
    ("vfs.kernel", "vfs.agent"): "they are two processes; what crosses between them is in vfs/wire.py",
    ("vfs.agent", "vfs.filesystem"): "they are two processes; what crosses between them is in vfs/wire.py",
    ("vfs.agent", "vfs.kernel"): "they are two processes; what crosses between them is in vfs/wire.py",
    ("vfs.sites", "vfs.extents"): "a site knows nothing of the cache; the fetcher joins them",
}


@dataclass(frozen=True)
class Module:
    """One source file and what it imports: dotted names, of our own always the module itself."""

    name: str
    path: Path
    is_pure: bool
    imports: tuple[tuple[int, str], ...]

    @property
    def layer(self) -> str:
        if self.name.endswith(".__main__"):
            return "mains"
        if self.name in VALUES:
            return "values"
        if self.is_pure:
            return "pure"
        return next(layer for package, layer in LAYER_OF_PACKAGE.items() if within(self.name, package))

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


def within(name: str, package: str) -> bool:
    """Return whether the dotted name is the package or lies in it."""
    return name == package or name.startswith(package + ".")


@cache
def modules() -> dict[str, Module]:
    """Return every module of the package by its dotted name."""
    names = {}
    for path in sorted((ROOT / "vfs").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        pure = any(line.startswith(PURE_MARK) for line in (ast.get_docstring(tree) or "").splitlines())
        found[name] = Module(name, path, pure, tuple(imported(tree, names)))
    return found


def imported(tree: ast.Module, own: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import; `from vfs.sites import http` is vfs.sites.http where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"line {node.lineno}: write absolute imports"
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                yield node.lineno, longer if longer in own else node.module


def complaints(found: Iterator[str]) -> str:
    return "\n" + "\n".join(sorted(set(found)))


def each_import() -> Iterator[tuple[Module, int, str]]:
    for module in modules().values():
        for line, name in module.imports:
            yield module, line, name


def test_every_module_has_a_layer() -> None:
    without = [
        name
        for name in modules()
        if name not in VALUES and not any(within(name, package) for package in LAYER_OF_PACKAGE)
    ]  # fmt: skip
    assert not without, f"say in this file which layer they belong to: {without}"


def test_no_module_imports_a_higher_layer() -> None:
    def found() -> Iterator[str]:
        for module, line, name in each_import():
            target = modules().get(name)
            if target is None or LAYERS.index(target.layer) <= LAYERS.index(module.layer):
                continue
            yield (
                f"{module.at(line)}: {module.name} ({module.layer}) imports {name} ({target.layer}); "
                "move the value that is shared further down, or pass what is needed in as an argument"
            )

    assert not list(found()), complaints(found())


def test_rooms_of_different_processes_stay_apart() -> None:
    def found() -> Iterator[str]:
        for module, line, name in each_import():
            target = modules().get(name)
            if target is None or target.layer in ("values", "pure"):
                continue
            for (importer, banned), advice in APART.items():
                if within(module.name, importer) and within(name, banned):
                    yield f"{module.at(line)}: {module.name} imports {name}; {advice}"

    assert not list(found()), complaints(found())


@pytest.mark.parametrize("library", OWNERS)
def test_library_is_imported_only_where_it_is_at_home(library: str) -> None:
    homes, advice = OWNERS[library]

    def found() -> Iterator[str]:
        for module, line, name in each_import():
            if within(name, library) and not any(within(module.name, home) for home in homes):
                yield f"{module.at(line)}: {library} belongs into {', '.join(homes)}; {advice}"

    assert not list(found()), complaints(found())


def test_asyncio_stays_out_of_the_fs_worker_and_the_keeper() -> None:
    def found() -> Iterator[str]:
        for module, line, name in each_import():
            if within(name, "asyncio") and any(within(module.name, package) for package in ASYNCIO_FREE):
                yield f"{module.at(line)}: asyncio is the agent's loop; the fs worker's is trio, the keeper has none"

    assert not list(found()), complaints(found())


def test_keeper_and_run_directory_need_the_standard_library_alone() -> None:
    def found() -> Iterator[str]:
        for module, line, name in each_import():
            if not any(within(module.name, own) for own in KEEPER_MAY[1:]):
                continue
            ours = any(name == own or within(name, "vfs.keeper") for own in KEEPER_MAY)
            if not ours and name.partition(".")[0] not in sys.stdlib_module_names:
                yield (
                    f"{module.at(line)}: {name}; the keeper outlives everything because so little can go wrong in it: "
                    "let the fs worker or the agent do this"
                )
        if modules()["vfs"].imports:
            yield "vfs/__init__.py imports something, and the keeper with it"

    assert not list(found()), complaints(found())


def test_modules_that_call_themselves_pure_import_no_io() -> None:
    def found() -> Iterator[str]:
        for module, line, name in each_import():
            if not module.is_pure:
                continue
            target = modules().get(name)
            if any(within(name, each) for each in IO_MODULES) or (target and target.layer not in ("values", "pure")):
                yield (
                    f"{module.at(line)}: {module.name} says {PURE_MARK!r} and imports {name}; "
                    "take the value as an argument, and let a service do the I/O"
                )

    assert not list(found()), complaints(found())
