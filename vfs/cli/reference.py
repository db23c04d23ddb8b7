"""`python -m vfs.cli.reference`: write docs/cli.md from the commands themselves. Run in a checkout; a test compares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from vfs.cli import main

PATH = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_HEAD = """# Commands

Generated from the commands by `python -m vfs.cli.reference`. Exit status: 0 all is well, 1 trouble, 2 wrong usage. `--json`
prints one JSON document, also for failures: `{"error": {"kind", "subject", "reason", "hint"}}`. No command touches a mount
that hangs, but those that are there to read it.
"""


def reference() -> str:
    """Return the document."""
    context = click.Context(main, info_name="foremount")
    return "\n".join([_HEAD, *_group(main, context, "foremount")]).rstrip() + "\n"


def _group(group: click.Group, context: click.Context, name: str) -> Iterator[str]:
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None, f"{word} is listed and does not exist"
        inner = click.Context(command, info_name=word, parent=context)
        if isinstance(command, click.Group):
            yield from _group(command, inner, f"{name} {word}")
        else:
            yield from _command(command, inner, f"{name} {word}")


def _command(command: click.Command, context: click.Context, name: str) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {name}\n\n```\n{name} {usage}\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield "| option | meaning |\n|---|---|"
        for option in options:
            yield _option(option, context)
        yield ""


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, "a hidden option was left out before"
    names, meaning = record
    return f"| `{names}` | {meaning.replace('|', chr(92) + '|').replace('  ', ' ')} |"


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
