"""Takes secrets out of text that leaves the host.

Pure: no I/O, no clock. Our own files should hold none: configurations name files with secrets, logs name no URLs with
queries. This is the second line: what people write into a URL all the same, and what a library may have logged.
"""

from __future__ import annotations

import re

HIDDEN = "[removed]"
_NAMES = (
    r"pass(?:word|wd)?|secret\w*|\w*token|\w*api[_-]?key|\w*access[_-]?key(?:[_-]?id)?|signature|delegation|credentials?|"
    r"authorization"
)
_RULES = (
    (re.compile(r"(?<=://)[^/@\s\"']+(?=@)"), HIDDEN),  # user:password@ of a URL
    (re.compile(rf"(?i)([?&](?:[\w-]*(?:{_NAMES}|x-amz-\w+))=)[^&\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b((?:authorization|proxy-authorization|cookie|set-cookie|x-auth-token)\s*[:=]\s*).+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(rf"(?i)\b((?:{_NAMES})[\"']?\s*[:=]\s*)([\"']?)(?:(?<=[\"'])[^\"'\n]*|[^\s,;&}}\"']+)"), rf"\1\2{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL), HIDDEN),
)


def redact(text: str) -> str:
    """Return the text with what looks like a secret replaced; names of files that hold secrets stay."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
