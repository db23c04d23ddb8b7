"""`python -m vfs.kernel.jobs.primer --fd N --root DIR`: has the kernel look names up, so that it knows their inodes.

The kernel takes pushed pages only for inodes that it knows, and it comes to know one only when somebody walks to it. The
worker can't: a thread of it that waits for the worker itself could not end when the worker is killed, and no new worker
would be started. So this process walks, which nobody waits for. It is told a directory as a line of JSON, lists it, in which
the worker shows it what is placed, and answers with an empty line. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys


def main(argv: list[str]) -> int:
    """Answer lines until the worker is gone; return the exit status."""
    parser = argparse.ArgumentParser("vfs.kernel.jobs.primer")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--root", required=True)
    args = parser.parse_args(argv)
    with socket.socket(fileno=args.fd) as line, line.makefile("rb") as told:
        for text in told:
            walk(args.root, json.loads(text))
            line.sendall(b"\n")
    return 0


def walk(root: str, directory: str) -> None:
    """List a directory below `root`. What is gone meanwhile is left out."""
    try:
        with os.scandir(os.path.join(root, directory)) as entries:
            for _ in entries:
                pass
    except OSError:
        pass


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)  # the worker has ended
