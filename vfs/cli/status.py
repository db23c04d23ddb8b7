"""`foremount status`: how the mounts do, and what to do about trouble.

Reads the keeper's state file, /proc and the mount table, and asks the agent with a deadline. Never looks at the mount
point: with anything stopped, dead or hung it answers within 2 s.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click
import msgspec

from vfs.admin.health import troubles_of_agent
from vfs.admin.records import Trouble
from vfs.cli import client, locate, output
from vfs.cli.locate import Located
from vfs.errors import ForemountError
from vfs.keeper import mountinfo, procfs, state
from vfs.keeper.mountinfo import FS_TYPE, MountEntry
from vfs.keeper.procfs import ProcessFacts
from vfs.keeper.state import KeeperState
from vfs.keeper.supervise import Child
from vfs.units import format_size

AGENT_S = 1.0
"""Leaves room for the rest of the 2 s that `status` may take."""

RUNNING, STOPPED, GONE, ZOMBIE, DEBUGGED = "running", "stopped", "gone", "zombie", "debugged"


class Process(msgspec.Struct, frozen=True):
    """One of ours.

    Attributes:
        state: "running", "stopped" (SIGSTOP), "debugged", "zombie" or "gone".
        ready: it has said that it serves; of the keeper: always.
    """

    pid: int
    state: str
    ready: bool = True
    restarts: int = 0
    last_exit: str = ""


class MountStatus(msgspec.Struct, frozen=True):
    """Everything about one mount.

    Attributes:
        verdict: "serving", "trouble", "starting", "stopping", "failed", "dead" or "not mounted".
        version, python: of what the worker and the agent were started from.
        upgrade: the last one, {} where there was none.
        agent_says: its answer to /v1/status, None where there was none.
    """

    mountpoint: str
    run_dir: str
    verdict: str
    troubles: list[Trouble]
    config: str = ""
    since_s: float = 0.0
    connection: int = 0
    passthrough: bool = False
    why_no_passthrough: str = ""
    read_ahead_kb: int = 0
    version: str = ""
    python: str = ""
    keeper_version: str = ""
    upgrade: dict[str, Any] = {}
    processes: dict[str, Process] = {}
    agent_says: dict[str, Any] | None = None


@click.command()
@click.argument("mountpoint", required=False)
@output.json_option
def status(mountpoint: str | None, as_json: bool) -> None:
    """Say how the mount at MOUNTPOINT does, or all mounts of this user.

    Exit status 0 if all is well, 1 if something is wrong.
    """
    located = [locate.at(mountpoint)] if mountpoint else locate.recorded()
    found = [observe(each) for each in located]
    if as_json:
        output.print_json(found[0] if mountpoint else found)
    elif not found:
        click.echo("no foremount is mounted by this user")
    else:
        click.echo("\n\n".join("\n".join(_describe(each)) for each in found))
    if any(each.troubles for each in found):
        click.get_current_context().exit(1)


def observe(located: Located) -> MountStatus:
    """Return how this mount does."""
    entry = mountinfo.on_top(mountinfo.read(), located.mountpoint)
    held = located.state
    if held is None:
        return _without_keeper(located, entry)
    processes = {"keeper": _look(held.pid, held.starttime)}
    processes |= {name: _look_child(child) for name, child in held.children.items()}
    agent_says, agent_trouble = _ask_agent(located, processes["agent"])
    mounted = entry is not None and entry.fs_type == FS_TYPE and entry.minor == held.connection
    troubles = diagnose(held, processes, mounted=mounted, agent_trouble=agent_trouble)
    troubles += troubles_of_agent(agent_says or {}) if held.phase == state.SERVING else []
    return MountStatus(
        mountpoint=located.mountpoint,
        run_dir=located.run_dir.path,
        verdict=_verdict(held, processes, troubles),
        troubles=troubles,
        config=held.config,
        since_s=round(time.time() - held.since, 1),
        connection=held.connection,
        passthrough=held.passthrough,
        why_no_passthrough=held.why_no_passthrough,
        read_ahead_kb=held.read_ahead_kb,
        version=held.version,
        python=held.python,
        keeper_version=held.keeper_version,
        upgrade=asdict(held.upgrade) if held.upgrade.id else {},
        processes=processes,
        agent_says=agent_says,
    )


def diagnose(
    held: KeeperState, processes: dict[str, Process], *, mounted: bool, agent_trouble: ForemountError | None
) -> list[Trouble]:
    """Return what is wrong, the most important first. Pure: no I/O, no clock."""
    force = f"foremount umount --force {held.mountpoint}"
    again = f"foremount mount {held.config} {held.mountpoint}"
    if held.phase == state.FAILED:
        return [Trouble(f"the mount was given up: {held.reason}", f"mend that, then {again}")]
    if processes["keeper"].state in (GONE, ZOMBIE):
        what = "the keeper is gone and has left a dead mount: every access fails" if mounted else "the keeper is gone"
        return [Trouble(what, f"{again} detaches what is dead and mounts anew")]
    troubles = []
    for name, process in processes.items():
        title = Child(name).title
        if process.state in (STOPPED, DEBUGGED):
            effect = _EFFECT_OF_STOP[name]
            troubles.append(Trouble(f"the {title} is stopped: {effect}", f"kill -CONT {process.pid}, or {force}"))
        elif process.state in (GONE, ZOMBIE) and held.phase == state.SERVING:
            after = f" ({process.last_exit})" if process.last_exit else ""
            troubles.append(
                Trouble(f"the {title} has ended{after} and is being started again", f"see {name}.log and {name}.err")
            )
        elif not process.ready and held.phase == state.SERVING:
            after = f" ({process.last_exit})" if process.last_exit else ""
            troubles.append(Trouble(f"the {title} is starting again{after}", f"if this stays, see {name}.log and {name}.err"))
    if held.phase == state.SERVING and not mounted:
        troubles.append(
            Trouble(f"it is no longer mounted at {held.mountpoint} here: detached, or another mount namespace", force)
        )
    agent = processes["agent"]
    if agent_trouble is not None and agent.state == RUNNING and agent.ready and held.phase == state.SERVING:
        troubles.append(Trouble(f"the agent does not answer: {agent_trouble.reason}", _ADVICE_ON_AGENT.format(pid=agent.pid)))
    return troubles


_EFFECT_OF_STOP = {
    "keeper": "nothing restarts what dies",
    "worker": "every access waits",
    "agent": "local and cached reads go on, the rest waits",
    "jobs": "samples that are in the page cache can be read, the rest of .jobs waits",
}
_ADVICE_ON_AGENT = "wait, or kill -9 {pid}: the keeper starts another and no reader notices"


def _verdict(held: KeeperState, processes: dict[str, Process], troubles: list[Trouble]) -> str:
    if held.phase == state.FAILED:
        return "failed"
    if processes["keeper"].state in (GONE, ZOMBIE):
        return "dead"
    if held.phase != state.SERVING:
        return held.phase
    return "trouble" if troubles else "serving"


def _without_keeper(located: Located, entry: MountEntry | None) -> MountStatus:
    if entry is not None and entry.fs_type == FS_TYPE:
        what = "a foremount is mounted there that has no state file: its run directory is lost, or it is another user's"
        trouble = Trouble(what, f"umount -l {located.mountpoint}")
        return MountStatus(located.mountpoint, located.run_dir.path, "trouble", [trouble], connection=entry.minor)
    there = f"{entry.source} ({entry.fs_type}) is" if entry is not None else "nothing is"
    trouble = Trouble(f"{there} mounted there", f"foremount mount CONFIG {located.mountpoint}")
    return MountStatus(located.mountpoint, located.run_dir.path, "not mounted", [trouble])


def _look(pid: int, starttime: int) -> Process:
    facts = procfs.look(pid) if pid else None
    if facts is not None and facts.starttime != starttime:
        facts = None
    return Process(pid, _state_word(facts))


def _look_child(child: state.ChildState) -> Process:
    return msgspec.structs.replace(
        _look(child.pid, child.starttime), ready=child.ready, restarts=child.restarts, last_exit=child.last_exit
    )


def _state_word(facts: ProcessFacts | None) -> str:
    if facts is None:
        return GONE
    return {"T": STOPPED, "t": DEBUGGED, "Z": ZOMBIE, "X": GONE}.get(facts.state, RUNNING)


def _ask_agent(located: Located, agent: Process) -> tuple[dict[str, Any] | None, ForemountError | None]:
    if agent.state != RUNNING:
        return None, None
    try:
        return client.AdminClient(located.run_dir.admin_socket, AGENT_S).get("/v1/status"), None
    except ForemountError as exc:
        return None, exc


def _describe(found: MountStatus) -> list[str]:
    """Return the status as lines for people. Pure."""
    lines = [f"{found.mountpoint}: {found.verdict}"]
    for trouble in found.troubles:
        lines += [f"  ! {trouble.what}", f"    -> {trouble.advice}"]
    rows = [(Child(name).title, _process_words(process)) for name, process in found.processes.items()]
    if found.config:
        rows.append(("config", found.config))
        rows.append(("passthrough", "on" if found.passthrough else f"off: {found.why_no_passthrough}"))
        rows.append(("read-ahead", f"{found.read_ahead_kb} KiB"))
        rows.append(("run dir", found.run_dir))
        rows.append(("started", f"{found.since_s:.0f} s ago"))
        rows.append(("version", _version_words(found)))
    return lines + output.columns([*rows, *_agent_rows(found.agent_says or {})])


def _version_words(found: MountStatus) -> str:
    words = found.version or "unknown"
    if found.keeper_version != found.version:
        words += f", the keeper {found.keeper_version or 'older'}"
    last = found.upgrade
    if last and not last["ended"]:
        return f"{words}; an upgrade to {last['version']} is under way"
    return f"{words}; {last['version']} was not taken: {last['why_not']}" if last.get("why_not") else words


def _process_words(process: Process) -> str:
    words = [process.state if process.ready or process.state != RUNNING else "starting"]
    if process.pid:
        words.append(f"process {process.pid}")
    if process.restarts:
        words.append(f"restarted {process.restarts} times, last because: {process.last_exit}")
    return ", ".join(words)


def _agent_rows(says: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what people want to know of the agent's answer; --json has all of it. Keys may be missing: versions differ."""
    rows = [("mounts", f"{each.get('prefix')} from {each.get('site')}{', writable' * bool(each.get('writable'))}")
            for each in says.get("mounts", [])]  # fmt: skip
    for name, store in says.get("stores", {}).items():
        if store.get("objects") or name == "cache":
            room = f"{format_size(store.get('used', 0))} of {format_size(store.get('cap', 0))}"
            room += f", {store.get('objects', 0)} objects"
            rows.append((name, store.get("trouble") or f"{room}, in {store.get('directory')}"))
    fetches = says.get("fetches", {})
    if fetches.get("fetches"):
        counts = ", ".join(f"{fetches[key]} {key}" for key in ("retries", "failovers", "failures") if fetches.get(key))
        amount = format_size(fetches.get("fetched_bytes", 0))
        if fetches.get("unread_bytes"):
            amount += f", {format_size(fetches['unread_bytes'])} of it ahead of readers who did not read it"
        rows.append(("fetched", f"{amount}{', ' * bool(counts)}{counts}"))
    rows += [("line", f"{name}: {_line_words(line)}") for name, line in says.get("lines", {}).items()]
    if uploads := says.get("uploads"):
        rows.append(("uploads", _upload_words(uploads)))
    if policies := says.get("policies"):
        documents = ", ".join(policies.get("documents", []))
        rows.append(("policies", f"version {policies.get('version')}: {documents}"))
    return rows + [("site", f"{name}: {_site_words(facts)}") for name, facts in says.get("sites", {}).items()]


def _upload_words(uploads: dict[str, Any]) -> str:
    """Return how far the origins are behind this host."""
    behind = uploads.get("behind", {})
    if not behind.get("files"):
        return "the origins have all that was written here"
    states = ", ".join(f"{count} {state}" for state, count in uploads.get("states", {}).items())
    size, age_s = format_size(behind.get("bytes", 0)), behind.get("seconds", 0)
    return f"the origins lack {behind['files']} files, {size}, the oldest complete for {age_s:.0f} s: {states}"


def _line_words(line: dict[str, Any]) -> str:
    """Return what was measured of a site's line."""
    words = f"first byte after {line.get('ttfb_s', 0) * 1e3:.3g} ms, {format_size(int(line.get('bytes_per_s', 0)))}/s"
    return f"{words}, {line.get('in_flight', 0)} of {line.get('window', 0)} requests in flight"


def _site_words(facts: Any) -> str:
    if not isinstance(facts, dict) or facts.get("answers", True):
        return "answers"
    return f"does not answer: {facts.get('trouble') or facts.get('reason') or 'see agent.log'}"
