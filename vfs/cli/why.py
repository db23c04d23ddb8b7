"""`foremount why`: where the time of a process or a job went over the last minute, and what would change it."""

from __future__ import annotations

import os
from typing import Any

import click

from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.errors import NotFound
from vfs.units import format_size

_ANSWER_S = 5.0


@click.command()
@click.option("--pid", type=int, help="A process.")
@click.option("--job", help="A job, as `foremount top` names it.")
@click.option("--window", type=click.IntRange(1, 120), default=60, show_default=True, help="Seconds to look at.")
@click.option("--mountpoint", help="Which mount; may be left out where one is running.")
@output.json_option
def why(pid: int | None, job: str | None, window: int, mountpoint: str | None, as_json: bool) -> None:
    """Say why a process or a job is slow: time waited by cause, and what would change it. Without either: all callers."""
    if pid is not None and job is not None:
        raise click.UsageError("name a process or a job, not both")
    if pid is not None and not os.path.exists(f"/proc/{pid}"):
        raise NotFound(f"process {pid}", "is not running", "name its job with --job to look back")
    query = {"window": str(window)} | ({"pid": str(pid)} if pid else {}) | ({"job": job} if job else {})
    said = AdminClient(locate.one(mountpoint).run_dir.admin_socket, _ANSWER_S).get("/v1/why", **query)
    if as_json:
        output.print_json(said)
    else:
        click.echo("\n".join(describe(said)))


def describe(said: dict[str, Any]) -> list[str]:
    """Return the answer as lines for people. Pure."""
    lines = [f"{said['subject']}, last {said['window_s']:.0f} s: {said['sentence']}"]
    rows = [(source, f"{count} operations", format_size(said["bytes"].get(source, 0)))
            for source, count in said["operations"].items()]  # fmt: skip
    lines += ["", "served from", *output.columns(rows)] if rows else []
    for advice in said["causes"]:
        lines += ["", f"{advice['seconds']:8.2f} s  {advice['share']:4.0%}  {advice['cause']}: {advice['meaning']}"]
        lines.append(f"            -> {advice['change']}")
        if advice["rule"]:
            lines.append(f"            by {advice['rule']}")
    for title, calls in (("going on", said["going_on"]), ("slow", said["slow"][-5:])):
        told = [(f"{call['seconds']:.2f} s", call["operation"], call["path"], _reason(call)) for call in calls]
        lines += ["", title, *output.columns(told)] if told else []
    return lines


def _reason(call: dict[str, Any]) -> str:
    causes = sorted(call["causes"].items(), key=lambda item: -item[1])
    return call["error"] or ", ".join(cause for cause, seconds in causes if seconds > 0.1 * call["seconds"])
