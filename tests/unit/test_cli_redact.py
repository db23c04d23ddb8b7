"""What a bug report leaves out."""

from __future__ import annotations

import pytest

from vfs.cli.redact import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('url = "https://user:pa55@host/data"', 'url = "https://[removed]@host/data"'),
        ("GET /webhdfs/v1/a?op=OPEN&delegation=Abc123&offset=0", "GET /webhdfs/v1/a?op=OPEN&delegation=[removed]&offset=0"),
        ("https://b/k?X-Amz-Signature=00ff&x=1", "https://b/k?X-Amz-Signature=[removed]&x=1"),
        ("Authorization: Bearer abc.def", "Authorization: [removed]"),
        ("sent Bearer abcdefgh12345", "sent Bearer [removed]"),
        ('{"secret_access_key": "wJalr/K7", "a": 1}', '{"secret_access_key": "[removed]", "a": 1}'),
        ("aws_access_key_id = AKIAIOSFODNN7EXAMPLE", "aws_access_key_id = [removed]"),
        ("key AKIAIOSFODNN7EXAMPLE was refused", "key [removed] was refused"),
        ("password=x y", "password=[removed] y"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nend", "[removed]\nend"),
    ],
)
def test_secret_is_taken_out(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        'credentials_file = "/etc/foremount/keys"',
        'token_file = "/run/token"',
        'headers_file = "/etc/headers"',
        'url = "https://host:8080/data?list=1"',
        'File "/usr/lib/python3/tokenize.py", line 3 in read',
        "run directory: /run/foremount/mnt-lake",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text
