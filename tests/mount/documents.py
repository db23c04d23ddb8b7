"""Policy documents of a mount that is up: written, and waited for until all its processes follow them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.lake import Lake, wait_until

FOLLOWS_S = 5.0


def write(base: Path, text: str) -> None:
    """Replace the admin's document in one step."""
    fresh = base / "site.new"
    fresh.write_text(text)
    fresh.replace(base / "policies/site.toml")


def follow(lake: Lake) -> None:
    """Return once agent and worker follow the documents as they are now."""
    version = json.loads(lake.command("policy", "reload", "--mountpoint", str(lake.root), "--json").stdout)["after"]
    wait_until(lambda: version_of_worker(lake) == version, "the worker", FOLLOWS_S)


def version_of_worker(lake: Lake) -> str:
    """Return what the worker said last that it follows."""
    return re.findall(r"policy (\w+) in force", lake.log("worker"))[-1]


def explain(lake: Lake, path: str, *options: str) -> dict[str, Any]:
    """Return what `foremount explain` says of a path."""
    words = ("explain", path, "--mountpoint", str(lake.root), "--json", *options)
    found: dict[str, Any] = json.loads(lake.command(*words).stdout)
    return found
