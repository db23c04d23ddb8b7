"""`foremount replay`: what another policy or configuration would have made of a recorded run."""

from __future__ import annotations

import logging
import tomllib

import click
import numpy as np

from vfs.cli import output
from vfs.traces.outcome import Outcome, table
from vfs.traces.parquet import Trace, load
from vfs.traces.recording import Line
from vfs.traces.records import How
from vfs.traces.replay import replay as play
from vfs.traces.scenario import Scenario, as_recorded, recorded_mounts, under_config, under_policy
from vfs.traces.versions import unsaid
from vfs.units import parse_duration, parse_size


@click.command()
@click.argument("trace")
@click.option("--policy", "sources", multiple=True, metavar="SOURCE", help="Documents to try: shipped, file, directory.")
@click.option("--config", "config_path", metavar="FILE", help="foremount.toml to try, with the documents that it names.")
@click.option("--against", metavar="SOURCE", help="Compare with these documents or foremount.toml, not with those recorded.")
@click.option("--ttfb", metavar="TIME", help="Time to first byte of every site, in place of what was measured: 100ms.")
@click.option("--bandwidth", metavar="SIZE/s", help="Of every site, in place of what was measured: 125MB/s.")
@output.json_option
def replay(
    trace: str,
    sources: tuple[str, ...],
    config_path: str | None,
    against: str | None,
    ttfb: str | None,
    bandwidth: str | None,
    as_json: bool,
) -> None:
    """Play TRACE under other policy documents or another configuration and compare hits, bytes and waiting.

    The decisions are the real ones; the line to each site is simulated as it was measured, the cache is empty at the start,
    and no site is asked. The first column is what was measured, the second what a replay makes of the same setting: how well
    the two agree says how far to believe the third.
    """
    if sources and config_path:
        raise click.UsageError("--policy and --config exclude each other: a configuration names its documents")
    logging.getLogger("vfs").setLevel(logging.ERROR)  # files without a layout are counted, not told one by one
    recorded = load(trace)
    line = _line(ttfb, bandwidth)
    scenarios = [_against(recorded, against, line)]
    if sources:
        scenarios.append(under_policy(recorded, sources, line))
    if config_path:
        scenarios.append(under_config(recorded, config_path, line))
    outcomes = [_as_it_was(recorded), *(play(recorded, scenario) for scenario in scenarios)]
    notes = _notes(recorded, scenarios)
    if as_json:
        output.print_json({"trace": trace, "runs": outcomes, "lines": scenarios[-1].lines, "notes": notes})
        return
    click.echo("\n".join(output.columns(table(outcomes))))
    for note in notes:
        click.echo(f"note: {note}")


def _against(trace: Trace, against: str | None, line: Line | None) -> Scenario:
    if against is None:
        return as_recorded(trace, line)
    return under_config(trace, against, line) if _is_config(against) else under_policy(trace, [against], line)


def _is_config(path: str) -> bool:
    """Return whether a file is a configuration and no policy document; one that can't be read is for others to refuse."""
    try:
        with open(path, "rb") as file:
            return "mounts" in tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError):
        return False


def _line(ttfb: str | None, bandwidth: str | None) -> Line | None:
    if ttfb is None and bandwidth is None:
        return None
    if ttfb is None or bandwidth is None:
        raise click.UsageError("--ttfb and --bandwidth belong together")
    try:
        return Line(parse_duration(ttfb), float(parse_size(bandwidth.removesuffix("/s"))), 0)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _as_it_was(trace: Trace) -> Outcome:
    """Return the figures of the run itself."""
    reads = np.isin(trace.how, (How.HIT, How.FETCHED))
    mounts = recorded_mounts(trace)
    points = [mounts.find(path) for path, _ in trace.files]
    remote = [index for index, point in enumerate(points) if point is not None and point.local_root is None]
    end = int((trace.at_ns + trace.wait_ns).max()) if len(trace) else 0
    return Outcome.of(
        "measured",
        waits_s=trace.wait_ns[reads] / 1e9,
        fetched=trace.how[reads] == How.FETCHED,
        lengths=trace.length[reads],
        duration_s=end / 1e9,
        wanted_bytes=trace.wanted_bytes(remote),
        fetched_bytes=trace.meta.fetched_bytes,
        prefetched_bytes=None,
        requests=trace.meta.requests,
        failed=int((trace.how == How.FAILED).sum()),
    )


def _notes(trace: Trace, scenarios: list[Scenario]) -> list[str]:
    """Return what whoever believes the figures has to know."""
    notes = []
    alone = int((trace.how == How.PASSTHROUGH).sum())
    if alone:
        notes.append(f"{alone} opens were in passthrough: what was read through them reached nobody and is not played")
    if trace.meta.lost:
        notes.append(f"{trace.meta.lost} events happened and are not in the trace")
    if trace.meta.gaps:
        notes.append(f"the agent was started again {trace.meta.gaps} times while it was recorded")
    if trace.meta.layouts_left_out:
        notes.append(
            f"{trace.meta.layouts_left_out} layouts were too large for the trace: their files are read as plain bytes"
        )
    guessed = sorted({site for scenario in scenarios for site in scenario.guessed})
    if guessed:
        notes.append(f"nothing was measured of {', '.join(guessed)}: 50 ms and 100 MB/s are assumed; see --ttfb, --bandwidth")
    recorded = as_recorded(trace)
    for scenario in scenarios:
        notes += [f"{scenario.name}: {said}" for said in unsaid(trace, scenario, recorded)]
    return notes
