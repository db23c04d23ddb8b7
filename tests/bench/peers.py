"""Other mounts over the same S3 server, set up as their manuals advise: for data that does not change, or to be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lake import wait_until
from tests.servers.lifecycle import program, running, tail
from tests.servers.seaweedfs import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFs

MOUNT_S = 30.0
INSTALL = "./mount_scripts/install_peers.sh"


@contextlib.contextmanager
def rclone(server: SeaweedFs, prefix: str, base: Path, *, writes: bool = False) -> Iterator[Path]:
    """Mount a prefix of the bucket with rclone: files cached whole on disk, attributes and listings believed for an hour.

    To be written, it stages files on disk and uploads each 5 s after it was closed, as it does unless told otherwise. Told to
    begin at once (`--vfs-write-back 0s`) 1.75 lost seven of eight files that were renamed when they were closed.

    Raises:
        Missing: it is not installed.
    """
    binary = program("rclone", INSTALL, sysconfig.get_path("scripts"))
    base.mkdir()
    settings = {
        "type": "s3",
        "provider": "Other",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "endpoint": server.endpoint,
        "region": REGION,
    }
    config = base / "rclone.conf"
    config.write_text("[weed]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    options = ["--vfs-cache-mode", "full", "--vfs-cache-max-size", "4Gi", "--no-modtime", "--no-checksum", "--read-only"]
    if writes:
        options = ["--vfs-cache-mode", "writes", "--transfers", "16"]
    options += ["--attr-timeout", "1h", "--dir-cache-time", "1h", "--poll-interval", "0"]
    argv = [binary, "mount", f"weed:lake/{prefix}", str(base / "mnt"), "--config", str(config)]
    argv += ["--cache-dir", str(base / "cache"), *options]
    with _foreground(argv, base) as root:
        yield root


@contextlib.contextmanager
def rclone_of_directory(source: Path, base: Path) -> Iterator[Path]:
    """Mount a directory of this host with rclone: attributes and listings believed for an hour.

    Raises:
        Missing: it is not installed.
    """
    binary = program("rclone", INSTALL, sysconfig.get_path("scripts"))
    base.mkdir()
    source.mkdir(parents=True, exist_ok=True)
    options = ["--vfs-cache-mode", "off", "--no-modtime", "--no-checksum", "--read-only"]
    options += ["--attr-timeout", "1h", "--dir-cache-time", "1s", "--poll-interval", "0"]
    argv = [binary, "mount", str(source), str(base / "mnt"), "--config", "/dev/null", "--cache-dir", str(base / "cache")]
    with _foreground([*argv, *options], base) as root:
        yield root


@contextlib.contextmanager
def s3fs(server: SeaweedFs, prefix: str, base: Path, *, writes: bool = False) -> Iterator[Path]:
    """Mount a prefix of the bucket with s3fs: files cached whole on disk, attributes believed for an hour.

    To be written, it uploads in fsync and close.

    Raises:
        Missing: it is not installed.
    """
    binary = program("s3fs", INSTALL)
    base.mkdir()
    keys = base / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{ACCESS_KEY}:{SECRET_KEY}\n")
    options = [
        f"url={server.endpoint}",
        "use_path_request_style",
        f"passwd_file={keys}",
        f"use_cache={base / 'cache'}",
    ]
    options += ["stat_cache_expire=3600", "max_stat_cache_size=100000", "parallel_count=16"]
    options += [] if writes else ["ro"]
    argv = [binary, f"lake:/{prefix}", str(base / "mnt"), "-f"]
    for option in options:
        argv += ["-o", option]
    with _foreground(argv, base) as root:
        yield root


@contextlib.contextmanager
def rclone_http(url: str, base: Path, cache_mode: str) -> Iterator[Path]:
    """Mount an HTTP origin that lists its directories in HTML with rclone.

    Args:
        cache_mode: "off" reads through, "full" caches what was read on disk.

    Raises:
        Missing: it is not installed.
    """
    binary = program("rclone", INSTALL, sysconfig.get_path("scripts"))
    base.mkdir()
    options = ["--vfs-cache-mode", cache_mode, "--read-only", "--attr-timeout", "1h", "--dir-cache-time", "1h"]
    argv = [binary, "mount", ":http:", str(base / "mnt"), "--http-url", url, "--config", str(base / "rclone.conf")]
    with _foreground([*argv, "--cache-dir", str(base / "cache"), "--poll-interval", "0", *options], base) as root:
        yield root


Peer = Callable[[SeaweedFs, str, Path], "contextlib.AbstractContextManager[Path]"]
PEERS: dict[str, Peer] = {"rclone": rclone, "s3fs": s3fs}


@contextlib.contextmanager
def _foreground(argv: list[str], base: Path) -> Iterator[Path]:
    """Run a mount program that stays in the foreground, wait for its mount, and unmount at the end."""
    root, log = base / "mnt", base / "log"
    root.mkdir()
    (base / "cache").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    with running(argv, log, env=environment) as child:
        try:
            wait_until(lambda: root.is_mount() or child.poll() is not None, argv[0], MOUNT_S)
            if child.poll() is not None:
                raise RuntimeError(f"{argv[0]} ended with {child.returncode}; its log ends with:\n{tail(log)}")
            yield root
        finally:
            if root.is_mount():
                unmount = [shutil.which("umount") or "umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
                subprocess.run([*unmount, root], check=False, capture_output=True)
