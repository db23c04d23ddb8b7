"""Secrets of every place that a configuration has for them: a hostile origin quotes them back, and they are shown nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.certificates import LISTENING, Authority
from tests.lake import Lake, foremount, mounted
from tests.marks import MOUNT
from vfs.admin.routes import ROUTES
from vfs.unixhttp import UnixConnection

pytestmark = [*MOUNT, pytest.mark.slow]
MARK = "hunter2secret"
TLS = 'certificate = "{base}/host.pem"\nkey = "{base}/host.key"\n'
CONFIG = f"""
[sites.http]
kind = "http"
url = "http://me:{MARK}url@ORIGIN/lake?signature={MARK}query"
headers_file = "{{base}}/headers"
writes = "put"
copies = "copies"
[sites.hdfs]
kind = "webhdfs"
url = "http://ORIGIN"
token_file = "{{base}}/delegation"
[sites.s3]
kind = "s3"
url = "s3://bucket/lake"
endpoint = "http://ORIGIN"
region = "here"
credentials_file = "{{base}}/credentials"
[[mounts]]
prefix = "/http"
site = "http"
[[mounts]]
prefix = "/hdfs"
site = "hdfs"
[[mounts]]
prefix = "/s3"
site = "s3"
[cache]
directory = "{{base}}/cache"
[limits]
origin_deadline = "1s"
[samples]
nodes = ["http://ORIGIN"]
token_file = "{{base}}/node.token"
{LISTENING.replace("TLS", TLS)}
"""
FILES = {
    "headers": f"X-Api-Key: {MARK}apikey\n",
    "delegation": f"{MARK}delegation",
    "credentials": (
        f"[default]\naws_access_key_id={MARK}access\naws_secret_access_key={MARK}aws\naws_session_token={MARK}session\n"
    ),
    "node.token": f"{MARK}node",
    "admin.tokens": f"admin ann {MARK}admin0000\n",
    "replica.tokens": f"write {MARK}replica0000\n",
    "secrets": f"us {MARK}foresight0000\n",
}


class Echo(BaseHTTPRequestHandler):
    """Refuses everything and quotes all that it was told, where each protocol has its words."""

    heard: str = ""

    def do_GET(self) -> None:
        said = f"{self.requestline} {dict(self.headers)}"
        type(self).heard += said
        fault = {"exception": "IOException", "javaClassName": "java.io.IOException", "message": said}
        body = json.dumps({"RemoteException": fault, "error": {"kind": "Denied", "reason": said}}).encode()
        self.send_response(403, re.sub(r"\s+", " ", said)[:500])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def descendants(pid: int) -> list[int]:
    """Return a process and all that come from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in descendants(int(child)))]


def answers(lake: Lake) -> Iterator[tuple[str, str]]:
    """Yield what every route that only reads says to root."""
    for route in ROUTES:
        if route.method != "GET" or route.name == "events":
            continue
        for path in ("http/x", "hdfs/x", "s3/x") if route.name in ("explain", "checkpoints") else ("",):
            connection = UnixConnection(lake.run_dir.admin_socket, 20.0)
            with contextlib.closing(connection):
                connection.request("GET", route.path + (f"?path={path}" if path else ""))
                yield f"{route.path} {path}", connection.getresponse().read().decode()


def test_secrets_are_in_no_argument_log_answer_or_report(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREMOUNT_LOG", "DEBUG")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    secret_key = Path(Authority(tmp_path, "ours").issue("host").key).read_text().splitlines()[1]
    with mounted(CONFIG.replace("ORIGIN", origin), tmp_path) as lake:
        for site in ("http", "hdfs", "s3"):
            with pytest.raises(OSError):
                os.stat(lake.root / site / "directory")
        shown = dict(answers(lake))
        for words in (["status"], ["why"], ["copies"]):
            shown[" ".join(words)] = foremount(words[0], *words[1:], check=False).stdout
        for pid in descendants(lake.pid("keeper")):
            place = Path(f"/proc/{pid}")
            shown[f"arguments of {pid}"] = (place / "cmdline").read_text()
            shown[f"environment of {pid}"] = (place / "environ").read_bytes().decode(errors="replace")
            assert re.search(r"Max core file size +0 ", (place / "limits").read_text())
        foremount("report", str(lake.root), "-o", str(tmp_path / "report.tar.gz"), timeout_s=60)
        with tarfile.open(tmp_path / "report.tar.gz") as archive:
            for member in archive.getmembers():
                shown[f"report {member.name}"] = archive.extractfile(member).read().decode(errors="replace")  # type: ignore[union-attr]
        for file in Path(lake.run_dir.path).rglob("*"):
            if file.is_file() and file.stat().st_blocks * 512 >= file.stat().st_size:  # databases are sparse and hold names
                shown[str(file)] = file.read_bytes().decode(errors="replace")
    assert all(f"{MARK}{secret}" in Echo.heard for secret in ("apikey", "query", "delegation", "session"))
    assert len(shown) > 40
    assert not [where for where, text in shown.items() if MARK in text or secret_key in text]
