"""TLS between our processes, from files as they are now: who serves, who asks, and each proving to the other who it is.

A certificate, a key or an authority that is replaced on disk holds for the next connection; one that can't be used leaves the
one before in force, with one line in the log. Where a server has an authority, nobody connects without a certificate of it.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import NamedTuple, Protocol

from vfs.errors import InvalidConfig, Unavailable

log = logging.getLogger(__name__)
_Seen = tuple[tuple[int, int], ...]


class Files(NamedTuple):
    """PEM files of one side; "" for what it has not.

    Attributes:
        certificate, key: its own, which it shows.
        authority: whose certificates it believes. "": a client the system's, a server asks for none.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""

    def seen(self) -> _Seen:
        """Return what changes when a file is replaced."""
        return tuple((found.st_mtime_ns, found.st_ino) for found in map(os.stat, filter(None, self)))


NO_FILES = Files()


class Configured(Protocol):
    """A table of foremount.toml that names the files."""

    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def authority(self) -> str: ...


def files_of(table: Configured) -> Files:
    """Return the files that a table names."""
    return Files(table.certificate, table.key, table.authority)


class _Spoken(ssl.SSLObject):
    """A connection that tells its client why it is refused: asyncio would cut it off with the alert still in its buffer."""

    _refusal: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Shake hands; a refusal is raised at the call after the one that has sent it."""
        if self._refusal is not None:
            raise self._refusal
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            log.warning("a connection is refused: %s", exc)
            if not isinstance(exc, ssl.SSLCertVerificationError) and exc.reason != "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                raise  # who speaks no TLS reads no alert either
            self._refusal = exc
            raise ssl.SSLWantReadError from exc


class Server:
    """What a service shows to those who connect, and asks of them.

    Args:
        subject: what names the files in the configuration.
    Attributes:
        context: for the listening socket, for all its life. It has nothing before the first `refresh`.
    """

    def __init__(self, files: Files, subject: str) -> None:
        self._files = files
        self._subject = subject
        self._seen: _Seen = ()
        self._trouble = ""
        self._newest = self.context = self._empty()
        self.context.sni_callback = self._take_newest

    def refresh(self) -> None:
        """Load the files if they have changed.

        Raises:
            InvalidConfig: they can't be used.
        """
        try:
            seen = self._files.seen()
            if seen == self._seen:
                return
            made = self._empty()  # anew: an authority can be added to a context but not taken away
            made.load_cert_chain(self._files.certificate, self._files.key)
            if self._files.authority:
                made.load_verify_locations(self._files.authority)
        except (OSError, ssl.SSLError) as exc:
            raise InvalidConfig(self._subject, f"can't be used: {exc}") from exc
        self._newest, self._seen, self._trouble = made, seen, ""

    def _empty(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.sslobject_class = _Spoken
        if self._files.authority:
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0  # who comes again shows its certificate again
        return context

    def _take_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Is called by every handshake, whether or not the client names a host."""
        try:
            self.refresh()
        except InvalidConfig as exc:
            if self._trouble != str(exc):
                self._trouble = str(exc)
                log.warning("the one before stays in force: %s", exc)
        connection.context = self._newest


class Client:
    """What we show to a server, and believe of it.

    Args:
        subject: what names the files in the configuration.
    """

    def __init__(self, files: Files, subject: str) -> None:
        self._files = files
        self._subject = subject
        self._seen: _Seen | None = None
        self._context: ssl.SSLContext | None = None
        self._trouble = ""

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection that is opened now. Servers are checked against their name, too.

        Raises:
            Unavailable: the files can't be used, and never could.
        """
        try:
            seen = self._files.seen()
            if self._context is None or seen != self._seen:
                self._context, self._seen, self._trouble = self._made(), seen, ""
        except (OSError, ssl.SSLError) as exc:
            trouble = f"certificate, key or authority can't be used: {exc}"
            if self._context is None:
                raise Unavailable(self._subject, trouble) from exc
            if self._trouble != trouble:
                self._trouble = trouble
                log.warning("%s: the ones before stay in force: %s", self._subject, trouble)
        return self._context

    def _made(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._files.authority or None)
        if self._files.certificate:
            context.load_cert_chain(self._files.certificate, self._files.key or None)
        return context
