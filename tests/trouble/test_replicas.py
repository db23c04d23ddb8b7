"""Replicas at other sites through a real mount: who serves, what is no copy, and what happens when a site goes away (D6)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, mounted
from tests.marks import MOUNT
from tests.servers.nginx import Nginx
from tests.servers.wan_origin import Fault, WanOrigin

pytestmark = [*MOUNT, pytest.mark.servers]
BODY = random.Random(21).randbytes(3_000_001)
WRITTEN_S = 1_700_000_000
ROOT, COPY = "replicas-origin", "replicas-copy"
FILES = ["near", "other", "shared", "denied", "blackhole", "silent", "down", "moved", "left-out"]
CONFIG = f"""
policies = ["{{base}}/policies"]
[sites.origin]
kind = "http"
url = "ORIGIN/{ROOT}"
[sites.copy]
kind = "http"
url = "ORIGIN/{COPY}"
[sites.near]
kind = "http"
url = "NGINX/json/{COPY}"
[sites.denied]
kind = "http"
url = "NGINX/secret/{COPY}"
[sites.shared]
kind = "arrow"
url = "file://{{base}}/shared"
[[mounts]]
prefix = "/near"
site = "origin"
replicas = ["near"]
[[mounts]]
prefix = "/denied"
site = "origin"
replicas = ["denied"]
[[mounts]]
prefix = "/shared"
site = "origin"
replicas = ["shared"]
[[mounts]]
prefix = "/copy"
site = "origin"
replicas = ["copy"]
[[mounts]]
prefix = "/second"
site = "origin"
replicas = ["copy"]
[cache]
directory = "{{base}}/cache"
"""
RULES = """
format = 1
[[rules]]
name = "second"
match = { path = "second/**" }
set = { sites = ["origin", "nearest"] }
[[rules]]
name = "left-out"
match = { path = "near/left-out" }
set = { sites = ["origin"] }
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, wan_origin_server: WanOrigin, nginx: Nginx) -> Iterator[Lake]:
    base = tmp_path_factory.mktemp("replicas")
    for directory in (wan_origin_server.root / ROOT, wan_origin_server.root / COPY, nginx.root / COPY, base / "shared"):
        fill(directory)
    (base / "policies").mkdir()
    (base / "policies/own.toml").write_text(RULES)
    text = CONFIG.replace("ORIGIN", wan_origin_server.url).replace("NGINX", nginx.url)
    with mounted(text, base) as lake:
        yield lake
    shutil.rmtree(nginx.root / COPY)


def fill(directory: Path) -> None:
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes(BODY)
        os.utime(directory / name, (WRITTEN_S, WRITTEN_S))


def sent(origin: WanOrigin, path: str) -> int:
    """Return how many bytes of a path the server has sent."""
    found: int = origin.stats()["by_path"].get(f"/{path}", {}).get("bytes", 0)
    return found


def explain(lake: Lake, path: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lake.command("explain", str(lake.root / path), "--json").stdout)
    return said


def test_the_nearest_replica_serves_and_explain_says_why(lake: Lake, wan_origin: WanOrigin) -> None:
    assert (lake.root / "near/near").read_bytes() == BODY
    assert sent(wan_origin, f"{ROOT}/near") == 0
    said = explain(lake, "near/near")
    assert [each["site"] for each in said["sites"]] == ["near", "origin"]
    assert said["sites"][0]["why"].startswith("number 1 of the policy's order (nearest, origin), ")
    assert said["sites"][0]["line"]["in_flight"] == 0
    assert said["replicas"] == [{"site": "near", "is_copy": True, "why": "has the same version"}]
    assert "why: has the same version" in lake.command("explain", str(lake.root / "near/near")).stdout
    assert "near" in lake.status()["agent_says"]["lines"]


def test_a_replica_of_another_time_is_no_copy(lake: Lake, wan_origin: WanOrigin, nginx: Nginx) -> None:
    (nginx.root / COPY / "other").write_bytes(BODY[::-1])
    os.utime(nginx.root / COPY / "other", (WRITTEN_S + 1, WRITTEN_S + 1))
    assert (lake.root / "near/other").read_bytes() == BODY
    assert sent(wan_origin, f"{ROOT}/other") >= len(BODY)
    (finding,) = explain(lake, "near/other")["replicas"]
    assert finding["why"] == "has a file of that size, but neither ETag nor modification time prove it the same"


def test_a_replica_that_the_policy_leaves_out_is_not_asked(lake: Lake, wan_origin: WanOrigin) -> None:
    assert (lake.root / "near/left-out").read_bytes() == BODY
    assert sent(wan_origin, f"{ROOT}/left-out") >= len(BODY)
    said = explain(lake, "near/left-out")
    assert [each["site"] for each in said["sites"]] == ["origin"]
    assert said["replicas"][0]["why"] == "the policy's order leaves it out: origin"
    assert said["values"]["sites"]["from"] == "own/left-out"


def test_a_replica_behind_pyarrow_serves(lake: Lake, wan_origin: WanOrigin) -> None:
    assert (lake.root / "shared/shared").read_bytes() == BODY
    assert sent(wan_origin, f"{ROOT}/shared") == 0


def test_a_denial_is_not_got_around_by_way_of_the_origin(lake: Lake, wan_origin: WanOrigin) -> None:
    with pytest.raises(PermissionError):
        (lake.root / "denied/denied").read_bytes()
    assert sent(wan_origin, f"{ROOT}/denied") == 0
    assert explain(lake, "denied/denied")["replicas"][0]["why"].startswith("denies access")


@pytest.mark.slow
def test_a_site_that_falls_silent_within_a_file_is_replaced_by_another(lake: Lake, wan_origin: WanOrigin) -> None:
    """The origin comes first by policy and stops in the middle of each body; its connections stay open."""
    os.stat(lake.root / "second/blackhole")
    wan_origin.inject(Fault("stall", path=f"/{ROOT}/blackhole", after=200_000))
    assert (lake.root / "second/blackhole").read_bytes() == BODY
    status = lake.status()["agent_says"]
    assert status["fetches"]["stalls"] >= 1
    assert status["fetches"]["failovers"] >= 1
    assert 0 < sent(wan_origin, f"{ROOT}/blackhole") < len(BODY)
    assert sent(wan_origin, f"{COPY}/blackhole") > 0


def test_a_replica_that_never_answers_delays_the_open_and_nothing_else(lake: Lake, wan_origin: WanOrigin) -> None:
    wan_origin.inject(Fault("stall", path=f"/{COPY}/*"))
    assert (lake.root / "copy/silent").read_bytes() == BODY
    assert sent(wan_origin, f"{COPY}/silent") == 0
    wan_origin.heal()


def test_an_origin_that_is_down_is_not_noticed_where_a_replica_is(lake: Lake, wan_origin: WanOrigin) -> None:
    os.stat(lake.root / "near/down")
    wan_origin.inject(Fault("status", path=f"/{ROOT}/*", status=503))
    assert (lake.root / "near/down").read_bytes() == BODY


def test_a_replica_that_is_replaced_between_two_reads_gives_no_byte_of_the_new_one(
    lake: Lake, wan_origin: WanOrigin, nginx: Nginx
) -> None:
    with open(lake.root / "near/moved", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 5000, 0) == BODY[:5000]
        (nginx.root / COPY / "moved").write_bytes(BODY[::-1])
        assert os.pread(file.fileno(), 5000, 2_500_000) == BODY[2_500_000:2_505_000]
    assert sent(wan_origin, f"{ROOT}/moved") > 0
