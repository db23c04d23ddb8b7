"""The policy in force: the last set of documents that could be used, and how it is replaced.

No task of its own. The agent runs `watch.watch`; the fs worker calls `reload_if_changed`, which costs one stat for each
document when nothing has changed. Reading 1,000 rules takes some 0.2 s, most of it in tomllib: both calls may be made from a
thread while others decide, because `current` is replaced in one step.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Sequence

import msgspec

from vfs.errors import InvalidPolicy
from vfs.policy.diff import Change, diff
from vfs.policy.engine import RuleSet
from vfs.policy.loader import compile_rules, expand, read

Stamp = tuple[tuple[str, int, int, int], ...]


class PolicySet(msgspec.Struct, frozen=True):
    """Documents that hold together.

    Attributes:
        rules: compiled.
        version: hex digest over the documents' names and texts, in order; the ETag of the admin API.
    """

    rules: RuleSet
    version: str


class Reload(msgspec.Struct, frozen=True):
    """What a reload did.

    Attributes:
        before, after: versions.
        changes: in what the rules do; empty where only comments changed.
    """

    before: str
    after: str
    changes: tuple[Change, ...]


class PolicyStore:
    """Holds the set in force.

    Attributes:
        current: replaced as a whole, never changed: what was decided with it stays explainable.
        error: why the documents as they are now can't be used, or None.
        _stamp: what stat said of the documents before they were last read, used or not.
        _reloading: held while documents are read, so that an older reading never replaces a newer one.
    """

    def __init__(self, sources: Sequence[str], *, base: str = "", sites: Collection[str] | None = None) -> None:
        """Load the documents.

        Args:
            sources: as `foremount.toml` names them: shipped documents, files, directories.
            base: directory that relative paths start from.
            sites: names in the configuration; None: rules may name any.
        Raises:
            InvalidPolicy: they can't be used.
        """
        self._sources = tuple(sources)
        self._base = base
        self._sites = sites
        self._reloading = threading.Lock()
        self._stamp = self._take_stamp()
        self.error: InvalidPolicy | None = None
        self.current = self._load()

    def reload(self) -> Reload:
        """Read the documents again and put them in force.

        Raises:
            InvalidPolicy: they can't be used; the set before stays in force, and `error` says so until a reload succeeds.
        """
        with self._reloading:
            self._stamp = self._take_stamp()  # before reading: a change meanwhile is seen by the next look
            try:
                fresh = self._load()
            except InvalidPolicy as exc:
                self.error = exc
                raise
            before, self.current, self.error = self.current, fresh, None
        return Reload(before.version, fresh.version, tuple(diff(before.rules, fresh.rules)))

    def reload_if_changed(self) -> Reload | None:
        """Reload where a document was changed, added or removed since the last time; None where nothing was.

        Raises:
            InvalidPolicy: as `reload`, once for each change.
        """
        return self.reload() if self._take_stamp() != self._stamp else None

    def _load(self) -> PolicySet:
        texts = read(self._sources, self._base)
        version = hashlib.sha256()
        for text in texts:
            for part in (text.source, text.text):
                version.update(f"{len(part)}:{part}".encode())
        return PolicySet(compile_rules(texts, self._sites), version.hexdigest()[:16])

    def _take_stamp(self) -> Stamp:
        """Return what changes when a document is written, replaced, added or removed."""
        try:
            paths = [path for path in expand(self._sources, self._base) if not path.startswith("shipped:")]
            return tuple(_stamp_of(path) for path in paths)
        except (InvalidPolicy, OSError):
            return ()  # one is missing: `read` says which

    def directories(self) -> set[str]:
        """Return the directories that hold documents: editors replace files, so a watch on the file itself would be lost."""
        paths = [os.path.join(self._base, source) for source in self._sources if not source.startswith("shipped:")]
        found = {path if os.path.isdir(path) else os.path.dirname(path) or "." for path in paths}
        return {path for path in found if os.path.isdir(path)}


def _stamp_of(path: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size, status.st_ino
