"""Keys of S3 as AWS shared credentials files hold them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import configparser

import msgspec


class S3Keys(msgspec.Struct, frozen=True):
    """Keys of one profile; they stay out of `repr`."""

    access_key: str
    secret_key: str
    session_token: str | None

    def __repr__(self) -> str:
        return "S3Keys(…)"


def parse_keys(text: str, profile: str) -> S3Keys:
    """Return the keys of a profile in an AWS shared credentials file.

    Raises:
        ValueError: the file or the profile can't be used; the text is not quoted.
    """
    document = configparser.ConfigParser(interpolation=None)
    try:
        document.read_string(text)
        section = document[profile]
        return S3Keys(section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token"))
    except KeyError as exc:
        raise ValueError(f"profile {profile!r} has no {exc.args[0]}") from None
    except configparser.Error:
        raise ValueError("it is no AWS credentials file") from None
