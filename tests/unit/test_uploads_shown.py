"""How uploads are shown: the line of `status`, the trouble, the metrics."""

from __future__ import annotations

import pytest

from vfs.admin.health import troubles_of_agent
from vfs.cli.status import _upload_words

BEHIND = {
    "behind": {"files": 3, "bytes": 3 << 20, "seconds": 12.4},
    "states": {"uploading": 1, "failed": 2},
    "troubles": [
        {"path": "a", "state": "waiting", "why": "b: is not at the origin yet"},
        {"path": "run/c", "state": "failed", "why": "lake:run/c: no room left"},
    ],
    "uploaded": {},
}


@pytest.mark.parametrize(
    ("uploads", "words"),
    [
        ({"behind": {"files": 0}}, "the origins have all that was written here"),
        (BEHIND, "the origins lack 3 files, 3 MiB, the oldest complete for 12 s: 1 uploading, 2 failed"),
    ],
    ids=["none", "some"],
)
def test_status_says_how_far_the_origins_are_behind(uploads: dict[str, object], words: str) -> None:
    assert _upload_words(uploads) == words


def test_failing_uploads_are_trouble_and_waiting_ones_are_not() -> None:
    (trouble,) = troubles_of_agent({"uploads": BEHIND})
    assert trouble.what == "2 staged files can't be uploaded, /run/c for one: lake:run/c: no room left"
    assert troubles_of_agent({"uploads": BEHIND | {"states": {"waiting": 1}}}) == []
    assert troubles_of_agent({"uploads": None}) == []
