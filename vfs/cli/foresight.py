"""`foremount controller`, `event`, `copies` and `ledger`: predictions, the copies that follow, and what they were worth."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click
import msgspec

from vfs.cli import locate, output
from vfs.errors import InvalidConfig
from vfs.foresight.model import Happening, Mechanism
from vfs.tls import Files
from vfs.training import Training
from vfs.units import format_size

ASKED_S = 30.0


class Asked(NamedTuple):
    """Which controller is asked, and with what.

    Attributes:
        controllers: URLs; none: that of a mount of this host.
    """

    controllers: tuple[str, ...]
    tokens: str
    mountpoint: str | None
    files: Files


def _line(job: str, asked: Asked) -> Training:
    """Return the line to the controllers that were named, else to that of a mount of this host."""
    if asked.controllers:
        return Training(job, asked.controllers, tokens=asked.tokens, files=asked.files, timeout_s=ASKED_S)
    return Training(job, [locate.one(asked.mountpoint).run_dir.foresight_socket], timeout_s=ASKED_S)


def _reached(command: Callable[..., None]) -> Any:
    """Give the command options that say which controller is asked, as `asked`."""

    @functools.wraps(command)
    def with_asked(
        *args: Any,
        controllers: tuple[str, ...],
        tokens: str | None,
        mountpoint: str | None,
        certificate: str | None,
        key: str | None,
        authority: str | None,
        **kwargs: Any,
    ) -> None:
        files = Files(certificate or "", key or "", authority or "")
        command(*args, asked=Asked(controllers, tokens or "", mountpoint, files), **kwargs)

    found: Any = with_asked
    for option in (
        click.option("--mountpoint", help="Ask the controller of this mount."),
        click.option("--authority", help="PEM file of whose certificates are believed; default: the system's."),
        click.option("--key", help="PEM file of the certificate's key."),
        click.option("--certificate", help="PEM file that is shown to a controller that asks for one."),
        click.option("--tokens", help='File of lines "NAME SECRET"; the first one signs.'),
        click.option(
            "--controller", "controllers", multiple=True, metavar="URL", help='"https://host:port"; again for more.'
        ),
    ):
        found = option(found)
    return found


@click.command()
@click.option("--config", "config_path", required=True, help="foremount.toml with a [foresight] table.")
@click.option("--socket", "socket_path", default="", help="Serve here too, without signatures.")
@click.option("--name", default="", help="What it is called where it leads; default: host and process.")
def controller(config_path: str, socket_path: str, name: str) -> None:
    """Run a controller of foresight until it is told to end. Of several with one etcd, one leads."""
    argv = [sys.executable, "-m", "vfs.foresight.controller", "--config", config_path, "--socket", socket_path]
    os.execv(sys.executable, argv + (["--name", name] if name else []))  # noqa: S606 - our own main, in our place


@click.command()
@click.argument("job")
@click.argument("kind")
@click.argument("fields", nargs=-1)
@_reached
def event(job: str, kind: str, fields: tuple[str, ...], asked: Asked) -> None:
    """Tell the controller of JOB what has happened: KIND with FIELDS, each name=value.

    \b
    foremount event run7 evaluation_scheduled evaluation=mmlu step=12000 site=eval
    foremount event run7 job_submitted world_size=2048 evaluate_every=1000 'evaluation_sites=["eval"]'

    Values are JSON, or else taken as text. Kinds and fields: docs/foresight.md.
    """
    said: dict[str, Any] = {"type": kind}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals:
            raise click.BadParameter(f"{field!r} is no name=value", param_hint="FIELDS")
        said[name] = _value(value)
    try:
        what = msgspec.convert(said, Happening)
    except msgspec.ValidationError as exc:
        raise InvalidConfig(f"event {kind}", str(exc), "docs/foresight.md lists kinds and fields") from exc
    _line(job, asked).tell(what)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def whole_state(line: Training) -> dict[str, Any]:
    """Return what the controller knows, asked for in pieces."""
    state = piece = line.ask("/v1/state")
    while piece["more"]:
        after = {f"{name}_after": state[name][-1]["id"] for name in ("hints", "replicas") if state[name]}
        piece = line.ask(f"/v1/state?{urlencode(after)}")
        for name in ("hints", "replicas"):
            state[name] += piece[name]
    return state


@click.command()
@click.option("--cancel", metavar="HINT", help="Take a hint back; its copies go.")
@click.option("--off", type=click.Choice([each.value for each in Mechanism]), help="Switch a mechanism off.")
@click.option("--on", type=click.Choice([each.value for each in Mechanism]), help="Switch it on again.")
@click.option("--deleted", is_flag=True, help="List the copies that were removed, with the proof, newest first.")
@_reached
@output.json_option
def copies(
    deleted: bool,
    cancel: str | None,
    off: str | None,
    on: str | None,
    asked: Asked,
    as_json: bool,
) -> None:
    """List the copies that predictions have brought about: where, of what, how far, and which hint each is for."""
    line = _line("", asked)
    for mechanism, wanted in ((off, False), (on, True)):
        if mechanism is not None:
            line.order("/v1/switches", {"mechanism": mechanism, "on": wanted})
    if deleted:
        _show_deleted(line.ask("/v1/deletions"), as_json=as_json)
        return
    state = whole_state(line)
    if cancel is not None:
        job = next((hint["job"] for hint in state["hints"] if hint["id"] == cancel), None)
        if job is None:
            raise InvalidConfig(f"hint {cancel}", "is not open", "foremount copies lists those that are")
        _line(job, asked).hint_cancelled(cancel, "taken back on the command line")
    if as_json:
        output.print_json(state)
        return
    rows = [("COPY", "PHASE", "SITE", "FILES", "SIZE", "HINT", "PATH")]
    why = {hint["id"]: hint["why"] for hint in state["hints"]}
    for each in state["replicas"]:
        about = "; ".join(filter(None, (each["reason"], why.get(each["hint"], "its hint is gone"))))
        rows.append(
            (
                each["id"],
                each["phase"],
                each["site"],
                str(each["files"]),
                format_size(each["bytes"]),
                each["hint"],
                f"/{each['path']}  {about}",
            )
        )
    click.echo(
        f"controller {state['name']}, leader {state['leader'] or 'none'}, switched off: {' '.join(state['off']) or '-'}"
    )
    if state["bears"]:
        click.echo("readers that a copy bears, measured: " + ", ".join(f"{site} {n}" for site, n in state["bears"].items()))
    output.print_table(rows, "no copies")


def _show_deleted(proofs: Any, *, as_json: bool) -> None:
    if as_json:
        output.print_json(proofs)
        return
    rows = [("COPY", "DELETED", "SITE", "FILES", "SIZE", "FOUND GONE", "SIGNED BY", "PATH")]
    for proof in proofs:
        each = proof["deletion"]
        when = datetime.fromtimestamp(each["deleted_ns"] / 1e9, UTC).isoformat(sep=" ", timespec="seconds")
        counts = str(each["files"]), format_size(each["bytes"]), str(each["gone"])
        about = f"/{each['path']}  {each['why']}"
        rows.append((each["replica"], when, each["site"], *counts, proof["signed_by"] or "nobody", about))
    output.print_table(rows, "no copy was removed")


@click.command()
@click.option("--lines", is_flag=True, help="Show each prediction with its time line, newest first.")
@_reached
@output.json_option
def ledger(lines: bool, asked: Asked, as_json: bool) -> None:
    """Say what predictions were worth: hits, lead time, bytes for nothing, cost, for each job and mechanism."""
    found = _line("", asked).ask("/v1/ledger")
    if as_json:
        output.print_json(found)
        return
    rows = [("JOB", "MECHANISM", "HINTS", "OPEN", "HITS", "LATE", "MISSES", "NO COPY", "HIT RATE", "LEAD", *_COSTS, "SAVED")]
    for each in found["accounts"]:
        rate = "-" if each["hit_rate"] < 0 else f"{each['hit_rate']:.0%}"
        counts = [str(each[name]) for name in ("predictions", "open", "hits", "late", "misses", "shadow")]
        sizes = format_size(each["bytes_prepared"]), format_size(each["bytes_unused"])
        cost = format_size(each["wan_bytes"]), format_size(round(each["byte_hours"])), f"{each['cpu_s']:.1f}s"
        told = rate, f"{each['lead_s']:.1f}s", *sizes, str(each["fallbacks"]), *cost, f"{each['saved_s']:.1f}s"
        rows.append((each["job"], each["mechanism"], *counts, *told))
    output.print_table(rows, "no predictions yet")
    if lines:
        click.echo("\n".join(["", *output.columns([_HEAD, *map(time_line, found["entries"])], indent="")]))


_COSTS = ("PREPARED", "UNUSED", "FALLBACKS", "LINE", "SIZE*H", "CPU")
_HEAD = ("STEP", "SITE", "OUTCOME", "PREDICTED", "COMMITTED", "READY", "STARTED", "RESULT", "PATH")


def time_line(entry: dict[str, Any]) -> tuple[str, ...]:
    """Return a prediction's times as seconds after it was made. Pure."""

    def after(name: str) -> str:
        return f"+{(entry[name] - entry['made_ns']) / 1e9:.1f}s" if entry[name] else "-"

    times = [after(name) for name in ("committed_ns", "ready_ns", "started_ns", "result_ns")]
    step = str(entry["step"]) if entry["step"] >= 0 else "-"
    return (step, entry["site"], entry["outcome"], "0", *times, f"/{entry['path']}")
