"""Credentials that are kept in files and change while we run. They never appear in `repr`, logs or errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from vfs.errors import Denied

T = TypeVar("T")


class SecretFile(Generic[T]):
    """What a file of credentials said when it was read last.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str, parse: Callable[[str], T], subject: str) -> None:
        """Args:
        parse: turns the file's text into the secret; its ValueError may be shown, so it must not quote the text.
        subject: the site, for errors.
        """
        self.path = path
        self._parse = parse
        self._subject = subject
        self._held: T | None = None

    def __repr__(self) -> str:
        return f"SecretFile({self.path!r})"

    def current(self) -> T:
        """Return the secret, read on first use.

        Raises:
            Denied: the file can't be read or holds none.
        """
        if self._held is None:
            self._held = self._read()
        return self._held

    def renewed(self, rejected: T) -> bool:
        """Read the file again after the server refused `rejected`; return whether there is another secret to try.

        Another caller may have done so already: then its result is taken.
        """
        if self._held == rejected:
            self._held = self._read()
        return self._held != rejected

    def _read(self) -> T:
        try:
            with open(self.path, encoding="utf-8") as text:
                return self._parse(text.read())
        except OSError as exc:
            raise Denied(self._subject, f"its credentials in {self.path} can't be read: {exc.strerror}") from exc
        except ValueError as exc:
            raise Denied(self._subject, f"its credentials in {self.path} can't be used: {exc}") from None


def parse_headers(text: str) -> dict[str, str]:
    """Return the headers in lines of "Name: value"; empty lines and lines that begin with "#" are left out.

    Raises:
        ValueError: a line is none. Its number is told, not its text.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"line {number} is no 'Name: value'")
        found[name.strip()] = value.strip()
    return found


def parse_token(text: str) -> str:
    """Return the token that is the file's only content.

    Raises:
        ValueError: the file is empty.
    """
    token = text.strip()
    if not token:
        raise ValueError("the file is empty")
    return token
