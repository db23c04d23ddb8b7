"""A child that is only what the keeper needs to see: a worker that answers for a root with one file, or an agent.

Speaks the FUSE protocol straight from the descriptor, so that tests of the keeper depend on no other part.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import os
import select
import signal
import stat
import struct
import sys
import threading
import time

from vfs.keeper.orphan import die_with_parent
from vfs.keeper.report import StatusPipe

CONTENT = b"what the keeper test reads\n"
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 29, 36, 42


def attributes(ino: int) -> bytes:
    """Return a struct fuse_attr."""
    mode, size = (stat.S_IFDIR | 0o755, 0) if ino == 1 else (stat.S_IFREG | 0o644, len(CONTENT))
    return struct.pack("<QQQQQQIIIIIIIIII", ino, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, ino: int, body: bytes) -> tuple[int, bytes] | None:
    """Return (errno, body) for a request, None where the protocol has no answer."""
    if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
        return None
    if opcode == LOOKUP and body == b"file\0":
        return 0, struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
    if opcode == GETATTR:
        return 0, struct.pack("<QII", 0, 0, 0) + attributes(ino)
    if opcode in (OPEN, OPENDIR):
        return 0, struct.pack("<QIi", 1, 0, 0)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return 0, CONTENT[offset : offset + size]
    if opcode == STATFS:
        return 0, struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
    if opcode in (RELEASE, RELEASEDIR, FLUSH):
        return 0, b""
    return (errno.ENOENT if opcode == LOOKUP else errno.ENOSYS), b""


def push_what_is_read(fd: int) -> None:
    """Store into the page that an unanswered READ has locked: the kernel holds this thread, whatever kills it."""
    notice = struct.pack("<IiQQQII", 40 + len(CONTENT), 4, 0, 2, 0, len(CONTENT), 0)
    threading.Thread(target=os.write, args=(fd, notice + CONTENT), daemon=True).start()


def serve(fd: int, timeout_s: float, *, held: bool = False) -> bool:
    """Answer what comes within the time; return False once the connection has ended.

    Args:
        held: push what is read in place of answering.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        if not poller.poll(left * 1000):
            return True
        try:
            request = os.read(fd, (1 << 20) + 4096)
        except OSError as exc:
            if exc.errno == errno.ENODEV:
                return False
            continue
        _, opcode, unique, ino, *_ = struct.unpack_from("<IIQQIIIHH", request)
        if held and opcode == READ:
            push_what_is_read(fd)
            continue
        said = answer(opcode, ino, request[40:])
        if said is not None:
            number, body = said
            try:
                os.write(fd, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)
            except FileNotFoundError:  # interrupted meanwhile
                pass
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", default="")
    parser.add_argument("--silent-first", action="store_true", help="the first one serves but never beats")
    parser.add_argument("--held-first", action="store_true", help="the first one pushes what is read in place of answering")
    parser.add_argument("--hold-on", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--fuse-fd", type=int, default=-1)
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--resend", action="store_true")
    options, _ = parser.parse_known_args()
    die_with_parent(options.parent_pid)
    faulthandler.register(signal.SIGUSR1)
    if options.hold_on:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = StatusPipe(options.status_fd)
    if options.fail:
        status.failed(options.fail)
        return 3
    if options.resend:
        os.write(options.fuse_fd, struct.pack("<IiQ", 16, 7, 0))
    status.ready()
    silent = options.silent_first and not options.resend
    held = options.held_first and not options.resend
    while options.fuse_fd < 0 or serve(options.fuse_fd, 0.5, held=held):
        if not silent:
            status.beat()
        if options.fuse_fd < 0:
            time.sleep(0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
