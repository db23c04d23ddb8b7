"""`foremount operator`, with the operator that docs/samples.md shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the [media] extra is not installed")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "samples.md"


def foremount(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vfs.cli", "operator", *words], cwd=cwd, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a directory with the operator of the document."""
    text = DOCUMENT.read_text()
    code = re.search(r"```python\n(import numpy.*?)```", text, re.DOTALL)
    declaration = re.search(r"```toml\n(name = \"double\".*?)```", text, re.DOTALL)
    assert code is not None and declaration is not None
    (tmp_path / "double.py").write_text(code[1])
    (tmp_path / "double.toml").write_text(declaration[1])
    (tmp_path / "some.bin").write_bytes(bytes(range(100)))
    return tmp_path


def test_documented_operator_is_tried_signed_and_listed(written: Path) -> None:
    tried = foremount("run", "./double.toml", "some.bin", "-o", "some.npy", "--params", '{"times":3}', cwd=written)
    assert tried.returncode == 0, tried.stderr
    assert np.load(written / "some.npy").tolist() == [3 * value % 256 for value in range(100)]
    trusted = foremount("key", "alice.pem", cwd=written)
    (written / "trusted_keys").write_text(trusted.stdout)
    listed = ("list", "--operators", ".", "--keys", "trusted_keys", "--json")
    before = foremount(*listed, cwd=written)
    assert (before.returncode, list(json.loads(before.stdout)["refused"])) == (1, ["double@1"])
    signed = foremount("sign", "double.toml", "--key", "alice.pem", cwd=written)
    assert signed.returncode == 0, signed.stderr
    after = foremount(*listed, cwd=written)
    assert after.returncode == 0, after.stdout
    assert json.loads(after.stdout)["operators"]["double@1"]["signer"] == "alice"


def test_operator_that_is_not_there_is_refused_with_those_that_are(written: Path) -> None:
    said = foremount("run", "nothing", "some.bin", "-o", "made", cwd=written)
    assert said.returncode == 1
    assert "image@1" in said.stderr
