"""Which listed names are shown. Pure but for one log record for each listing that holds others."""

from __future__ import annotations

import logging

from vfs.model import SiteName, SitePath, can_posix_carry
from vfs.sites.writing import HIDDEN_PREFIX

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
        """Return whether the name is shown: not what is being uploaded, nor what Linux can't carry, the first of which is
        logged."""
        if name.startswith(HIDDEN_PREFIX):
            return False
        if can_posix_carry(name):
            return True
        if not self.skipped:
            logger.warning("%s:%s: names that POSIX can't carry are left out, first %a", self._site, self._path, name[:80])
        self.skipped += 1
        return False
