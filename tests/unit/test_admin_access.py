"""Who may ask the admin API: tokens, roles, browsers."""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

import pytest

from tests.mount.observed import make_certificate, why_no_tls
from vfs.admin.access import Role, Tokens, check_browser, parse_tokens
from vfs.admin.api import public_config
from vfs.config import parse
from vfs.errors import Denied, InvalidConfig
from vfs.tls import Files, Server

TOKEN = "0123456789abcdef"


def test_token_belongs_to_its_role() -> None:
    found = parse_tokens(f"# ours\n\nread grafana {TOKEN}\nadmin ann {TOKEN}x\n", "tokens")
    assert [(token, caller.name, caller.role) for token, caller in found] == [
        (TOKEN.encode(), "token grafana", Role.READ),
        (f"{TOKEN}x".encode(), "token ann", Role.ADMIN),
    ]


@pytest.mark.parametrize(
    "line", ["read grafana", f"owner ann {TOKEN}", "read ann short", f"read ann {TOKEN} more"], ids=lambda line: line[:12]
)
def test_line_that_is_no_token_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(InvalidConfig, match="line 2"):
        parse_tokens(f"\n{line}\n", "tokens")


def test_changed_token_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read ann {TOKEN}\n")
    file.chmod(0o600)
    tokens = Tokens(str(file))
    assert tokens.find(TOKEN) is not None
    file.write_text(f"operate ben {TOKEN}y\n")
    os.utime(file, ns=(1, 1))
    tokens.refresh()
    assert tokens.find(TOKEN) is None
    found = tokens.find(f"{TOKEN}y")
    assert found is not None and found.role is Role.OPERATE


def test_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read ann {TOKEN}\n")
    file.chmod(0o640)
    with pytest.raises(InvalidConfig, match="can be read by others"):
        Tokens(str(file))


@pytest.mark.skipif(bool(why_no_tls()), reason=why_no_tls())
def test_certificate_that_could_not_be_used_is_loaded_once_it_can(tmp_path: Path) -> None:
    certificate = Server(Files(str(tmp_path / "host.pem"), str(tmp_path / "host.key")), "admin.certificate")
    (tmp_path / "host.pem").write_text("nothing")
    (tmp_path / "host.key").write_text("nothing")
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"admin\.certificate"):
            certificate.refresh()
    make_certificate(tmp_path)
    certificate.refresh()
    assert _served(certificate) == (tmp_path / "host.pem").read_text()


@pytest.mark.skipif(bool(why_no_tls()), reason=why_no_tls())
def test_changed_certificate_holds_for_the_next_connection(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    certificate = Server(Files(str(tmp_path / "host.pem"), str(tmp_path / "host.key")), "admin.certificate")
    before = _served(certificate)
    make_certificate(tmp_path)
    assert _served(certificate) == (tmp_path / "host.pem").read_text() != before


def _served(certificate: Server) -> str:
    """Return the certificate that a client is shown."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up)
    server = certificate.context.wrap_bio(up, down, server_side=True)
    for end in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)


@pytest.mark.parametrize(
    ("headers", "local", "changes"),
    [
        ({"Host": "evil.example:8080"}, True, False),
        ({"Host": ""}, True, False),
        ({"Host": "localhost:8080", "Origin": "https://evil.example"}, True, True),
        ({"Host": "host:9443", "Origin": "https://evil.example"}, False, True),
        ({"Host": "localhost:8080", "Sec-Fetch-Site": "cross-site"}, True, True),
        ({"Host": "localhost:8080", "Origin": "null"}, True, True),
    ],
)
def test_request_that_only_a_foreign_page_would_send_is_refused(headers: dict[str, str], local: bool, changes: bool) -> None:
    with pytest.raises(Denied):
        check_browser(headers, local=local, changes=changes)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost"},
        {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"},
        {"Host": "[::1]:8080"},
    ],
)
def test_own_page_and_command_line_may_ask(headers: dict[str, str]) -> None:
    check_browser(headers, local=True, changes=True)


def test_configuration_is_shown_without_secrets() -> None:
    config = parse(
        '[sites.a]\nkind = "http"\nurl = "https://ann:secret@host:8080/lake?sig=abc"\n[[mounts]]\nprefix = ""\nsite = "a"\n'
    )
    shown = public_config(config)
    assert shown["sites"]["a"]["url"] == "https://host:8080/lake?***"
    assert "secret" not in str(shown) and "abc" not in str(shown)


@pytest.mark.parametrize(
    ("lines", "about"),
    [
        ('address = "0.0.0.0"', "admin.address"),
        ('address = "0.0.0.0:9443"\nkey = "k"\ntokens = "t"', "admin.certificate"),
        ('address = "0.0.0.0:9443"\ncertificate = "c"\nkey = "k"', "admin.tokens"),
    ],
)  # fmt: skip
def test_api_over_tcp_needs_tls_and_tokens(lines: str, about: str) -> None:
    text = f'[sites.a]\nkind = "memory"\n[[mounts]]\nprefix = ""\nsite = "a"\n[admin]\n{lines}\n'
    with pytest.raises(InvalidConfig) as refused:
        parse(text)
    assert about in refused.value.subject
