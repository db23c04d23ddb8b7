"""A mount whose admin API is served over TLS too, with tokens and files behind a slow line."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import msgspec

from tests.lake import Lake, mounted
from tests.mount.test_policies import CONFIG as UNOBSERVED
from tests.servers.wan_origin import WanOrigin

TOKENS = {role: f"{role}-{'0123456789abcdef'}" for role in ("read", "operate", "admin")}
CONFIG = (
    UNOBSERVED
    + """[admin]
address = "127.0.0.1:0"
certificate = "{base}/host.pem"
key = "{base}/host.key"
tokens = "{base}/tokens"
"""
)


@dataclass(frozen=True)
class Observed:
    """A mount and its API over TLS.

    Attributes:
        url: of the API.
        origin: directory of the origin's files.
    """

    lake: Lake
    url: str
    origin: Path
    context: ssl.SSLContext

    def ask(
        self, path: str, token: str | None = TOKENS["admin"], *, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, HTTPMessage, bytes]:
        """Return status, headers and body of a request over TLS."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.headers, refusal.read()

    def get(self, path: str) -> Any:
        """Return the JSON document at a path."""
        status, _, body = self.ask(path)
        assert status == 200, body
        return msgspec.json.decode(body)


def why_no_tls() -> str:
    """Return why no certificate can be made here, or ""."""
    return "" if shutil.which("openssl") else "needs openssl"


@contextmanager
def observed(base: Path, origin: WanOrigin, name: str, *, more: str = "") -> Iterator[Observed]:
    """Mount a directory of the origin with everything that looks at it.

    Args:
        more: of the configuration.
    """
    files = origin.root / name
    for directory in (files / "ckpt", base / "here", base / "policies"):
        directory.mkdir(parents=True)
    (base / "here/file").write_bytes(os.urandom(100_000))
    make_certificate(base)
    tokens = base / "tokens"
    tokens.write_text("".join(f"{role} tester-{role} {token}\n" for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    with mounted(CONFIG.replace("URL", f"{origin.url}/{name}") + more, base) as lake:
        address = lake.status()["agent_says"]["admin"]["address"]
        context = ssl.create_default_context(cafile=str(base / "host.pem"))
        yield Observed(lake, f"https://{address}", files, context)


def make_certificate(base: Path) -> None:
    """Write a certificate of 127.0.0.1 that is its own authority."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-keyout", str(base / "host.key"), "-out", str(base / "host.pem"), "-subj", "/CN=foremount-test"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(words, check=True, capture_output=True)
