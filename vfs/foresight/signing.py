"""Who asks a controller over the network: each request carries its sender's name and a keyed digest of all that it says.

Pure: no I/O, no clock. Secrets never travel. A request that is sent again by somebody who overheard it changes little:
events count once, and all other orders say how things are to be.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from vfs.errors import InvalidConfig

HEADER = "Foremount-Signature"
_SECRET_CHARS_MIN = 16


def parse_secrets(text: str, name: str) -> dict[str, bytes]:
    """Return the secrets of a file of lines "NAME SECRET", by name and in order.

    Raises:
        InvalidConfig: with the line.
    """
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < _SECRET_CHARS_MIN:
            hint = f'write "NAME SECRET" with at least {_SECRET_CHARS_MIN} characters: openssl rand -hex 24'
            raise InvalidConfig(f"{name}, line {number}", "is no secret", hint)
        found[words[0]] = words[1].encode()
    if not found:
        raise InvalidConfig(name, "holds no secret", "openssl rand -hex 24 makes one")
    return found


def signature(sender: str, secret: bytes, method: str, target: str, body: bytes) -> str:
    """Return the header's value for a request; `target` is the path with its query."""
    said = b"\0".join((method.encode(), target.encode(), body))
    return f"{sender} {hmac.new(secret, said, hashlib.sha256).hexdigest()}"


def signer(secrets: Mapping[str, bytes], header: str, method: str, target: str, body: bytes) -> str | None:
    """Return who signed a request, None where nobody known did."""
    sender = header.partition(" ")[0]
    secret = secrets.get(sender)
    if secret is None:
        return None
    return sender if hmac.compare_digest(header, signature(sender, secret, method, target, body)) else None
