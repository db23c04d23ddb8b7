"""What a child tells the keeper through its status pipe: one line each, "ready", "beat" or "failed REASON".

A child says "ready" once it serves, and "beat" once a second from the loop that serves, so that a loop that hangs falls
silent. The keeper kills and restarts a child that has been silent for 30 s, unless it is stopped (state T).
"""

from __future__ import annotations

import os

LINE_BYTES_MAX = 4096
"""PIPE_BUF: a line is written whole or not at all."""


class StatusPipe:
    """The writing end. Never blocks: with a stopped keeper and a full pipe a beat is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)

    def ready(self) -> None:
        """Say that requests are being served."""
        self._write("ready")

    def beat(self) -> None:
        """Say that the loop still turns."""
        self._write("beat")

    def failed(self, reason: str) -> None:
        """Say why this process is about to exit; `foremount mount` and `status` show it."""
        self._write("failed " + " ".join(reason.split()))

    def _write(self, line: str) -> None:
        try:
            os.write(self._fd, line.encode("utf-8", "replace")[: LINE_BYTES_MAX - 1] + b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            pass  # the keeper is gone, and PR_SET_PDEATHSIG ends us


def split_lines(pending: bytes, received: bytes) -> tuple[list[str], bytes]:
    """Return the complete lines and the rest to pass in next time; a rest longer than a line can be is dropped.

    Pure: no I/O, no clock.
    """
    *lines, rest = (pending + received).split(b"\n")
    return [line.decode("utf-8", "replace") for line in lines if line], rest if len(rest) < LINE_BYTES_MAX else b""
