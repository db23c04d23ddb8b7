"""Signatures of operators: Ed25519 over the declaration and the digest of the code, by keys that the admin trusts.

A signature file holds one line "KEY SIGNATURE": the public key and the signature, both base64. Trusted keys are a file of
lines "KEY NAME".
"""

from __future__ import annotations

import base64
import binascii
import os
import stat

from vfs.errors import InvalidConfig
from vfs.samples.operators.declare import OperatorRefused

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
except ImportError as _exc:  # the caller says which extra to install
    raise InvalidConfig("cryptography", "is not installed", "pip install foremount[media]") from _exc


def new_key(path: str) -> str:
    """Write a new private key to a file of mode 0600; return the public key as base64.

    Raises:
        InvalidConfig: the file exists or can't be written.
    """
    key = Ed25519PrivateKey.generate()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise InvalidConfig(path, f"can't be written: {exc.strerror}") from exc
    with open(fd, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return _public(key)


def sign(key_path: str, statement: bytes) -> str:
    """Return the line of a signature file.

    Raises:
        InvalidConfig: the key can't be read, or others can read it.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with open(key_path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidConfig(key_path, "can be read by others", f"chmod 600 {key_path}")
            key = load_pem_private_key(file.read(), password=None)
    except OSError as exc:
        raise InvalidConfig(key_path, f"can't be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidConfig(key_path, "is no private key", "foremount operator key FILE") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidConfig(key_path, "is no Ed25519 key", "foremount operator key FILE")
    return f"{_public(key)} {base64.b64encode(key.sign(statement)).decode()}\n"


def check(name: str, signature: str, statement: bytes, trusted: dict[str, str]) -> str:
    """Return the name of the trusted key that signed `statement`.

    Raises:
        OperatorRefused: none did.
    """
    public, _, signed = signature.strip().partition(" ")
    if public not in trusted:
        raise OperatorRefused(name, "is signed by a key that is not trusted", "add it to node.keys, or sign with another")
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(signed, validate=True), statement)
    except (InvalidSignature, ValueError, binascii.Error) as exc:
        raise OperatorRefused(name, "does not fit its signature", "it was changed: sign it again") from exc
    return trusted[public]


def trusted_keys(text: str, name: str) -> dict[str, str]:
    """Return the name of each trusted key. Pure.

    Raises:
        InvalidConfig: with the line.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if len(words) != 2 or len(base64.b64decode(words[0], validate=True)) != 32:
                raise ValueError("no key")
        except ValueError as exc:
            raise InvalidConfig(f"{name}, line {number}", "is no key", 'write "KEY NAME"') from exc
        found[words[0]] = words[1]
    return found


def _public(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
