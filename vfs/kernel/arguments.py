"""What the keeper tells a worker on its command line (`vfs/keeper/service.py`).

Pure: no I/O, no clock.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arguments:
    """As in `vfs/keeper/service.py`.

    Attributes:
        mountpoint: of this worker's connection.
        negotiated: as `Negotiated.to_text` writes it.
        resend: not the first worker of this connection.
    """

    fuse_fd: int
    status_fd: int
    parent_pid: int
    run_dir: str
    config: str
    mountpoint: str
    negotiated: str
    resend: bool


def parse(program: str, argv: list[str]) -> Arguments:
    """Return what a command line says; ends the process with a message where it says nothing."""
    parser = argparse.ArgumentParser(program)
    parser.add_argument("--fuse-fd", type=int, required=True)
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--negotiated", required=True)
    parser.add_argument("--resend", action="store_true")
    return Arguments(**vars(parser.parse_args(argv)))
