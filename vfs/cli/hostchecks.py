"""What `doctor` looks at on the host. No function here touches a mount point."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import resource
import shutil
import stat
import tempfile

from vfs import rundir
from vfs.cli.checks import BAD, OK, WARNING, Check
from vfs.config import Config
from vfs.keeper import mountinfo, mounting
from vfs.units import format_size

_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_TIME_ERROR = 5
"""adjtimex: the clock is not synchronised."""
DESCRIPTORS_WANTED = 65536
"""Passthrough costs one descriptor per open file, cached reads two: data and digests."""


def check_host(config: Config | None) -> list[Check]:
    """Return the checks of this host; those of the cache only with a configuration."""
    checks = [
        judge_kernel(platform.release()),
        _fuse_device(),
        _capability(),
        _fusermount(),
        _fuse_conf(),
        _shim(),
        _descriptors(),
        _file_max(),
        _clock(),
    ]
    return [*checks, *(check_cache(config) if config is not None else [])]


def judge_kernel(release: str) -> Check:
    """Return the verdict on a kernel of this release. Pure: no I/O, no clock."""
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < (5, 17):
        return Check("kernel", BAD, release, "Linux 5.17 or later is needed, 6.9 for passthrough")
    if version < (6, 9):
        hint = "Linux 6.9 reads local files without this daemon, and a restarted worker resumes what the last one had taken"
        return Check("kernel", WARNING, f"{release}: no passthrough, no resend", hint)
    return Check("kernel", OK, release)


def check_cache(config: Config) -> list[Check]:
    """Return the checks of the disk that the cache directory lies on, or will."""
    wanted = rundir.settle(config.cache.directory)
    place = _existing_parent(wanted)
    if place is None or not os.access(place, os.W_OK):
        return [Check("cache disk", BAD, f"{place or wanted} can't be written", "choose another cache.directory")]
    usage = shutil.disk_usage(place)
    held = _tree_bytes(wanted)
    room = f"{format_size(usage.free)} free, cache.size {format_size(config.cache.size)}"
    if usage.free + held < config.cache.size:
        space = Check("cache disk", WARNING, room, "lower cache.size: the rest of the disk is not ours to fill")
    else:
        space = Check("cache disk", OK, room)
    return [space, _cache_type(place), _sparse(place)]


def _fuse_device() -> Check:
    try:
        found = os.stat("/dev/fuse")
    except OSError as exc:
        return Check("/dev/fuse", BAD, str(exc.strerror), "modprobe fuse; in a container pass --device /dev/fuse")
    if not stat.S_ISCHR(found.st_mode):
        return Check("/dev/fuse", BAD, "no character device", "mknod /dev/fuse c 10 229")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return Check("/dev/fuse", BAD, "this user may not open it", "chmod 666 /dev/fuse, or mount as root")
    return Check("/dev/fuse", OK, "can be opened")


def _capability() -> Check:
    lacking = mounting.host_against_passthrough()
    if lacking:
        return Check("privileges", WARNING, f"{lacking}: no passthrough", "mount as root on the host itself")
    return Check("privileges", OK, "CAP_SYS_ADMIN in the initial namespace")


def _fusermount() -> Check:
    found = shutil.which("fusermount3")
    if found is None:
        verdict = OK if os.geteuid() == 0 else BAD
        return Check("fusermount3", verdict, "not installed; only ordinary users need it", "apt install fuse3")
    if os.geteuid() != 0 and not os.stat(found).st_mode & stat.S_ISUID:
        return Check("fusermount3", BAD, f"{found} is not setuid root", f"chmod u+s {found}")
    return Check("fusermount3", OK, found)


def _fuse_conf() -> Check:
    if mounting.user_allow_other():
        return Check("fuse.conf", OK, "user_allow_other is set")
    if os.geteuid() == 0:
        return Check("fuse.conf", OK, "no user_allow_other; root does not need it")
    hint = "put user_allow_other into /etc/fuse.conf where other users are to read the mount"
    return Check("fuse.conf", WARNING, "no user_allow_other: only you can enter your mounts", hint)


BUILD_HINT = "apt install gcc pkg-config libfuse3-dev, then install foremount again"


def reads_without_open() -> bool:
    """Return whether the extension is there, and new enough to spare the samples' OPEN."""
    try:
        return hasattr(importlib.import_module("vfs.kernel._passthrough"), "reads_without_open")
    except ImportError:
        return False


def _shim() -> Check:
    if importlib.util.find_spec("vfs.kernel._passthrough") is None:
        return Check("passthrough extension", WARNING, "not built: local files are read through the page cache", BUILD_HINT)
    return Check("passthrough extension", OK, "built")


def _descriptors() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_WANTED:
        return Check("open files per process", WARNING, f"{hard} at most", f"ulimit -Hn {DESCRIPTORS_WANTED}, LimitNOFILE=")
    return Check("open files per process", OK, "unlimited" if hard == resource.RLIM_INFINITY else f"{hard} at most")


def _file_max() -> Check:
    with open("/proc/sys/fs/file-nr", encoding="ascii") as file:
        used, _, most = (int(field) for field in file.read().split())
    if most - used < DESCRIPTORS_WANTED:
        return Check("open files of the host", WARNING, f"{used} of {most} in use", "sysctl fs.file-max=1000000")
    return Check("open files of the host", OK, f"{used} in use")


def _clock() -> Check:
    room = ctypes.create_string_buffer(256)  # struct timex has 208 bytes; all zero means: only ask
    if ctypes.CDLL(None).adjtimex(room) == _TIME_ERROR:
        hint = "start chrony or systemd-timesyncd: signatures of S3 requests fail at 15 minutes off"
        return Check("clock", WARNING, "not synchronised", hint)
    return Check("clock", OK, "synchronised")


def _cache_type(place: str) -> Check:
    device = os.stat(place).st_dev
    entries = [entry for entry in mountinfo.read() if os.makedev(entry.major, entry.minor) == device]
    kind = entries[-1].fs_type if entries else "unknown"
    if kind.startswith("fuse") or kind in ("nfs", "nfs4", "cifs", "ceph", "lustre", "9p"):
        return Check("cache file system", BAD, f"{kind} is no local file system", "choose a cache.directory on a local disk")
    if kind in ("tmpfs", "overlay"):
        return Check("cache file system", WARNING, f"{kind}: what is cached there does not outlive this host or container")
    return Check("cache file system", OK, kind)


def _sparse(place: str) -> Check:
    """Write a page into a file of 1 MiB and punch it out again."""
    name = "sparse files"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.truncate(1 << 20)
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20:
                return Check(name, BAD, "holes take room: cache.size can't be kept", "use ext4, xfs or btrfs")
            mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.fallocate(file.fileno(), mode, ctypes.c_int64(0), ctypes.c_int64(4096)) != 0:
                return Check(
                    name, WARNING, f"no punching of holes: {os.strerror(ctypes.get_errno())}", "use ext4, xfs or btrfs"
                )
    except OSError as exc:
        return Check(name, BAD, f"can't be tried: {exc.strerror}", f"look after {place}")
    return Check(name, OK, "holes can be left and punched")


def _existing_parent(path: str) -> str | None:
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path or os.path.lexists(path):
            return None
        path = parent
    return path


def _tree_bytes(path: str) -> int:
    """Return what the cache already takes, in its first 10,000 directories."""
    total = 0
    for count, (directory, _, names) in enumerate(os.walk(path)):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:  # evicted meanwhile
                pass
        if count > 10_000:
            break
    return total
