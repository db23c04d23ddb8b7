"""`foremount top`: jobs, sources, waits, sites and transfers of a mount, live."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.errors import ForemountError
from vfs.units import format_size

_ANSWER_S = 5.0
_JOBS_SHOWN = 12
_TRANSFERS_SHOWN = 8
_SLOW_SHOWN = 6


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--every", "every_s", type=click.FloatRange(0.5, 60), default=1.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print once and end.")
@output.json_option
def top(mountpoint: str | None, every_s: float, once: bool, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT is doing, and for whom. Ctrl-C ends it."""
    located = locate.one(mountpoint)
    client = AdminClient(located.run_dir.admin_socket, _ANSWER_S)
    said = client.get("/v1/overview")
    if as_json:
        output.print_json(said)
        return
    console = Console()
    if once or not console.is_terminal:
        console.print(screen(said, located.mountpoint))
        return
    try:
        with Live(screen(said, located.mountpoint), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                try:
                    live.update(screen(client.get("/v1/overview"), located.mountpoint), refresh=True)
                except ForemountError as exc:  # the agent is being started again
                    live.update(Panel(Text(str(exc)), title="foremount top"), refresh=True)
    except KeyboardInterrupt:
        return


def screen(said: dict[str, Any], mountpoint: str) -> Group:
    """Return everything as one screen. Pure."""
    health, stats = said["status"]["health"], said["stats"]
    style = "green" if health["verdict"] == "serving" else "bold red"
    parts: list[Any] = [Text.assemble((f"{mountpoint}  ", "bold"), (health["verdict"], style), f"  {health['sentence']}")]
    parts += [Text(f"  ! {trouble['what']} -> {trouble['advice']}", style="red") for trouble in health["troubles"][1:]]
    parts += [_sources(stats), _jobs(said["jobs"]["jobs"]), _sites(said["replicas"]["replicas"])]
    if said["transfers"]["requests"] or said["transfers"]["orders"]:
        parts.append(_transfers(said["transfers"]))
    if stats["waiting"] or stats["slow"]:
        parts.append(_slow(stats))
    for name, facts in said["rooms"]["rooms"].items():
        parts.append(_room(name, facts))
    policy = said["policies"]
    names = ", ".join(document["name"] for document in policy["documents"])
    parts.append(Text(f"policy {policy['version']}: {names}", style="dim"))
    return Group(*parts)


def _sources(stats: dict[str, Any]) -> Table:
    """Return rates over the last five reports."""
    moments = stats["moments"][-5:]
    seconds = sum(moment["seconds"] for moment in moments) or 1.0
    table = _table("last 5 s", "source", "operations/s", "read/s", "", "waited for", "s/s")
    sources = sorted({source for moment in moments for source in moment["operations"]})
    causes = _sum(moment["waits"] for moment in moments)
    waits = sorted(causes.items(), key=lambda item: -item[1])
    for index in range(max(len(sources), len(waits), 1)):
        cells = ["-", "", ""]
        if index < len(sources):
            source = sources[index]
            count = sum(moment["operations"].get(source, 0) for moment in moments)
            size = sum(moment["bytes"].get(source, 0) for moment in moments)
            seen = source != "passthrough"
            cells = [source, f"{count / seconds:.0f}", format_size(size / seconds) if seen else "by the kernel"]
        wait = [waits[index][0], f"{waits[index][1] / seconds:.2f}"] if index < len(waits) else ["", ""]
        table.add_row(*cells, "", *wait)
    return table


def _jobs(jobs: list[dict[str, Any]]) -> Table:
    table = _table("jobs, last minute", "job", "uid", "processes", "read", "waited", "stall", "most for")
    for job in jobs[:_JOBS_SHOWN]:
        most = max(job["waits"].items(), key=lambda item: item[1], default=("", 0))[0]
        style = "red" if job["stall"] > 0.2 else ""
        table.add_row(
            Text(job["job"], style=style),
            str(job["uid"]),
            str(job["processes"]),
            format_size(job["bytes_minute"]),
            f"{job['wait_s_minute']:.1f} s",
            f"{job['stall']:.0%}",
            most,
        )
    return table


def _sites(replicas: list[dict[str, Any]]) -> Table:
    table = _table("sites", "prefix", "site", "role", "answers", "line", "first byte", "in flight")
    for each in replicas:
        line = "this host" if each["local"] else "-"
        if each["bytes_per_s"] is not None:
            line = f"{format_size(each['bytes_per_s'])}/s"
        first = f"{each['ttfb_s'] * 1e3:.0f} ms" if each["ttfb_s"] is not None else "-"
        answers = Text("yes") if each["answers"] else Text("no", style="bold red")
        table.add_row(each["prefix"], each["site"], each["role"], answers, line, first, str(each["requests_in_flight"]))
    return table


def _transfers(transfers: dict[str, Any]) -> Table:
    table = _table("transfers", "what", "done", "of", "for", "state")
    for order in transfers["orders"]:
        what = f"fetch {' '.join(order['paths'])}"
        files = f"{order['files_done']} of {order['files_total']} files"
        table.add_row(what, format_size(order["bytes_done"]), format_size(order["bytes_total"]), "an order", files)
    for each in transfers["requests"][:_TRANSFERS_SHOWN]:
        readers = f"{each['readers']} readers" if each["readers"] else each["priority"]
        done, total = format_size(each["bytes_done"]), format_size(each["bytes_total"])
        table.add_row(f"{each['site']}:{each['path']} + {each['offset']}", done, total, readers, each["state"])
    return table


def _slow(stats: dict[str, Any]) -> Table:
    table = _table("slow operations", "took", "what", "path", "process", "because")
    for call in [*stats["waiting"], *stats["slow"]][:_SLOW_SHOWN]:
        going_on = call in stats["waiting"]
        causes = sorted(call["causes"].items(), key=lambda item: -item[1])
        because = call["error"] or ", ".join(cause for cause, _ in causes[:2]) or ("still waiting" if going_on else "")
        table.add_row(
            Text(f"{call['seconds']:.2f} s{' …' * going_on}", style="red" if going_on else ""),
            call["operation"],
            call["path"],
            f"{call['command']} {call['pid']}",
            because,
        )
    return table


def _room(name: str, facts: Any) -> Table:
    rows = facts if isinstance(facts, list) else [facts]
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["-"]
    table = _table(name, *columns)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "default", overflow="fold")
    return table


def _sum(parts: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found
