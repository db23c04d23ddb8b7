"""What `docs/semantics.md` promises has tests that hold it: `docs/semantics.tests.toml` names them."""

from __future__ import annotations

import ast
import errno
import re
import tomllib
from functools import cache
from pathlib import Path

from vfs.kernel import guard

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs/semantics.md").read_text(encoding="utf-8")
STATEMENTS = tomllib.loads((ROOT / "docs/semantics.tests.toml").read_text(encoding="utf-8"))["statements"]


def blocks() -> list[str]:
    """Return what the document says, piece by piece: paragraphs, list items, table rows without their heads."""
    found: list[str] = []
    for part in re.split(r"\n\s*\n", DOCUMENT):
        lines = [line for line in part.splitlines() if not line.startswith("#")]
        if lines and any(line.startswith("|--") for line in lines):
            rows = [line for line in lines if line.startswith("|")]
            found += ["\n".join(line for line in lines if not line.startswith("|")), *rows[2:]]
        else:
            found += re.split(r"\n(?=\d+\. |- )", "\n".join(lines))
    return [" ".join(block.split()) for block in found if block.strip() and not block.rstrip().endswith(":")]


@cache
def existing() -> set[str]:
    """Return the names of all tests."""
    return {
        node.name.removeprefix("test_")
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_statement_has_a_test() -> None:
    silent = [block for block in blocks() if not any(each["says"] in block for each in STATEMENTS)]
    assert not silent, "name a test that holds it in docs/semantics.tests.toml"


def test_every_entry_quotes_the_document() -> None:
    text = " ".join(DOCUMENT.split())
    assert not [each["says"] for each in STATEMENTS if each["says"] not in text]


def test_every_test_that_is_named_exists() -> None:
    assert not [name for each in STATEMENTS for name in each["tests"] if name not in existing()]


def test_every_test_that_the_threat_model_names_exists() -> None:
    rows = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8").partition("## What is done")[2].partition("\n## ")[0]
    named = [row.split("|")[3] for row in rows.splitlines() if row.startswith("| ")][1:]
    assert named
    assert not [name for cell in named for name in cell.strip().split(", ") if name not in existing()]


def test_every_errno_that_we_answer_is_in_the_table() -> None:
    table = DOCUMENT.partition("## Errors")[2]
    documented = set(
        re.findall(r"\bE[A-Z]+\b", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|")))
    )
    answered = {errno.errorcode[number] for number in guard._ERRNOS.values()} - {"ENOTSUP"} | {"EOPNOTSUPP"}
    assert answered <= documented
