"""`foremount trace`: record what is opened and read on a live mount."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from vfs.cli import locate, output
from vfs.cli.client import AdminClient
from vfs.errors import ForemountError, Unavailable
from vfs.traces.recording import Said
from vfs.units import decode_unit, format_size, parse_duration, parse_size

SILENCE_S = 30.0
"""The agent says something every second."""
AGENT_BACK_S = 10.0
"""A restarted agent serves again within a second; the mount has ended where it does not."""
LINE_BYTES_MAX = 8 << 20
"""A layout of 50,000 members takes 1 MB."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("mountpoint")
@click.option("--output", "-o", "path", default="trace.parquet", show_default=True, help="File to write.")
@click.option("--duration", help="How long: 30s, 10m. Without it until the command has ended, or Ctrl-C.")
@click.option("--size-max", default="256MiB", show_default=True, help="Stop when the file is so large.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@output.json_option
def trace(mountpoint: str, path: str, duration: str | None, size_max: str, command: tuple[str, ...], as_json: bool) -> None:
    """Record what is opened and read on the mount at MOUNTPOINT, for `foremount replay` and any tool that reads Parquet.

    With a COMMAND (after --) it is run, and recorded until it has ended; everything else on the mount is recorded too. What
    the kernel reads alone reaches nobody and is not in the trace: pages that it has, and files in passthrough. Opens are.
    """
    from vfs.traces.parquet import TraceWriter

    client = AdminClient(locate.at(mountpoint).run_dir.admin_socket, SILENCE_S)
    bytes_max, seconds = _parse(size_max, duration)
    ending = _Ending(client)
    with TraceWriter(path) as writer, ending.on_signals():
        for said in _lines(client):
            writer.add(said)
            ending.begin(seconds, list(command))
            if writer.size > bytes_max:
                ending.end(f"the file has reached {format_size(bytes_max)}")
        writer.close()
    facts = {
        "file": os.path.abspath(path),
        "events": writer.rows,
        "lost": writer.lost,
        "gaps": writer.gaps,
        "bytes": os.path.getsize(path),
        "ended": ending.why,
        "exit_status": ending.exit_status,
    }
    if as_json:
        output.print_json(facts)
    else:
        lost = f", {writer.lost} more happened and are not in it" if writer.lost else ""
        lost += f", {writer.gaps} gaps while the agent was started again" if writer.gaps else ""
        size = format_size(os.path.getsize(path))
        click.echo(f"{path}: {writer.rows} events{lost}, {size}; {ending.why}", err=bool(command))
    click.get_current_context().exit(ending.exit_status)


def _parse(size_max: str, duration: str | None) -> tuple[int, float | None]:
    try:
        return parse_size(size_max), None if duration is None else parse_duration(duration)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _lines(client: AdminClient) -> Iterator[Said]:
    """Yield what the agent says until the recording has ended; goes on with the next agent where one dies."""
    begun = False
    while True:
        try:
            for record in client.stream("/v1/trace", {}, line_bytes_max=LINE_BYTES_MAX):
                begun = True
                said = msgspec.convert(record, Said, dec_hook=decode_unit)
                yield said
            if said.done:
                return
        except Unavailable:
            if not begun:
                raise
            _wait_for_agent(client)


def _wait_for_agent(client: AdminClient) -> None:
    """Return once an agent answers again.

    Raises:
        Unavailable: none has for a while: the mount has ended.
    """
    deadline = time.monotonic() + AGENT_BACK_S
    while True:
        try:
            client.get("/v1/status")
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class _Ending:
    """Ends the recording, once, for whichever reason comes first.

    Attributes:
        why: the reason.
        exit_status: of the command that was run.
    """

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._once = threading.Lock()
        self._begun = False
        self.why = ""
        self.exit_status = 0

    def end(self, why: str) -> None:
        """Ask the agent to end the recording; the stream then ends with what was read until now."""
        with self._once:
            if self.why:
                return
            self.why = why
        self._client.post("/v1/trace/end", {})

    def begin(self, seconds: float | None, command: list[str]) -> None:
        """Run the command, or wait, in a thread, and end then; with neither it goes on until a signal comes. Once."""
        if self._begun:
            return
        self._begun = True
        if command:
            threading.Thread(target=self._run, args=(command, seconds), daemon=True).start()
        elif seconds is not None:
            timer = threading.Timer(seconds, self.end, [f"{seconds:g} s have passed"])
            timer.daemon = True
            timer.start()

    def _run(self, command: list[str], seconds: float | None) -> None:
        try:
            done = subprocess.run(command, timeout=seconds, check=False)
            self.exit_status = done.returncode if done.returncode >= 0 else 128 - done.returncode
            self.end(f"the command has ended with status {self.exit_status}")
        except OSError as exc:
            self.exit_status = 127
            self.end(f"{command[0]} can't be run: {exc.strerror}")
        except subprocess.TimeoutExpired:
            self.exit_status = 124
            self.end(f"{seconds:g} s have passed, the command was ended")
        except ForemountError:
            return  # the agent is gone, and the stream with it

    def on_signals(self) -> Any:
        """Return a context in which SIGINT and SIGTERM end the recording in order."""
        return _Signals(self)


class _Signals:
    def __init__(self, ending: _Ending) -> None:
        self._ending = ending
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._stop)))

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: object) -> None:
        threading.Thread(target=self._ending.end, args=[signal.Signals(number).name], daemon=True).start()
