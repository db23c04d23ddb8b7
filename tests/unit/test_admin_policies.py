"""The policy in the admin API, over its real Unix socket, and the audit log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from vfs.admin import policies as module
from vfs.admin.api import Api, serve_unix
from vfs.admin.events import Events
from vfs.admin.policies import AuditLog, Policies, Record
from vfs.cli.client import AdminClient
from vfs.clock import FakeClock
from vfs.errors import ForemountError, InvalidPolicy, Stale
from vfs.httpservice import Rates
from vfs.policy.store import PolicyStore

AT = "2023-11-14T22:13:20.000+00:00"


def write(directory: Path, deadline: str, key: str = "deadline") -> None:
    fresh = directory / "own.new"
    fresh.write_text(f'format = 1\nabout = "ours"\n[[rules]]\nname = "r"\nmatch = {{}}\nset = {{ {key} = "{deadline}" }}\n')
    fresh.replace(directory / "own.toml")


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    write(tmp_path, "1s")
    return Policies(PolicyStore([str(tmp_path / "own.toml")]), AuditLog(str(tmp_path / "audit.log")), FakeClock())


@pytest.fixture
async def agent(tmp_path: Path, policies: Policies) -> AsyncIterator[AdminClient]:
    socket_path = str(tmp_path / "admin.sock")
    absent = cast(Any, None)
    api = Api(absent, absent, absent, policies, absent, absent, Events(FakeClock()), dict, Rates("admin API", 300))
    async with serve_unix(socket_path, api.application(local=True)):
        yield AdminClient(socket_path, 10)


def audit(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]


async def test_documents_in_force_are_shown_with_their_version(
    agent: AdminClient, policies: Policies, tmp_path: Path
) -> None:
    said = await asyncio.to_thread(agent.get, "/v1/policies")
    assert (said["version"], said["error"]) == (policies.version, None)
    own = said["documents"][-1]
    assert [document["name"] for document in said["documents"]] == ["defaults", "own"]
    assert (own["source"], own["shipped"], own["about"], own["rules"]) == (str(tmp_path / "own.toml"), False, "ours", ["r"])


async def test_reload_says_what_changed_and_is_written_down(agent: AdminClient, policies: Policies, tmp_path: Path) -> None:
    before = policies.version
    write(tmp_path, "2s")
    done = await asyncio.to_thread(agent.post, "/v1/policies/reload", {}, {"If-Match": f'"{before}"'})
    assert done == {
        "before": before,
        "after": policies.version,
        "changes": [
            {"kind": "changed", "document": "own", "rule": "r", "key": "set.deadline", "before": "1s", "after": "2s"}
        ],
    }
    assert audit(tmp_path) == [
        {
            "at": AT,
            "who": os.getuid(),
            "before": before,
            "after": policies.version,
            "changes": ["changed own/r set.deadline: 1s -> 2s"],
            "error": "",
        }
    ]


async def test_reload_of_another_version_than_was_seen_is_refused(
    agent: AdminClient, policies: Policies, tmp_path: Path
) -> None:
    before = policies.version
    write(tmp_path, "2s")
    with pytest.raises(Stale, match=f"version {before} is in force, not seen"):
        await asyncio.to_thread(agent.post, "/v1/policies/reload", {}, {"If-Match": '"seen"'})
    assert policies.version == before


async def test_broken_documents_are_refused_and_written_down(agent: AdminClient, policies: Policies, tmp_path: Path) -> None:
    before = policies.version
    write(tmp_path, "2s", key="dead")
    with pytest.raises(InvalidPolicy) as refusal:
        await asyncio.to_thread(agent.post, "/v1/policies/reload", {})
    assert refusal.value.subject == f"{tmp_path}/own.toml:6: rules[0].set.dead"
    assert policies.summary()["error"]["subject"] == refusal.value.subject
    (line,) = audit(tmp_path)
    assert (line["before"], line["after"], line["changes"], line["error"]) == (before, before, [], str(refusal.value))


async def test_request_that_is_no_reload_is_refused(agent: AdminClient) -> None:
    with pytest.raises(ForemountError, match="method not allowed"):
        await asyncio.to_thread(agent.get, "/v1/policies/reload")


async def test_changed_file_is_followed_and_a_broken_one_reported_once(
    policies: Policies, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = asyncio.create_task(policies.follow())

    async def lines(count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            while not (tmp_path / "audit.log").exists() or len(audit(tmp_path)) < count:
                await asyncio.sleep(0.01)
        return audit(tmp_path)

    write(tmp_path, "2s")
    assert (await lines(1))[0]["who"] == "file change"
    write(tmp_path, "3s", key="dead")
    assert "unknown key" in (await lines(2))[1]["error"]
    write(tmp_path, "4s")
    assert (await lines(3))[2]["changes"] == ["changed own/r set.deadline: 2s -> 4s"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert caplog.text.count("unknown key") == 1


def test_audit_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT_BYTES_MAX", 100)
    log = AuditLog(str(tmp_path / "audit.log"))
    for number in range(5):
        log.note(Record("now", number, "a", "b"))
    assert [line["who"] for line in audit(tmp_path)] == [4]
    assert [json.loads(line)["who"] for line in (tmp_path / "audit.log.1").read_text().splitlines()] == [2, 3]


def test_audit_log_that_can_not_be_written_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    AuditLog(str(tmp_path / "no such directory/audit.log")).note(Record("now", 0, "a", "b"))
    assert "can't be written: No such file or directory" in caplog.text
