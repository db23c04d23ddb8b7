"""What holds for every file of the repository."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import msgspec
import pytest

from vfs import config
from vfs.units import Bytes, Seconds, format_size

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 700
"""Files that grow past some 500 lines are usually two ideas; this is where it stops being a matter of taste."""
SOURCES = sorted((ROOT / "vfs").rglob("*.py"))
SCRIPTS = [
    *sorted((ROOT / "mount_scripts").rglob("*.sh")),
    ROOT / "mount_scripts" / "mount.foremount",
    ROOT / ".ci" / "run",
]


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
        if not path.stem.startswith(("_", "test_")) or path.stem in ("__init__", "__main__")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent, "a module opens with a docstring: first line what it is or does"


def test_no_file_is_longer_than_one_idea() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in SOURCES
        if (count := path.read_text(encoding="utf-8").count("\n")) > LINES_MAX
    }  # fmt: skip
    assert not long, "split it by idea: pure decisions into one module, the I/O that carries them out into another"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_script_has_no_complaints_from_shellcheck(script: Path) -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    shellcheck = shutil.which("shellcheck", path=places)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (apt-get install shellcheck)")
    said = subprocess.run([shellcheck, "-x", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.name != "common.sh"], ids=lambda path: path.name)
def test_shell_script_that_is_run_by_name_may_be_run(script: Path) -> None:
    assert os.access(script, os.X_OK), f"chmod +x {script}"


def test_every_command_of_the_readme_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for script in ("quickstart.sh", "test.sh"):
        assert f"./mount_scripts/{script}" in readme
        assert (ROOT / "mount_scripts" / script).exists()


def test_every_link_of_the_documents_leads_somewhere() -> None:
    broken = []
    for document in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for part in document.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert not broken


def test_every_configuration_key_is_documented_with_its_default() -> None:
    document = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in document.splitlines() if line.startswith("|")]
    documented = {(row[-3], row[-2]) for row in rows if len(row) >= 3}
    missing = []
    for kind in (
        *typing.get_args(config.SiteConfig),
        config.Mount,
        config.Cache,
        config.Staging,
        config.Limits,
        config.Admin,
        config.Samples,
        config.Node,
        config.ReplicaServer,
        config.Foresight,
    ):
        for field in msgspec.structs.fields(kind):
            said = default_in_words(field)
            if (field.encode_name, said) not in documented:
                missing.append(f"{kind.__name__}.{field.encode_name}: {said or 'no default'}")
    assert not missing


def default_in_words(field: msgspec.structs.FieldInfo) -> str:
    """Return the default as the document writes it: as TOML, nothing where there is none or it is "not set"."""
    if field.default_factory is not msgspec.NODEFAULT:
        return json.dumps(field.default_factory())
    match field.default:
        case Bytes():
            return f'"{format_size(field.default)}"'.replace(" ", "")
        case Seconds():
            return f'"{field.default:g}s"'
        case None | msgspec.NODEFAULT:
            return ""
    return json.dumps(field.default)


def test_package_and_distribution_state_the_same_version() -> None:
    import vfs

    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == vfs.__version__
