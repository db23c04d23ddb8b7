"""pyarrow.fs beyond the common contract: keys that change, stores that refuse, stores that are away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.places import S3Place
from tests.servers.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from vfs.clock import FakeClock
from vfs.errors import Denied, InvalidConfig, NotFound, Stale, Unavailable
from vfs.model import SiteName, SitePath, Version
from vfs.sites.arrow import PIECE_BYTES, ArrowSite, error_of, open_url
from vfs.sites.protocol import Site

NAME = SiteName("s3")


def write_keys(path: Path, secret: str = SECRET_KEY, access: str = ACCESS_KEY) -> None:
    path.write_text(f"[default]\naws_access_key_id={access}\naws_secret_access_key={secret}\n")


async def read(site: Site, path: str, version: Version, offset: int, length: int) -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(SitePath(path), version, offset, length)])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "credentials")
    return tmp_path / "credentials"


@pytest.fixture
async def place(seaweedfs: SeaweedFs, tmp_path: Path, keys: Path) -> AsyncIterator[S3Place]:
    site = ArrowSite(NAME, seaweedfs.url(tmp_path.name), credentials_file=str(keys))
    place = S3Place(site, seaweedfs, tmp_path.name)
    place.put("file", b"content")
    yield place
    await site.close()


@pytest.mark.servers
@pytest.mark.parametrize(("access", "secret"), [(ACCESS_KEY, "wrong-secret"), ("nobody", SECRET_KEY)])
async def test_rejected_keys_are_read_again_and_shown_to_nobody(
    seaweedfs: SeaweedFs, place: S3Place, tmp_path: Path, keys: Path, access: str, secret: str
) -> None:
    write_keys(keys, secret, access)
    site = ArrowSite(NAME, seaweedfs.url(tmp_path.name), credentials_file=str(keys))
    with pytest.raises(Denied) as raised:
        await site.stat(SitePath("file"))
    with pytest.raises(Denied):
        async for _ in site.list(SitePath("")):
            pass
    shown = str(raised.value) + repr(site) + repr(site._keys)
    assert secret not in shown
    write_keys(keys)
    entry = await site.stat(SitePath("file"))
    assert await read(site, "file", entry.version, 0, 7) == b"content"
    await site.close()


@pytest.mark.servers
async def test_a_replacement_between_two_pieces_raises_stale(place: S3Place) -> None:
    place.put("big", bytes(2 * PIECE_BYTES))
    version = (await place.site.stat(SitePath("big"))).version
    pieces = place.site.read(SitePath("big"), version, 0, 2 * PIECE_BYTES)
    assert len(await anext(pieces)) == PIECE_BYTES
    place.put("big", b"x" * (2 * PIECE_BYTES))
    with pytest.raises(Stale):
        await anext(pieces)


async def test_a_store_that_is_down_raises_unavailable_and_never_not_found(keys: Path) -> None:
    url = "s3://lake/run?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1"
    site = ArrowSite(NAME, url, credentials_file=str(keys))
    with pytest.raises(Unavailable):
        await site.stat(SitePath("file"))
    await site.close()


async def test_a_missing_credentials_file_or_profile_is_denied_with_the_reason(tmp_path: Path, keys: Path) -> None:
    for path, profile, reason in ((tmp_path / "none", "default", "can't be read"), (keys, "other", "'other'")):
        site = ArrowSite(NAME, "s3://lake/run?region=us-east-1", credentials_file=str(path), profile=profile)
        with pytest.raises(Denied, match=reason) as raised:
            await site.stat(SitePath("file"))
        assert SECRET_KEY not in str(raised.value)
        await site.close()


async def test_keys_in_a_url_that_cannot_be_used_are_not_repeated() -> None:
    for url in ("s3://key:hush@lake/run?no_such_option=1", "nonsense://key:hush@x"):
        with pytest.raises(InvalidConfig) as raised:
            open_url(url, None, "s3")
        assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("When reading: AWS Error ACCESS_DENIED during HeadObject operation: No response body.", Denied),
        ("AWS Error UNKNOWN (HTTP status 403) during GetObject operation: x", Denied),
        ("AWS Error SLOW_DOWN during GetObject operation: x", Unavailable),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", Unavailable),
        ("an object named AWS Error ACCESS_DENIED", Unavailable),
    ],
)
def test_an_error_of_the_sdk_is_told_by_its_name(text: str, expected: type[Exception]) -> None:
    assert isinstance(error_of(OSError(text), "s3:file"), expected)
    assert text not in str(error_of(OSError(text), "s3:file"))


def test_errnos_are_told_by_their_meaning() -> None:
    assert type(error_of(FileNotFoundError(2, "x"), "s3:file")) is NotFound
    assert type(error_of(PermissionError(13, "x"), "s3:file")) is Denied
    assert type(error_of(OSError(5, "x"), "s3:file")) is Unavailable


@pytest.mark.servers
async def test_an_object_that_was_just_written_becomes_another_version_once_two_seconds_have_passed(
    seaweedfs: SeaweedFs, place: S3Place, tmp_path: Path, keys: Path
) -> None:
    written_ns = (await place.site.stat(SitePath("file"))).version.mtime_ns
    clock = FakeClock(written_ns + 10**9)
    site = ArrowSite(NAME, seaweedfs.url(tmp_path.name), credentials_file=str(keys), clock=clock)
    assert (await site.stat(SitePath("file"))).version == Version(7, written_ns, "", 1)
    clock.advance(1)
    assert (await site.stat(SitePath("file"))).version == Version(7, written_ns, "", 0)
    await site.close()
