"""Which listed names are shown. Pure but for one log record for each listing that holds others."""

from __future__ import annotations

import logging

from vfs.model import SiteName, SitePath, can_posix_carry

logger = logging.getLogger(__name__)


class NameFilter:
    """Remembers within one listing whether the warning was given.

    Attributes:
        skipped: names left out so far.
    """

    def __init__(self, site: SiteName, path: SitePath) -> None:
        self._site = site
        self._path = path
        self.skipped = 0

    def admits(self, name: str) -> bool:
        """Return whether Linux can show the name; the first one that it can't is logged."""
        if can_posix_carry(name):
            return True
        if not self.skipped:
            logger.warning("%s:%s: names that POSIX can't carry are left out, first %a", self._site, self._path, name[:80])
        self.skipped += 1
        return False
