from __future__ import annotations

import pytest

from tests import audit


def test_vulnerable_package_is_named_with_the_version_that_mends_it() -> None:
    said, troubles = audit.judge(
        [
            {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]},
            {"name": "b", "version": "1", "vulns": []},
            {"name": "c", "skip_reason": "not on PyPI"},
        ]
    )
    assert said == "2 of 3 packages looked up, 1 known"
    assert troubles == ["a 1: CVE-1, mended in 2"]


def test_service_that_can_not_be_reached_is_said_and_fails_nothing() -> None:
    said, troubles = audit.judge([{"name": "a", "skip_reason": "not found"}, {"name": "b", "skip_reason": "not found"}])
    assert "can't be reached" in said
    assert troubles == []


@pytest.mark.parametrize(
    ("licence", "refused"),
    [
        ("Apache-2.0", False),
        ("MIT License", False),
        ("LGPL-3.0-or-later", False),
        ("GNU Lesser General Public License v2 or later (LGPLv2+)", False),
        ("GNU Library or Lesser General Public License (LGPL)", False),
        ("GPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("GNU Affero General Public License v3", True),
        ("AGPL-3.0", True),
        ("MIT OR GPL-2.0", False),
        ("", True),
    ],
)
def test_licence_that_a_product_could_not_be_shipped_with_is_refused(licence: str, refused: bool) -> None:
    assert audit.refuses(licence) is refused


def test_what_users_install_is_found_with_all_that_it_needs() -> None:
    found = audit.installed(audit.RUNTIME)
    assert {"foremount", "pyfuse3", "aiohttp", "multidict"} <= found
    assert "pytest" not in found
