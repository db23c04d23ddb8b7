"""Addresses of hosts as configurations write them. Pure: no I/O, no clock."""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of "host:port"; an IPv6 address stands in brackets.

    Raises:
        ValueError: it has not both.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


def is_plain_elsewhere(url: str) -> bool:
    """Return whether a URL leads to another host without TLS."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in LOOPBACK
