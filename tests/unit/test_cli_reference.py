from __future__ import annotations

from vfs.cli import main, reference


def test_generated_document_is_current() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.reference(), "run: python -m vfs.cli.reference"


def test_every_command_is_in_it_with_its_options() -> None:
    text = reference.reference()
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert f"## foremount {name}" in text
    assert "| `--force` |" in text
