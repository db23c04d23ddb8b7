"""`foremount job`: samples of training jobs at `.jobs`: start, stop, tell, status, timeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from vfs.cli import locate, output, timeline
from vfs.cli.client import AdminClient
from vfs.errors import NotFound
from vfs.oserrors import Translated
from vfs.units import format_size

QUESTION_S = 60.0
"""Opening a schedule may ask an origin for a few files."""
mountpoint_option = click.option("--mountpoint", help="Which mount; needed where several run.")


@click.group()
def job() -> None:
    """Samples of training jobs, shown at `.jobs` of a mount (docs/samples.md)."""


@job.command()
@click.argument("document")
@click.option("--ranks", help='Ranks on this host, "0-7" or "0,2": their first step is prepared at once.')
@click.option("--step", type=int, default=0, help="The step that is read first.")
@mountpoint_option
@output.json_option
def start(document: str, ranks: str | None, step: int, mountpoint: str | None, as_json: bool) -> None:
    """Open the schedule that DOCUMENT declares, and show its samples.

    DOCUMENT is a TOML file in the lake, which node services read as well, or any other file: then node services don't know
    the job, and its relative paths start at the root of the lake.
    """
    try:
        located, (path,) = locate.lake_paths((document,), mountpoint)
        body: dict[str, str] = {"declaration": path}
    except NotFound:
        if not os.path.isfile(document):
            raise
        located = locate.one(mountpoint)
        with Translated(document), open(document, encoding="utf-8") as file:
            body = {"text": file.read(), "name": os.path.basename(document).removesuffix(".toml")}
    client = AdminClient(located.run_dir.admin_socket, QUESTION_S)
    found = client.post("/v1/samples/start", body)
    if ranks is not None:
        client.post("/v1/samples/tell", {"job": found["job"], "step": step, "ranks": _ranks(ranks)})
    if as_json:
        output.print_json(found)
        return
    click.echo(f"{located.mountpoint}/.jobs/{found['job']}: {found['steps']} steps from {found['first_step']} on")


@job.command()
@click.argument("name")
@mountpoint_option
@output.json_option
def stop(name: str, mountpoint: str | None, as_json: bool) -> None:
    """Forget a job and what was prepared for it."""
    found = _client(mountpoint).post("/v1/samples/stop", {"job": name})
    if as_json:
        output.print_json(found)


@job.command()
@click.argument("name")
@click.option("--step", type=int, required=True, help="The step that is read next.")
@click.option("--ranks", help='Ranks on this host, "0-7" or "0,2"; without it those that have read before.')
@mountpoint_option
@output.json_option
def tell(name: str, step: int, ranks: str | None, mountpoint: str | None, as_json: bool) -> None:
    """Say which step a job is about to read. Not needed: what is opened says it too."""
    body = {"job": name, "step": step, "ranks": _ranks(ranks) if ranks else []}
    found = _client(mountpoint).post("/v1/samples/tell", body)
    if as_json:
        output.print_json(found)


@job.command()
@click.argument("name", required=False)
@mountpoint_option
@output.json_option
def status(name: str | None, mountpoint: str | None, as_json: bool) -> None:
    """Show how far jobs are, how many samples were ready, and why the others were not."""
    found = _client(mountpoint).get("/v1/samples")
    if name is not None:
        found["jobs"] = [each for each in found["jobs"] if each["job"] == name]
        found["refused"] = {key: why for key, why in found["refused"].items() if key == name}
    if as_json:
        output.print_json(found)
        return
    click.echo("\n".join(table(found)))


@job.command("timeline")
@click.argument("name")
@click.option("--png", help="Write the picture to this file.")
@mountpoint_option
@output.json_option
def show_timeline(name: str, png: str | None, mountpoint: str | None, as_json: bool) -> None:
    """Show when each step of each rank was prepared and read, and who waited for what."""
    groups = _client(mountpoint).get("/v1/samples/timeline", job=name)["groups"]
    if png is not None:
        with Translated(png), open(png, "wb") as file:
            file.write(timeline.as_png(groups))
    if as_json:
        output.print_json({"job": name, "groups": groups})
        return
    click.echo("\n".join(output.columns(timeline.as_rows(groups), indent="")))
    if png is not None:
        click.echo(f"{png}: {timeline.LEGEND}")


def table(found: dict[str, Any]) -> list[str]:
    """Return the jobs as lines. Pure."""
    rows = [("JOB", "STEP", "RANKS", "READY", "HITS", "LEAD", "WAITED", "UNUSED", "CPU", "FROM", "RAW")]
    for each in found["jobs"]:
        numbers = (str(each["step"]), str(len(each["ranks"])), str(each["ready"]), f"{100 * each['hit_ratio']:.1f} %")
        times = (f"{each['lead_s']:.2f}s", f"{each['waited_s']:.2f}s", format_size(each["unused_bytes"]))
        rows.append((each["job"], *numbers, *times, f"{each['cpu_s']:.1f}s", each["node"] or "-", _counts(each["raw"])))
    lines = output.columns(rows, indent="") if len(rows) > 1 else ["no job has been read yet"]
    lines += _node_lines(found["jobs"])
    lines += [f"  ! {each['job']}: {said}" for each in found["jobs"] for said in each["refused"]]
    return lines + [f"  ! {name} is refused: {why}" for name, why in found["refused"].items()]


def _node_lines(jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each node of each job: what it has sent, for which CPU time, and what it gave up. Pure."""
    rows = [("JOB", "NODE", "SENT", "HITS", "LEAD", "UNUSED", "CPU", "CPU UNUSED", "ABORTED", "RAW")]
    troubles = []
    for job in jobs:
        for node, said in job.get("nodes", {}).items():
            if "error" in said:
                troubles.append(f"  ! {job['job']}: {said['error']}")
            elif said:
                numbers = (str(said["transformed"]), f"{100 * said['hit_ratio']:.1f} %", f"{said['lead_s']:.2f}s")
                cost = (format_size(said["unused_bytes"]), f"{said['cpu_s']:.1f}s", f"{said['unused_cpu_s']:.1f}s")
                rows.append((job["job"], node, *numbers, *cost, _counts(said["aborted"]), _counts(said["raw"])))
    return (["", *output.columns(rows, indent="")] if len(rows) > 1 else []) + troubles


def _counts(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(by_reason.items())) or "-"


def _client(mountpoint: str | None) -> AdminClient:
    return AdminClient(locate.one(mountpoint).run_dir.admin_socket, QUESTION_S)


def _ranks(text: str) -> list[int]:
    """Return the numbers of "0-3,7".

    Raises:
        BadParameter: it is no such list.
    """
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last if dash else first) + 1)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is no list of ranks", param_hint="--ranks") from exc
    return found
