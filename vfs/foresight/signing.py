"""Who asks a controller over the network: each request carries its sender's name and a keyed digest of all that it says.

Pure: no I/O, no clock. Secrets never travel. A request that is sent again by somebody who overheard it changes little:
events count once, and all other orders say how things are to be. All who ask read a refusal with `refusal_of`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from vfs.errors import ForemountError, InvalidConfig, Unavailable, failure_from

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


def signed(secrets: Mapping[str, bytes], method: str, target: str, body: bytes) -> dict[str, str]:
    """Return the headers of a request that the first of the secrets signs; none where there is no secret."""
    if not secrets:
        return {}
    sender, secret = next(iter(secrets.items()))
    return {HEADER: signature(sender, secret, method, target, body)}


def stated_sender(header: str) -> str:
    """Return who a request says has signed it."""
    return header.partition(" ")[0]


def signer(secrets: Mapping[str, bytes], header: str, method: str, target: str, body: bytes) -> str | None:
    """Return who signed a request, None where nobody known did."""
    sender = stated_sender(header)
    secret = secrets.get(sender)
    if secret is None:
        return None
    return sender if hmac.compare_digest(header, signature(sender, secret, method, target, body)) else None


def refusal_of(controller: str, status: int, answer: bytes) -> ForemountError:
    """Return the error that a controller answered with; one that does not say so counts as not there."""
    try:
        return failure_from(msgspec.json.decode(answer)["error"])
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return Unavailable(controller, f"answered with HTTP status {status}")
