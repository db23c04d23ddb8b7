"""Certificates for tests: an authority of one's own, and what it issues."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import pytest

x509 = pytest.importorskip("cryptography.x509", reason="the [media] extra is not installed")

from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

from vfs.tls import Files  # noqa: E402

DAY = datetime.timedelta(days=1)
LISTENING = """
[admin]
address = "127.0.0.1:0"
tokens = "{base}/admin.tokens"
TLS
[replica_server]
address = "127.0.0.1:0"
directory = "{base}/copies"
tokens = "{base}/replica.tokens"
TLS
[foresight]
address = "127.0.0.1:0"
tokens = "{base}/secrets"
TLS
"""
"""All that an agent answers at over TCP; TLS stands for the keys that name the files of each."""


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Authority:
    """Issues certificates. `pem` is its own.

    Args:
        directory: where files are written.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        built = self._build(self._subject, self._key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
        made = built.add_extension(usage, True).sign(self._key, hashes.SHA256())
        self.pem = made.public_bytes(serialization.Encoding.PEM)

    def _build(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, old: bool = False) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        first, last = (now - 3 * DAY, now - DAY) if old else (now - DAY, now + DAY)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(key)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(own, False)

    def issue(self, name: str, *, old: bool = False, believes: Authority | None = None) -> Files:
        """Return the files of a party at 127.0.0.1, which believes this authority or another; files of that name go.

        Args:
            old: it has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = self._build(_name(name), key.public_key(), old=old).add_extension(names, False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        contents = {
            "pem": made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            "key": secret,
            "authority": (believes or self).pem,
        }
        found = [str(self._directory / f"{name}.{ending}") for ending in contents]
        for path, content in zip(found, contents.values(), strict=True):
            replace(path, content)
        return Files(*found)


def replace(path: str, content: bytes) -> None:
    """Put a file in the place of another as a tool that renews certificates does it."""
    Path(f"{path}.new").write_bytes(content)
    os.replace(f"{path}.new", path)
