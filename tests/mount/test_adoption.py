"""What leaves the staging area becomes an object of the cache: it is read on without asking the origin again."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lake import Lake, wait_until
from tests.marks import MOUNT
from tests.mount.test_uploads import BIG, dav_lake, write
from tests.servers.nginx import Nginx
from vfs.extents.layout import data_path, store_root
from vfs.model import SiteName, object_key
from vfs.namespace.catalog import Catalog
from vfs.namespace.journal import JournalReader, content_path
from vfs.namespace.staged import Staged, Upload

pytestmark = [*MOUNT, pytest.mark.servers]
STAGING = '[staging]\nsize = "16MiB"\n'
"""Three files of BIG are more than four fifths of it: the first goes then."""


def staged(lake: Lake, path: str) -> Staged:
    """Return what the journal says of a lake path now."""
    reader = JournalReader(str(lake.base / "cache/staging"))
    reader.poll()
    (found,) = [node for node in reader.nodes if reader.nodes.path(node) == path]
    reader.close()
    return found


def uploaded(lake: Lake, path: str) -> Upload | None:
    """Return the record of a file that its origin has, in the version that it keeps."""
    catalog = Catalog(f"{store_root(str(lake.base / 'cache'))}/catalog.lmdb")
    try:
        record = catalog.upload(staged(lake, path).id)
    finally:
        catalog.close()
    return None if record is None or record.at is None or record.at.version.generation else record


def content(lake: Lake, path: str) -> Path:
    """Return where a file's staging file lies."""
    return Path(content_path(str(lake.base / "cache/staging"), staged(lake, path).content))


def data(lake: Lake, path: str) -> Path:
    """Return where the file's object lies in the cache."""
    record = uploaded(lake, path)
    assert record is not None and record.at is not None
    key = object_key(SiteName("origin"), record.at.path, record.at.version)
    return Path(data_path(store_root(str(lake.base / "cache")), key))


@dataclass(frozen=True)
class Displaced:
    """A mount whose file `lake/step_1/model.bin` has just left the staging area.

    Attributes:
        inode: of its staging file.
    """

    lake: Lake
    path: Path
    inode: int


MODEL = "lake/step_1/model.bin"


@pytest.fixture(scope="module")
def displaced(nginx: Nginx) -> Iterator[Displaced]:
    with dav_lake(nginx, "adopted", more=STAGING) as (lake, _):
        write(lake.root / MODEL, BIG)
        wait_until(lambda: uploaded(lake, MODEL), "the upload")
        inode = content(lake, MODEL).stat().st_ino
        for index in range(2):
            write(lake.root / f"lake/displacing/{index}", BIG)
        wait_until(lambda: staged(lake, MODEL).content == 0, "the file to leave the staging area")
        wait_until(data(lake, MODEL).exists, "the file to be in the cache")
        yield Displaced(lake, lake.root / MODEL, inode)


def test_a_file_that_left_the_staging_area_is_read_without_asking_its_origin(displaced: Displaced, nginx: Nginx) -> None:
    assert data(displaced.lake, MODEL).stat().st_ino == displaced.inode, "renamed, not copied"
    assert displaced.path.read_bytes() == BIG
    assert nginx.requests("GET", "/adopted/step_1/model.bin") == 0
    shown = displaced.lake.command("explain", str(displaced.path), "--json").stdout
    assert '"served_from": "complete verified copy"' in shown, shown


def test_a_change_of_a_file_that_left_the_staging_area_does_not_reach_the_cached_object(
    displaced: Displaced, nginx: Nginx
) -> None:
    adopted = data(displaced.lake, MODEL)
    with displaced.path.open("r+b") as file:
        file.write(b"changed")
        assert adopted.read_bytes() == BIG
    changed = b"changed" + BIG[7:]
    assert displaced.path.read_bytes() == changed
    origin = nginx.root / "adopted/step_1/model.bin"
    wait_until(lambda: origin.read_bytes() == changed, "the second upload")


@pytest.mark.slow
def test_a_file_is_not_taken_from_who_reads_it_though_the_worker_that_opened_it_is_dead(nginx: Nginx) -> None:
    with dav_lake(nginx, "held", more=STAGING) as (lake, _):
        path = lake.root / "lake/held.bin"
        write(path, BIG)
        wait_until(lambda: uploaded(lake, "lake/held.bin"), "the upload")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            lake.kill("worker")
            for index in range(2):
                write(lake.root / f"lake/displacing/{index}", BIG)
            wait_until(lambda: staged(lake, "lake/displacing/0").content == 0, "another file to leave in its place")
            assert staged(lake, "lake/held.bin").content != 0
            assert mapped[:] == BIG
