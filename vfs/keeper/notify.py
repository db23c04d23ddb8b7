"""What systemd is told (sd_notify): one datagram to the socket in NOTIFY_SOCKET, where there is one."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """Send "READY=1", "WATCHDOG=1", "STOPPING=1" or "STATUS=…"; without systemd, or where it does not listen, do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        try:
            sock.sendto(message.encode(), address)
        except OSError:
            pass  # systemd's own watchdog acts on what it did not hear
