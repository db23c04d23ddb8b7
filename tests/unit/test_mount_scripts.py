"""What is installed on hosts without being run by a test of a mount: units, manifests, the look at a bare host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vfs

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "mount_scripts"
MANIFESTS = sorted((SCRIPTS / "kubernetes").glob("*.yaml"))
COREUTILS = ("uname", "id", "dirname", "env", "bash")


def test_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (SCRIPTS / "systemd/foremount@.service").read_text()
    (tmp_path / "foremount@.service").write_text(unit.replace("/opt/foremount/current/bin/foremount", sys.executable))
    said = subprocess.run(
        [systemd_analyze, "verify", "--man=no", tmp_path / "foremount@.service"], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")


def documents(manifest: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return list(yaml.safe_load_all(manifest.read_text()))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_holds_against_the_schema_of_kubernetes(manifest: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for document in documents(manifest):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_mounts_only_volumes_that_it_has_and_passes_mounts_on(manifest: Path) -> None:
    for document in documents(manifest):
        spec = document.get("spec", {})
        spec = spec.get("template", {}).get("spec", spec)
        for container in spec.get("containers", []):
            assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in spec["volumes"]}
            assert [each.get("mountPropagation") for each in container["volumeMounts"] if each["name"] == "lake"] == [
                "Bidirectional" if document["kind"] == "DaemonSet" else "HostToContainer"
            ]


def test_image_of_the_manifest_and_of_the_recipe_are_of_this_version() -> None:
    for file in ("kubernetes/daemonset.yaml", "container/Containerfile"):
        assert f"foremount:{vfs.__version__}" in (SCRIPTS / file).read_text()


def test_recipe_copies_what_is_there() -> None:
    for line in (SCRIPTS / "container/Containerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            missing = [source for source in line.split()[1:-1] if not (ROOT / source).exists()]
            assert not missing, line


def preflight(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "preflight.sh"], env={"PATH": path}, capture_output=True, text=True, check=False, timeout=30
    )


def test_preflight_names_everything_that_a_bare_host_lacks(tmp_path: Path) -> None:
    for name in COREUTILS:
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    said = preflight(str(tmp_path))
    assert said.returncode == 1
    assert "MISSING  Python 3.11 or later" in said.stdout
    assert "MISSING  what pyfuse3 is compiled with" in said.stdout
    assert said.stderr == ""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_preflight_finds_nothing_missing_where_the_package_was_built() -> None:
    said = preflight(f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if "libfuse3-dev" in said.stdout:
        pytest.skip("libfuse3-dev is not installed")
    assert said.returncode == 0, said.stdout
