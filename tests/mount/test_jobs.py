"""`.jobs` on a real mount: its own connection, names, forms, what costs a request and what does not."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import MTIME_NS, JobsLake, jobs_mounted, why_with_open
from tests.lake import foremount, wait_until
from tests.marks import MOUNT
from tests.schedules import npy
from vfs import client
from vfs.keeper import mountinfo
from vfs.samples import wire
from vfs.samples.model import Form

pytestmark = MOUNT
RECLAIMED = 2
"""Samples whose pages the kernel may have needed for something else meanwhile, of the 20 or 40 of a test."""
without_open = pytest.mark.skipif(bool(why_with_open()), reason=why_with_open())


@pytest.fixture(scope="module")
def lake() -> Iterator[JobsLake]:
    with jobs_mounted() as mounted:
        yield mounted


def fill(lake: JobsLake, job: str, count: int = 40, size: int = 16 << 10, step: int = 1) -> tuple[str, dict[str, bytes]]:
    """Put samples of one (step, rank) and return its directory and their contents by name."""
    directory, rng = f"{job}/step_{step:07d}/rank_0000", random.Random(job)
    contents = {f"{slot:06d}.npy": rng.randbytes(size + slot) for slot in range(count)}
    for name, content in contents.items():
        lake.samples.put(f"{directory}/{name}", content)
    return directory, contents


def placed(lake: JobsLake, directory: str, count: int) -> None:
    """Place a directory and wait until its contents are in the page cache and its first reader is waited for."""
    lake.samples.expected += count
    lake.samples.place(directory)
    lake.settle_pushes(lake.samples.expected)


def read_all(directory: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        assert (directory / name).read_bytes() == content, name


def test_jobs_is_a_read_only_mount_of_its_own_beneath_the_lake(lake: JobsLake) -> None:
    entry = mountinfo.on_top(mountinfo.read(), str(lake.jobs))
    assert entry is not None
    assert (entry.fs_type, entry.minor) == (mountinfo.FS_TYPE, lake.state()["jobs_connection"])
    assert ".jobs" in os.listdir(lake.root)
    assert (lake.root / "plain").read_bytes() == b"plain"
    with pytest.raises(OSError, match="Read-only") as raised:
        (lake.jobs / "x").write_bytes(b"")
    assert raised.value.errno == errno.EROFS


def test_names_sizes_times_and_bytes_are_those_that_the_agent_says(lake: JobsLake) -> None:
    directory, contents = fill(lake, "names")
    assert sorted(os.listdir(lake.jobs / directory)) == sorted(contents)
    found = os.stat(lake.jobs / directory / "000003.npy")
    assert (found.st_size, found.st_mtime_ns, found.st_mode & 0o777) == ((16 << 10) + 3, MTIME_NS, 0o444)
    read_all(lake.jobs / directory, contents)
    for nothing in ("names/step_0000001/rank_0000/000099.npy", "nothing", b"\xff"):
        with pytest.raises(FileNotFoundError):
            os.stat(os.path.join(os.fsencode(lake.jobs), os.fsencode(nothing)))


def test_listing_a_step_costs_no_content(lake: JobsLake) -> None:
    directory, _ = fill(lake, "listed")
    os.listdir(lake.jobs / directory)
    assert not [call for call in lake.samples.asked(wire.Content) if call.path.startswith("listed")]


@pytest.mark.slow
@without_open
def test_placed_sample_costs_its_reader_no_request_and_its_directory_one_lookup(lake: JobsLake) -> None:
    directory, contents = fill(lake, "placed")
    (lake.jobs / directory / "000000.npy").read_bytes()  # the kernel has learned that there is no OPEN
    placed(lake, directory, len(contents))
    first = lake.count(lambda: read_all(lake.jobs / directory, contents))
    assert first.pop("getattr", 0) <= 1  # of the step, in which the rank's name has expired
    assert first.pop("lookup") == 1
    assert sum(first.values()) <= RECLAIMED
    assert sum(lake.count(lambda: read_all(lake.jobs / directory, contents)).values()) <= RECLAIMED
    assert lake.samples.asked(wire.Entered)[-1] == wire.Entered(directory)


@pytest.mark.slow
def test_each_placing_of_a_rank_is_entered_once_and_in_order(lake: JobsLake) -> None:
    for step in (1, 2, 3):
        directory, contents = fill(lake, "progress", 3, step=step)
        placed(lake, directory, len(contents))
    for step in (1, 2, 3):
        for _ in range(3):
            os.stat(lake.jobs / f"progress/step_{step:07d}/rank_0000/000001.npy")

    def entered() -> list[str]:
        return [call.path for call in lake.samples.asked(wire.Entered) if call.path.startswith("progress")]

    wait_until(lambda: len(entered()) >= 3, "progress was told")
    assert entered() == [f"progress/step_{step:07d}/rank_0000" for step in (1, 2, 3)]


@without_open
def test_placed_sample_of_several_pieces_costs_no_read(lake: JobsLake) -> None:
    directory, contents = fill(lake, "pieces", 2, size=(3 << 20) + 777)
    placed(lake, directory, len(contents))
    asked = lake.count(lambda: read_all(lake.jobs / directory, contents))
    assert asked.get("read", 0) <= RECLAIMED


@without_open
def test_samples_placed_by_name_cost_no_request(lake: JobsLake) -> None:
    for index in range(20):
        lake.samples.put(f"named/by-id/sample{index}.npy", b"%d" % index * 1000)
    placed(lake, "named/by-id", 20)
    asked = lake.count(lambda: [(lake.jobs / f"named/by-id/sample{index}.npy").read_bytes() for index in range(20)])
    assert sum(asked.values()) <= RECLAIMED


@without_open
def test_ready_sample_after_a_listing_costs_no_lookup(lake: JobsLake) -> None:
    directory, contents = fill(lake, "primed")
    os.listdir(lake.jobs / directory)
    assert lake.count(lambda: read_all(lake.jobs / directory, contents)) == {"read": len(contents)}


@without_open
def test_ready_sample_without_a_listing_costs_one_lookup(lake: JobsLake) -> None:
    directory, contents = fill(lake, "unlisted")
    os.stat(lake.jobs / directory)
    assert lake.count(lambda: read_all(lake.jobs / directory, contents)) == {
        "lookup": len(contents),
        "read": len(contents),
    }


def test_another_form_is_another_inode_and_who_has_the_old_one_open_keeps_it(lake: JobsLake) -> None:
    path = "forms/step_0000001/rank_0000/000000.npy"
    lake.samples.put(path, b"raw" * 5000, Form.RAW)
    with open(lake.jobs / path, "rb", buffering=0) as early:
        assert os.getxattr(early.fileno(), "user.foremount.form") == b"raw"
        lake.samples.put(path, b"made" * 7000)
        assert (lake.jobs / path).read_bytes() == b"made" * 7000
        assert os.getxattr(lake.jobs / path, "user.foremount.form") == b"transformed"
        assert os.stat(lake.jobs / path).st_ino != os.fstat(early.fileno()).st_ino
        os.posix_fadvise(early.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(early.fileno(), 15_001, 0) == b"raw" * 5000
        assert os.getxattr(early.fileno(), "user.foremount.form") == b"raw"


def test_agent_is_not_asked_for_what_it_has_placed_before_a_reader_comes(lake: JobsLake) -> None:
    directory, contents = fill(lake, "unasked", 4)
    placed(lake, directory, len(contents))

    def asked() -> list[str]:
        return [path for call in lake.samples.calls if (path := getattr(call, "path", "")).startswith("unasked")]

    assert asked() == []
    assert sorted(os.listdir(lake.jobs / directory)) == sorted(contents)
    wait_until(lambda: sorted(asked()) == [directory, directory], "progress and the listing alone")


def test_raw_bytes_that_were_looked_at_too_early_are_looked_up_again(lake: JobsLake) -> None:
    directory, contents = fill(lake, "early", 5)
    for name in contents:
        lake.samples.put(f"{directory}/{name}", b"raw", Form.RAW)
    os.listdir(lake.jobs / directory)
    for name, content in contents.items():
        lake.samples.put(f"{directory}/{name}", content)
    placed(lake, directory, len(contents))
    read_all(lake.jobs / directory, contents)


def test_provenance_is_an_attribute_and_others_are_not_there(lake: JobsLake) -> None:
    directory, _ = fill(lake, "attributes", 1)
    path = lake.jobs / directory / "000000.npy"
    assert sorted(os.listxattr(path)) == ["user.foremount.form", "user.foremount.provenance"]
    assert json.loads(os.getxattr(path, "user.foremount.provenance"))["form"] == "transformed"
    with pytest.raises(OSError) as raised:
        os.getxattr(path, "user.other")
    assert raised.value.errno == errno.ENODATA
    assert os.listxattr(lake.jobs / directory) == []


def test_content_that_is_not_here_is_brought_when_it_is_read(lake: JobsLake) -> None:
    path = "absent/step_0000001/rank_0000/000000.npy"
    node = lake.samples.put(path, b"late" * 9999, here=False)
    assert (lake.jobs / path).read_bytes() == b"late" * 9999
    assert lake.samples.asked(wire.Content)[-1] == wire.Content(path, node.key)


def test_file_that_was_removed_since_it_was_looked_up_is_brought_again(lake: JobsLake) -> None:
    path = "removed/step_0000001/rank_0000/000000.npy"
    node = lake.samples.put(path, b"there" * 5000)
    os.stat(lake.jobs / path)
    os.rename(node.file, node.file + ".elsewhere")
    with pytest.raises(OSError) as raised:
        (lake.jobs / path).read_bytes()
    assert raised.value.errno == errno.ENOENT
    os.rename(node.file + ".elsewhere", node.file)
    assert (lake.jobs / path).read_bytes() == b"there" * 5000


def test_file_of_another_size_than_promised_is_refused(lake: JobsLake) -> None:
    path = "torn/step_0000001/rank_0000/000000.npy"
    node = lake.samples.put(path, b"whole" * 5000)
    os.truncate(node.file, 100)
    lake.samples.place("torn/step_0000001/rank_0000")
    with pytest.raises(OSError) as raised:
        (lake.jobs / path).read_bytes()
    assert raised.value.errno == errno.EIO


def test_large_sample_is_read_and_mapped_by_few_requests(lake: JobsLake) -> None:
    path, content = "large/step_0000001/rank_0000/000000.npy", random.Random(4).randbytes((24 << 20) + 777)
    lake.samples.put(path, content)
    lake.samples.place("large/step_0000001/rank_0000")
    with open(lake.jobs / path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content
    asked = lake.count(lambda: _uncached(lake.jobs / path, content))
    assert asked["read"] <= 60  # 24 MiB in pieces of up to 1 MiB, the first of each stream are smaller


def _uncached(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert path.read_bytes() == content


def test_dropped_step_is_forgotten_but_for_what_is_open(lake: JobsLake) -> None:
    directory, contents = fill(lake, "dropped")
    (lake.jobs / directory / "000000.npy").read_bytes()
    placed(lake, directory, len(contents))
    with open(lake.jobs / directory / "000001.npy", "rb", buffering=0) as held:
        lake.samples.remove("dropped")
        dropped, forgotten = (lake.samples.counters.get(kind, 0) for kind in ("dropped", "forgotten"))
        lake.samples.drop(directory)
        wait_until(lambda: lake.samples.counters.get("dropped", 0) > dropped, "the kernel has been told")
        wait_until(lambda: lake.samples.counters["forgotten"] >= forgotten + len(contents) - 1, "the kernel has forgotten")
        with pytest.raises(FileNotFoundError):
            os.stat(lake.jobs / directory)
        assert held.read() == contents["000001.npy"]  # who has it open reads on


def test_unmodified_numpy_pillow_and_the_client_read_samples(lake: JobsLake) -> None:
    array, directory = np.arange(5000, dtype=np.float32).reshape(50, 100), "programs/step_0000001/rank_0000"
    lake.samples.put(f"{directory}/000000.npy", npy(array))
    lake.samples.put(f"{directory}/000001.npy", array.tobytes(), Form.RAW)
    placed(lake, directory, 2)
    assert np.array_equal(np.load(lake.jobs / directory / "000000.npy"), array)
    assert np.array_equal(np.load(lake.jobs / directory / "000000.npy", mmap_mode="r"), array)

    def local(raw: bytes) -> bytes:
        return npy(np.frombuffer(raw, np.float32).reshape(50, 100))

    for name in ("000000.npy", "000001.npy"):
        with client.open_sample(lake.jobs / directory / name, local=local) as file:
            assert np.array_equal(np.load(file), array), name
    assert client.provenance_of(lake.jobs / directory / "000001.npy")["form"] == "raw"
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, of the media extra")
    picture, drawn = io.BytesIO(), image.effect_noise((64, 48), 50)
    drawn.save(picture, "PNG")
    lake.samples.put("programs/by-id/picture.png", picture.getvalue())
    with image.open(lake.jobs / "programs/by-id/picture.png") as opened:
        assert opened.tobytes() == drawn.tobytes()


def test_tree_is_copied_byte_by_byte(lake: JobsLake, tmp_path: Path) -> None:
    directory, contents = fill(lake, "copied")
    shutil.copytree(lake.jobs / "copied", tmp_path / "copy")
    read_all(tmp_path / "copy" / directory.partition("/")[2], contents)


def test_status_shows_the_worker_of_jobs_and_what_its_stop_means(lake: JobsLake) -> None:
    said = foremount("status", str(lake.root), check=False).stdout
    assert "worker of .jobs  running" in said
    pid = lake.pid("jobs")
    os.kill(pid, signal.SIGSTOP)
    try:
        said = foremount("status", str(lake.root), check=False).stdout
        assert "the worker of .jobs is stopped: samples that are in the page cache can be read" in said
    finally:
        os.kill(pid, signal.SIGCONT)


@without_open
def test_doctor_says_how_jobs_is_served(lake: JobsLake) -> None:
    said = json.loads(foremount("doctor", str(lake.root), "--json", check=False).stdout)
    assert [(each["verdict"], each["found"]) for each in said["mount"] if each["name"] == ".jobs"] == [
        ("ok", "mounted; its files are opened without a request")
    ]


def test_jobs_that_was_unmounted_by_hand_is_mounted_again(lake: JobsLake) -> None:
    restarts = lake.state()["jobs"]["restarts"]
    subprocess.run(["umount", "-l", lake.jobs], check=True)
    wait_until(lambda: (jobs := lake.state()["jobs"])["restarts"] > restarts and jobs["ready"], "another mount")
    directory, contents = fill(lake, "again")
    read_all(lake.jobs / directory, contents)
    assert len([entry for entry in mountinfo.read() if entry.mountpoint == str(lake.jobs)]) == 1


@pytest.mark.slow
def test_lake_with_samples_is_unmounted_in_order_while_samples_are_cached() -> None:
    with jobs_mounted() as lake:
        directory, contents = fill(lake, "last", 5)
        placed(lake, directory, len(contents))
        pids = [lake.pid(name) for name in ("keeper", "worker", "agent", "jobs")]
        assert "in order" in foremount("umount", str(lake.root)).stdout
        assert [entry for entry in mountinfo.read() if entry.mountpoint.startswith(str(lake.root))] == []
        log = lake.log("keeper")
        assert "umount: done" in log and "umount -l" not in log
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids[1:])


def test_force_ends_a_lake_whose_worker_of_jobs_is_stopped() -> None:
    with jobs_mounted() as lake:
        for name in ("keeper", "jobs"):
            os.kill(lake.pid(name), signal.SIGSTOP)
        foremount("umount", str(lake.root), "--force")
        assert [entry for entry in mountinfo.read() if entry.mountpoint.startswith(str(lake.root))] == []
