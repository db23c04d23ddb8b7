"""Who may ask what: peers of the Unix socket by the kernel's word, callers over TCP by their token.

A page in a browser must not be able to act for whoever forwards the socket to a port (`ssh -L`): requests that name another
host than this one, or come from another site's page, are refused. Tokens hold as their file is now.
"""

from __future__ import annotations

import enum
import hmac
import os
import socket
import stat
import struct
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from vfs.errors import Denied, InvalidConfig

_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_TOKEN_CHARS_MIN = 16


class Role(enum.IntEnum):
    """What a caller may do; each includes those before it."""

    READ = 1
    OPERATE = 2
    ADMIN = 3


ROLES: dict[Role, str] = {
    Role.READ: "look at everything",
    Role.OPERATE: "fetch, evict and verify local copies",
    Role.ADMIN: "put policies in force",
}


class Caller(msgspec.Struct, frozen=True):
    """Somebody who asks.

    Attributes:
        name: for limits and the audit log: "uid 0", "token grafana".
        uid: at the other end of the Unix socket, -1 over TCP.
    """

    name: str
    role: Role
    uid: int = -1


class Tokens:
    """The tokens of a file: lines "ROLE NAME TOKEN", read again when the file changes.

    Raises (of all methods):
        InvalidConfig: the file can't be used, or others can read it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._known: list[tuple[bytes, Caller]] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the file if it has changed."""
        try:
            found = os.stat(self._path)
            seen = found.st_mtime_ns, found.st_ino
            if seen == self._seen:
                return
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise InvalidConfig(self._path, "can be read by others", f"chmod 600 {self._path}")
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
        except OSError as exc:
            raise InvalidConfig(self._path, f"can't be read: {exc.strerror}") from exc
        self._known, self._seen = parse_tokens(text, self._path), seen

    def find(self, token: str) -> Caller | None:
        """Return whose token this is, None: nobody's. Takes as long for a wrong one as for a right one."""
        given, found = token.encode(), None
        for known, caller in self._known:
            if hmac.compare_digest(known, given):
                found = caller
        return found


def parse_tokens(text: str, name: str) -> list[tuple[bytes, Caller]]:
    """Return each token with its caller. Pure.

    Raises:
        InvalidConfig: with the line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0].upper() not in Role.__members__:
            raise InvalidConfig(
                f"{name}, line {number}", "is no token", 'write "ROLE NAME TOKEN", ROLE read, operate or admin'
            )
        role, who, token = words
        if len(token) < _TOKEN_CHARS_MIN:
            raise InvalidConfig(f"{name}, line {number}", "the token is too short", "openssl rand -hex 24")
        found.append((token.encode(), Caller(f"token {who}", Role[role.upper()])))
    return found


def peer_of(connection: socket.socket) -> Caller:
    """Return who is at the other end of a Unix socket, as the kernel knows it.

    Raises:
        Denied: neither root nor the user whose mount it is.
    """
    uid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    if uid not in (0, os.geteuid()):
        raise Denied("admin API", f"is not for user id {uid}", "ask as the user who mounted, or over TCP with a token")
    return Caller(f"uid {uid}", Role.ADMIN, uid)


def check_browser(headers: Mapping[str, str], *, local: bool, changes: bool) -> None:
    """Refuse what only a page of another site would send. Pure.

    Args:
        local: it came over the Unix socket, where whoever asks is trusted by their user id.
        changes: the request changes something.
    Raises:
        Denied: it looks like that.
    """
    host = headers.get("Host", "")
    if local and (urlsplit(f"//{host}").hostname or "") not in _LOOPBACK:
        raise Denied("admin API", f"is not called {host!r}", "ask for localhost")
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Denied("admin API", f"is not for pages of {origin}")
    if changes and headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Denied("admin API", "is not for pages of other sites")
