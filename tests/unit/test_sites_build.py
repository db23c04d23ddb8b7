from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vfs import config
from vfs.errors import Denied
from vfs.model import SiteName
from vfs.sites.build import build_site
from vfs.sites.credentials import SecretFile, parse_headers, parse_token
from vfs.sites.hdfsanswers import error_of
from vfs.sites.s3keys import parse_keys


@pytest.mark.parametrize(
    ("configuration", "kind"),
    [
        (config.LocalSite(path="/data"), "LocalSite"),
        (config.HttpSite(url="http://origin/lake"), "HttpSite"),
        (config.HttpSite(url="http://origin/lake", listing="manifest"), "ManifestSite"),
        (config.WebHdfsSite(url="http://namenode:9870"), "WebHdfsSite"),
        (config.S3Site(url="s3://bucket/prefix"), "S3Site"),
        (config.ArrowSite(url="file:///data"), "ArrowSite"),
        (config.MemorySite(), "MemorySite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_configuration_makes_its_site_under_its_name(configuration: config.SiteConfig, kind: str) -> None:
    site = build_site(SiteName("lake"), configuration)
    assert type(site).__name__ == kind
    assert site.name == "lake"
    await site.close()


def test_pyarrow_is_loaded_only_when_it_is_used() -> None:
    program = (
        "import sys; from vfs import config; from vfs.sites.build import build_site;"
        "build_site('lake', config.HttpSite(url='http://origin/')); assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_headers_are_read_line_by_line() -> None:
    assert parse_headers("# rotated\n\nAuthorization: Bearer a:b\nX-Key:  v \n") == {
        "Authorization": "Bearer a:b",
        "X-Key": "v",
    }


@pytest.mark.parametrize("text", ["hush", ": hush", "X: y\nhush"])
def test_a_line_that_is_no_header_is_told_by_its_number_and_not_quoted(text: str, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text(text)
    with pytest.raises(Denied, match=r"line \d is no") as raised:
        SecretFile(str(tmp_path / "headers"), parse_headers, "lake").current()
    assert "hush" not in str(raised.value)


def test_a_secret_is_read_once_and_again_when_it_was_rejected(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    secret = SecretFile(str(path), parse_token, "lake")
    assert secret.current() == "one"
    path.write_text("two")
    assert secret.current() == "one"
    assert secret.renewed("one")
    assert secret.current() == "two"
    assert secret.renewed("one")  # another caller was rejected with the old one: nothing to read, the new one is there
    assert not secret.renewed("two")


def test_an_empty_token_file_is_denied(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(Denied, match="empty"):
        SecretFile(str(tmp_path / "token"), parse_token, "lake").current()


@pytest.mark.parametrize("text", ["[other]\naws_access_key_id=hush", "hush", "[default]\naws_access_key_id=hush"])
def test_keys_that_cannot_be_used_are_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_keys(text, "default")
    assert "hush" not in str(raised.value)


def test_keys_are_read_from_their_profile_and_stay_out_of_repr() -> None:
    keys = parse_keys("[p]\naws_access_key_id = id%\naws_secret_access_key = s\naws_session_token = t\n", "p")
    assert (keys.access_key, keys.secret_key, keys.session_token) == ("id%", "s", "t")
    assert "id%" not in repr(keys)


def test_an_exception_without_its_short_name_is_told_by_its_class() -> None:
    body = b'{"RemoteException": {"exception": "", "javaClassName": "java.io.FileNotFoundException"}}'
    assert type(error_of(404, body, "x")).__name__ == "NotFound"
    assert type(error_of(429, b"", "x")).__name__ == "Throttled"
    assert type(error_of(401, b"\xff", "x")).__name__ == "Denied"
