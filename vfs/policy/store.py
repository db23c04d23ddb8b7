"""The policy in force: the last set of documents that could be used, and how it is replaced.

That set is kept as a file too: a process that is started again while a document is broken goes on with it.

No task of its own. The agent runs `watch.watch`; the fs worker calls `reload_if_changed`, which costs one stat for each
document when nothing has changed. Reading 1,000 rules takes 0.1 s of a core, most of it in tomllib: both calls may be made
from a thread while others decide, because `current` is replaced in one step, and they rest often.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec

from vfs.errors import InvalidPolicy
from vfs.policy.diff import Change, diff
from vfs.policy.engine import Breathe, RuleSet, hold_breath
from vfs.policy.loader import Text, compile_rules, expand, read
from vfs.policy.values import DEFAULTS, Values

log = logging.getLogger(__name__)
_BURST_S = 0.0002
_REST_S = 0.0003
"""Of the thread that reads documents: 1,000 rules take 0.3 s then, and an open waits for no more than one burst."""
Stamp = tuple[tuple[str, int, int, int], ...]


class PolicySet(msgspec.Struct, frozen=True):
    """Documents that hold together.

    Attributes:
        rules: compiled.
        version: hex digest over the documents' names and texts, in order; the ETag of the admin API.
        texts: that they were compiled from.
    """

    rules: RuleSet
    version: str
    texts: tuple[Text, ...] = ()


class Reload(msgspec.Struct, frozen=True):
    """What a reload did.

    Attributes:
        before, after: versions.
        changes: in what the rules do; empty where only comments changed.
    """

    before: str
    after: str
    changes: tuple[Change, ...]


class _Kept(msgspec.Struct, frozen=True):
    """The last good set as a file. Another list of sources in `foremount.toml` makes it useless."""

    sources: tuple[str, ...]
    texts: list[Text]


class PolicyStore:
    """Holds the set in force.

    Attributes:
        current: replaced as a whole, never changed: what was decided with it stays explainable.
        error: why the documents as they are now can't be used, or None.
        _stamp: what stat said of the documents before they were last read, used or not.
        _reloading: held while documents are read, so that an older reading never replaces a newer one.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        base: str = "",
        sites: Collection[str] | None = None,
        defaults: Values = DEFAULTS,
        last_good: str | None = None,
    ) -> None:
        """Load the documents, or where they can't be used, the last good set.

        Args:
            sources: as `foremount.toml` names them: shipped documents, files, directories.
            base: directory that relative paths start from.
            sites: names in the configuration; None: rules may name any.
            defaults: what holds where no rule says otherwise.
            last_good: file that the set in force is kept in for the next start; None: it is not.
        Raises:
            InvalidPolicy: they can't be used, and there is no last good set.
        """
        self._sources = tuple(sources)
        self._base = base
        self._sites = sites
        self._defaults = defaults
        self._last_good = last_good
        self._reloading = threading.Lock()
        self._stamp = self._take_stamp()
        self.error: InvalidPolicy | None = None
        try:
            self.current = self._load()
        except InvalidPolicy as exc:
            kept = self._load_last_good()
            if kept is None:
                raise
            self.current, self.error = kept, exc

    def reload(self) -> Reload:
        """Read the documents again and put them in force.

        Raises:
            InvalidPolicy: they can't be used; the set before stays in force, and `error` says so until a reload succeeds.
        """
        with self._reloading, _uncollected():
            self._stamp = self._take_stamp()  # before reading: a change meanwhile is seen by the next look
            pace = _Pace()
            try:
                fresh = self._load(pace)
            except InvalidPolicy as exc:
                self.error = exc
                raise
            before, self.current, self.error = self.current, fresh, None
            return Reload(before.version, fresh.version, tuple(diff(before.rules, fresh.rules, pace)))

    def reload_if_changed(self) -> Reload | None:
        """Reload where a document was changed, added or removed since the last time; None where nothing was.

        Raises:
            InvalidPolicy: as `reload`, once for each change.
        """
        return self.reload() if self._take_stamp() != self._stamp else None

    def _load(self, breathe: Breathe = hold_breath) -> PolicySet:
        texts = read(self._sources, self._base)
        fresh = self._compile(texts, breathe)
        self._keep(texts)
        return fresh

    def _compile(self, texts: list[Text], breathe: Breathe = hold_breath) -> PolicySet:
        version = hashlib.sha256()
        for text in texts:
            for part in (text.source, text.text):
                version.update(f"{len(part)}:{part}".encode())
        rules = compile_rules(texts, self._sites, self._defaults, breathe)
        return PolicySet(rules, version.hexdigest()[:16], tuple(texts))

    def _keep(self, texts: list[Text]) -> None:
        """Write the set down for the next start; a full disk costs that, not the reload."""
        if self._last_good is None:
            return
        fresh = f"{self._last_good}.{os.getpid()}"
        try:
            with open(fresh, "wb") as file:
                file.write(msgspec.json.encode(_Kept(self._sources, texts)))
            os.replace(fresh, self._last_good)
        except OSError as exc:
            log.warning("%s: the policy in force can't be kept: %s", self._last_good, exc.strerror)

    def _load_last_good(self) -> PolicySet | None:
        if self._last_good is None:
            return None
        with contextlib.suppress(OSError, msgspec.DecodeError, InvalidPolicy), open(self._last_good, "rb") as file:
            kept = msgspec.json.decode(file.read(), type=_Kept)
            if kept.sources == self._sources:
                return self._compile(kept.texts)
        return None

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


class _Pace:
    """Rests between bursts of work, without the interpreter.

    A thread that computes without a rest is put aside by a busy host's scheduler when its share is used up, and takes the
    interpreter along: every loop of the process waits for others to use up theirs. One that rests runs when it wakes.
    """

    def __init__(self) -> None:
        self._until_s = time.monotonic() + _BURST_S

    def __call__(self) -> None:
        if time.monotonic() >= self._until_s:
            time.sleep(_REST_S)
            self._until_s = time.monotonic() + _BURST_S


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles away, and what is made meanwhile out of its sight for good.

    1,000 rules are 100,000 objects without cycles. Looking through all of them holds up every thread of the process: 70 ms
    (2026-11), the longest open of a reload. They are freed all the same when the next set replaces them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _stamp_of(path: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size, status.st_ino
