"""`python -m tests.audit`: known vulnerabilities of what is installed here, and the licences of what users install.

Run by .ci/run. A service of advisories that can't be reached is said and fails nothing; a known vulnerability, and a licence
that a closed product could not be shipped with, fail.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RUNTIME = ("foremount[s3]",)
"""What users install; tests and linters are shipped to nobody."""
AUDIT_S = 120
_REFUSED = re.compile(r"(?<!L)(?<!Lesser )\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def main() -> int:
    """Print both; return the exit status."""
    vulnerable = audit()
    licences = {name: licence_of(name) for name in sorted(installed(RUNTIME))}
    width = max(map(len, licences))
    print("licences of what users install:")
    for name, licence in licences.items():
        print(f"  {name:{width}}  {licence or 'none stated'}")
    refused = [name for name, licence in licences.items() if refuses(licence)]
    for name in refused:
        print(f"!!  {name}: {licences[name] or 'states no licence'}: choose another library", file=sys.stderr)
    return 1 if vulnerable or refused else 0


def audit() -> bool:
    """Say what is known of the installed packages; return whether one is vulnerable."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--local",
        "--skip-editable",
        "--progress-spinner",
        "off",
        "--format",
        "json",
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_S, check=False)
        found = judge(json.loads(ran.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, KeyError) as exc:
        print(f"vulnerabilities: not looked up, the service of advisories can't be reached from here ({type(exc).__name__})")
        return False
    print(f"vulnerabilities: {found[0]}")
    for sentence in found[1]:
        print(f"!!  {sentence}", file=sys.stderr)
    return bool(found[1])


def judge(dependencies: Iterable[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return how many packages were looked up, in words, and a sentence for each vulnerability. Pure."""
    listed = list(dependencies)
    asked = [each for each in listed if "skip_reason" not in each]
    troubles = [
        f"{each['name']} {each['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'no version yet'}"
        for each in asked
        for one in each["vulns"]
    ]
    if listed and not asked:
        return "not looked up, the service of advisories can't be reached from here", []
    return f"{len(asked)} of {len(listed)} packages looked up, {len(troubles)} known", troubles


def refuses(licence: str) -> bool:
    """Return whether a licence is missing, or obliges who ships the library with a product to publish that. Pure."""
    return not licence or (bool(_REFUSED.search(licence)) and " OR " not in licence)


def installed(wanted: Iterable[str]) -> set[str]:
    """Return the names of these requirements and all that they need here, as far as they are installed."""
    found: set[str] = set()
    open_ends = [Requirement(each) for each in wanted]
    seen: set[tuple[str, str]] = set()
    while open_ends:
        requirement = open_ends.pop()
        for extra in requirement.extras or {""}:
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                stated = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            found.add(name)
            needs = [Requirement(each) for each in stated]
            open_ends += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": extra})]
    return found


def licence_of(name: str) -> str:
    """Return what a package states: its SPDX expression, else its classifiers, else the first line of its licence field."""
    stated = distribution(name).metadata
    if expression := stated.get("License-Expression"):
        return str(expression)
    classified = [each.rpartition(" :: ")[2] for each in stated.get_all("Classifier") or [] if each.startswith("License ::")]
    return ", ".join(classified) or (stated.get("License") or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
