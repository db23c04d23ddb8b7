"""What the agent's own facts say is wrong, and the mount in one line.

Pure: no I/O, no clock. Keys may be missing: agent and command line may be of different versions.
"""

from __future__ import annotations

from typing import Any

from vfs.admin.records import Health, Trouble


def troubles_of_agent(says: dict[str, Any]) -> list[Trouble]:
    """Return what the agent itself reports as wrong, the most important first."""
    troubles = [
        Trouble(f"the site {name} does not answer: what is cached is served, the rest fails at its deadline",
                "see agent.log for its last error; nothing has to be done here once it answers again")
        for name, facts in says.get("sites", {}).items()
        if isinstance(facts, dict) and not facts.get("answers", True)
    ]  # fmt: skip
    troubles += [
        Trouble(f"the {name} store can't be used: {store['trouble']}", f"look after {store.get('directory')}")
        for name, store in says.get("stores", {}).items()
        if store.get("trouble")
    ]
    uploads = says.get("uploads") or {}
    if failing := uploads.get("states", {}).get("failed"):
        first: dict[str, Any] = next((each for each in uploads.get("troubles", []) if each.get("state") == "failed"), {})
        what = f"{failing} staged files can't be uploaded, /{first.get('path')} for one: {first.get('why')}"
        troubles.append(Trouble(what, "mend that; they stay staged on this host and are tried again"))
    if error := says.get("policies", {}).get("error"):
        what = f"the policy documents can't be used, version {says['policies'].get('version')} stays in force: "
        what += f"{error.get('subject')}: {error.get('reason')}"
        advice = error.get("hint") or "mend the document"
        troubles.append(Trouble(what, f"{advice}; it is read again once it has changed"))
    troubles += [
        Trouble(f"{each.get('pinned_by')} pins to the snapshot {each.get('name')}, which is not on this host: ESTALE",
                f"foremount snapshot create {each.get('name')} PREFIX, or name another in the rule")
        for each in says.get("snapshots", [])
        if each.get("state") == "missing"
    ]  # fmt: skip
    if says.get("worker", {}).get("connected") is False:
        troubles.append(Trouble("the worker has no line to the agent: remote files wait", "if this stays, see worker.log"))
    if trouble := says.get("admin", {}).get("trouble"):
        troubles.append(Trouble(f"the admin API can't be reached over TCP: {trouble}", "mend [admin] in foremount.toml"))
    return troubles


def health(says: dict[str, Any], *, waiting: int) -> Health:
    """Return the mount in one line.

    Args:
        waiting: operations that go on for long right now.
    """
    troubles = troubles_of_agent(says)
    if troubles:
        more = f", and {len(troubles) - 1} more" if len(troubles) > 1 else ""
        return Health("trouble", troubles[0].what + more, troubles)
    sites = len(says.get("sites", {}))
    reads = "passthrough in force" if says.get("worker", {}).get("passthrough") else "no passthrough"
    slow = f", {waiting} operations wait right now" if waiting else ""
    return Health(
        "serving", f"all {sites} sites answer, {reads}{slow}" if sites != 1 else f"the site answers, {reads}{slow}", []
    )
