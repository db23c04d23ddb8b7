"""S3 beyond the common contract: keys that change, stores that refuse, stores that are away, requests counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from obstore import exceptions

from tests.servers.places import S3Place
from tests.servers.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from vfs.errors import Denied, InvalidConfig, NotADirectory, NotFound, Stale, Throttled, Unavailable
from vfs.model import Kind, SiteName, SitePath, Version
from vfs.sites.protocol import Site
from vfs.sites.s3 import PAGE_ENTRIES, S3Site, bucket_and_root, error_of

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
    site = seaweedfs.site(NAME, tmp_path.name, keys)
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
    site = seaweedfs.site(NAME, tmp_path.name, keys)
    with pytest.raises(Denied) as raised:
        await site.stat(SitePath("file"))
    with pytest.raises(Denied):
        async for _ in site.list(SitePath("")):
            pass
    with pytest.raises(Denied):
        await read(site, "file", Version(7, 0, '"etag"'), 0, 7)
    shown = str(raised.value) + repr(site) + repr(site._keys)
    assert secret not in shown
    write_keys(keys)
    entry = await site.stat(SitePath("file"))
    assert await read(site, "file", entry.version, 0, 7) == b"content"
    await site.close()


@pytest.mark.servers
async def test_keys_that_expire_between_two_reads_are_read_again(place: S3Place, keys: Path) -> None:
    """D83"""
    version = (await place.site.stat(SitePath("file"))).version
    write_keys(keys, "next-secret")
    assert isinstance(place.site, S3Site)
    place.site._opened = None  # the client is made anew, with keys that the store does not know yet
    place.site._keys._held = None  # type: ignore[union-attr]
    with pytest.raises(Denied):
        await read(place.site, "file", version, 0, 7)
    write_keys(keys)
    assert await read(place.site, "file", version, 0, 7) == b"content"


@pytest.mark.servers
async def test_a_replacement_while_it_is_read_is_never_mixed_in(place: S3Place) -> None:
    old, new = bytes(8 << 20), b"x" * (8 << 20)
    place.put("big", old)
    version = (await place.site.stat(SitePath("big"))).version
    pieces = place.site.read(SitePath("big"), version, 0, len(old))
    received = [bytes(await anext(pieces))]
    place.put("big", new)
    received += [bytes(piece) async for piece in pieces]
    assert b"".join(received) == old
    with pytest.raises(Stale):
        await read(place.site, "big", version, 0, len(old))


@pytest.mark.servers
async def test_versions_of_one_second_and_one_size_are_told_apart(place: S3Place) -> None:
    versions = []
    for content in (b"first!", b"second"):
        place._write("quick", content)
        versions.append((await place.site.stat(SitePath("quick"))).version)
    assert versions[0].etag != versions[1].etag
    with pytest.raises(Stale):
        await read(place.site, "quick", versions[0], 0, 6)
    assert await read(place.site, "quick", versions[1], 0, 6) == b"second"


@pytest.mark.servers
async def test_an_object_that_marks_its_directory_is_not_listed_in_it(place: S3Place) -> None:
    place._store.create_dir(f"{place._root}/empty")
    assert [entry async for page in place.site.list(SitePath("empty")) for entry in page] == []
    assert (await place.site.stat(SitePath("empty"))).kind is Kind.DIRECTORY
    with pytest.raises(NotADirectory):
        _ = [page async for page in place.site.list(SitePath("file"))]
    with pytest.raises(NotFound):
        _ = [page async for page in place.site.list(SitePath("nothing"))]


@pytest.mark.slow
@pytest.mark.servers
async def test_a_listing_comes_in_pages(place: S3Place) -> None:
    place.fill("many", [f"{index:05d}" for index in range(PAGE_ENTRIES + 10)])
    pages = [page async for page in place.site.list(SitePath("many"))]
    assert max(len(page) for page in pages) <= PAGE_ENTRIES
    assert sorted(entry.name for page in pages for entry in page) == [f"{index:05d}" for index in range(PAGE_ENTRIES + 10)]


async def test_a_store_that_is_down_raises_unavailable_and_never_not_found(keys: Path) -> None:
    site = S3Site(NAME, "s3://lake/run", endpoint="http://127.0.0.1:9", credentials_file=str(keys))
    with pytest.raises(Unavailable):
        await site.stat(SitePath("file"))
    with pytest.raises(Unavailable):
        _ = [page async for page in site.list(SitePath("d"))]
    with pytest.raises(Unavailable):
        await read(site, "file", Version(7, 0, '"etag"'), 0, 7)
    await site.close()


async def test_a_missing_credentials_file_or_profile_is_denied_with_the_reason(tmp_path: Path, keys: Path) -> None:
    for path, profile, reason in ((tmp_path / "none", "default", "can't be read"), (keys, "other", "'other'")):
        site = S3Site(NAME, "s3://lake/run", credentials_file=str(path), profile=profile)
        with pytest.raises(Denied, match=reason) as raised:
            await site.stat(SitePath("file"))
        assert SECRET_KEY not in str(raised.value)
        await site.close()


@pytest.mark.servers
async def test_keys_of_the_user_are_found_without_being_named(
    seaweedfs: SeaweedFs, place: S3Place, tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    site = S3Site(NAME, seaweedfs.url(tmp_path.name), endpoint=seaweedfs.endpoint)
    assert (await site.stat(SitePath("file"))).version.size == 7
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    site = S3Site(NAME, seaweedfs.url(tmp_path.name), endpoint=seaweedfs.endpoint)
    assert (await site.stat(SitePath("file"))).version.size == 7


@pytest.mark.parametrize("url", ["s3://key:hush@lake/run", "s3://lake/run?secret=hush", "http://lake/hush", "s3:///hush"])
def test_urls_that_hold_more_than_a_place_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        bucket_and_root(url, "s3")
    assert "hush" not in str(raised.value)


def test_bucket_and_prefix_are_taken_from_the_url() -> None:
    assert bucket_and_root("s3://lake", "s3") == ("lake", "")
    assert bucket_and_root("s3://lake/run%207/x/", "s3") == ("lake", "run 7/x")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("x"), NotFound),
        (exceptions.PreconditionError("x"), Stale),
        (exceptions.PermissionDeniedError("x"), Denied),
        (exceptions.GenericError("non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>"), Denied),
        (exceptions.GenericError("non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>"), Denied),
        (exceptions.GenericError("non-2xx status code: 416 Range Not Satisfiable: x"), Stale),
        (exceptions.GenericError("non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"), Throttled),
        (exceptions.GenericError("non-2xx status code: 500 Internal Server Error: x"), Unavailable),
        (exceptions.GenericError("HTTP error: error sending request"), Unavailable),
        (ValueError("Could not parse path"), NotFound),
    ],
)
def test_an_error_of_the_client_is_told_by_its_type_or_status(error: Exception, expected: type[Exception]) -> None:
    found = error_of(error, "s3:file")
    assert type(found) is expected
    assert str(error) not in str(found)
