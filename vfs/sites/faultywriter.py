"""A wrapper around any writer that injects scripted faults and counts calls and bytes, as `faults.py` does for reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from vfs.model import SitePath, Version
from vfs.sites.faults import Cut, Delay, Fail, Stall
from vfs.sites.protocol import Piece
from vfs.sites.writing import Body, SiteWriter, Upload

T = TypeVar("T")
WriteVerb = Literal["begin", "received", "send", "finish", "abandon", "remove", "rename"]


@dataclass(frozen=True, slots=True)
class Lost:
    """The store does it, but its answer never arrives."""

    cut: Cut


WriteFault = Fail | Stall | Cut | Lost | Delay


class FaultyWriter:
    """Passes calls on to another writer, unless a fault strikes.

    Attributes:
        calls: by verb.
        bytes: that sends took from their bodies.
        finished: paths, in the order in which they got their names.
    """

    def __init__(self, inner: SiteWriter) -> None:
        self._inner = inner
        self.renames = inner.renames
        self._rules: list[tuple[WriteVerb, WriteFault, int, int, str]] = []
        self._seen: Counter[tuple[WriteVerb, str]] = Counter()
        self.calls: Counter[str] = Counter()
        self.bytes = 0
        self.finished: list[SitePath] = []

    def inject(self, verb: WriteVerb, fault: WriteFault, *, at: int = 1, times: int = 1, path: str = "") -> None:
        """Let the fault strike `times` calls of the verb, beginning with the `at`-th from now, of `path` or of any."""
        first = self._seen[verb, path] + at
        self._rules.append((verb, fault, first, first + times - 1, path))

    def heal(self) -> None:
        """Remove all faults; calls that stall already go on waiting for their gate."""
        self._rules.clear()

    async def begin(self, path: SitePath, size: int, token: str) -> Upload:
        await self._before("begin", path)
        return await self._inner.begin(path, size, token)

    async def received(self, upload: Upload) -> Mapping[int, str]:
        await self._before("received", upload.path)
        return await self._inner.received(upload)

    async def send(self, upload: Upload, index: int, body: Body, known: str = "") -> str:
        fault = await self._before("send", upload.path)
        receipt = await self._inner.send(upload, index, _Disturbed(body, fault, self), known)
        return _answered(receipt, fault)

    async def finish(self, upload: Upload, receipts: Mapping[int, str]) -> Version:
        fault = await self._before("finish", upload.path)
        version = await self._inner.finish(upload, receipts)
        self.finished.append(upload.path)
        return _answered(version, fault)

    async def abandon(self, upload: Upload, receipts: Mapping[int, str] = {}) -> None:
        await self._before("abandon", upload.path)
        await self._inner.abandon(upload, receipts)

    async def make_directory(self, path: SitePath) -> None:
        await self._inner.make_directory(path)

    async def remove(self, path: SitePath, *, directory: bool = False) -> None:
        fault = await self._before("remove", path)
        await self._inner.remove(path, directory=directory)
        _answered(None, fault)

    async def rename(self, path: SitePath, new_path: SitePath) -> None:
        fault = await self._before("rename", path)
        await self._inner.rename(path, new_path)
        _answered(None, fault)

    async def close(self) -> None:
        await self._inner.close()

    async def _before(self, verb: WriteVerb, path: str) -> WriteFault | None:
        """Count a call and let its fault strike as far as that is done before the call; return the fault."""
        self.calls[verb] += 1
        for key in {(verb, path), (verb, "")}:
            self._seen[key] += 1
        fault = next((rule[1] for rule in self._rules if self._strikes(rule, verb, path)), None)
        match fault:
            case Fail(error):
                raise error
            case Delay(wait):
                await wait()
            case Stall(after=0):
                await fault.hold()
        return fault

    def _strikes(self, rule: tuple[WriteVerb, WriteFault, int, int, str], verb: WriteVerb, path: str) -> bool:
        own_verb, _, first, last, own_path = rule
        return own_verb == verb and own_path in ("", path) and first <= self._seen[verb, own_path] <= last


@dataclass(frozen=True, slots=True)
class _Disturbed:
    """A body whose reader meets the fault at its place."""

    inner: Body
    fault: WriteFault | None
    counts: FaultyWriter

    @property
    def length(self) -> int:
        return self.inner.length

    async def pieces(self) -> AsyncIterator[Piece]:
        passed = 0
        async for piece in self.inner.pieces():
            match self.fault:
                case Cut(after=after) if passed + len(piece) > after:
                    raise self.fault.error
                case Stall(after=after) if after and passed + len(piece) > after:
                    await self.fault.hold()
            passed += len(piece)
            self.counts.bytes += len(piece)
            yield piece


def _answered(value: T, fault: WriteFault | None) -> T:
    if isinstance(fault, Lost):
        raise fault.cut.error
    return value
