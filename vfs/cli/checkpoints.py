"""`foremount checkpoints`: which checkpoints there are below a path, how far each is, and where its time went."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from typing import Any

import click

from vfs.cli import heatmap, locate, output
from vfs.cli.client import AdminClient
from vfs.errors import Unsupported
from vfs.oserrors import Translated
from vfs.units import format_size, parse_duration

QUESTION_S = 60.0
"""An origin lists one directory for each checkpoint below PATH."""


@click.command()
@click.argument("path", default=".")
@click.option("--mountpoint", help="Which mount lake paths belong to.")
@click.option("--ranks", is_flag=True, help="Show where the time of each rank went, of PATH's latest checkpoint.")
@click.option("--png", help="Write ranks by phase as an image to this file.")
@click.option("--sweep", metavar="AGE", help='Remove the incomplete ones that were written to last longer ago: "2d".')
@output.json_option
def checkpoints(path: str, mountpoint: str | None, ranks: bool, png: str | None, sweep: str | None, as_json: bool) -> None:
    """List the checkpoints at and below PATH: step, format, size, state and times.

    States: writing, incomplete (no marker, and nobody writes), committed (waits for its files to be at the origin), durable.
    """
    located, (lake_path,) = locate.lake_paths((path,), mountpoint)
    found = AdminClient(located.run_dir.admin_socket, QUESTION_S).get("/v1/checkpoints", path=lake_path)["checkpoints"]
    if sweep is not None:
        found = sweep_incomplete(found, located.mountpoint, _age_s(sweep), time.time())
    timed = [each for each in found if each["ranks"]]
    if png is not None:
        if not timed:
            raise Unsupported(lake_path, "no checkpoint here was written through this host", "choose another PATH")
        with Translated(png), open(png, "wb") as file:
            file.write(heatmap.as_png(_rows(timed[-1])))
    if as_json:
        output.print_json({"checkpoints": found})
        return
    click.echo("\n".join(_table(found)) if found else f"no checkpoints below /{lake_path}")
    if ranks and timed:
        labels = ["other" if rank["rank"] < 0 else f"rank {rank['rank']}" for rank in timed[-1]["ranks"]]
        click.echo("\n".join(["", f"/{timed[-1]['path']}", *heatmap.as_text(labels, _rows(timed[-1]))]))


def sweep_incomplete(found: list[dict[str, Any]], mountpoint: str, age_s: float, now_s: float) -> list[dict[str, Any]]:
    """Remove incomplete checkpoints through the mount and return them; what is being written or committed stays."""
    doomed = [each for each in found if each["state"] == "incomplete" and now_s - each["written_s"] >= age_s]
    for each in doomed:
        directory = os.path.join(mountpoint, each["path"])
        with Translated(each["path"]):
            shutil.rmtree(directory)
        each["state"] = "swept"
    return doomed


def _age_s(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--sweep") from exc


def _table(found: list[dict[str, Any]]) -> list[str]:
    rows = [("STEP", "STATE", "FORMAT", "FILES", "SIZE", "TENSORS", "WRITTEN", "HERE", "AT ORIGIN", "PATH")]
    for each in found:
        step = "-" if each["step"] is None else str(each["step"])
        times = [_time(each[name]) for name in ("written_s", "local_s", "durable_s")]
        size, tensors = format_size(each["bytes"]), str(each["tensors"] or "-")
        path = f"/{each['path']}" + (f"  waits for {each['waits_for']}" if each["waits_for"] else "")
        rows.append((step, each["state"], each["format"] or "-", str(each["files"]), size, tensors, *times, path))
    return output.columns(rows, indent="")


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%m-%d %H:%M:%S") if seconds else "-"


def _rows(checkpoint: dict[str, Any]) -> list[list[float]]:
    return [[rank[f"{phase}_s"] for phase in heatmap.PHASES] for rank in checkpoint["ranks"]]
