"""What loads of a checkpoint taught, kept in the catalog for the next step, the next shard and the next agent."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from vfs.checkpoints.learned import Learned
from vfs.checkpoints.patterns import generalise
from vfs.extents.layout import Identity

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(Learned)


class LessonShelf(Protocol):
    """Keeps them by name: the catalog."""

    def learned(self, name: str) -> bytes | None: ...

    def learn(self, name: str, lesson: bytes) -> None: ...


class Lessons:
    """Finds and keeps lessons by the path with its numbers left out: `run/step_*/model-*-of-*.safetensors`."""

    def __init__(self, catalog: LessonShelf) -> None:
        self._catalog = catalog

    def find(self, identity: Identity) -> Learned | None:
        """Return what the last load of such a file taught."""
        raw = self._catalog.learned(_name(identity))
        try:
            return None if raw is None else _decoder.decode(raw)
        except msgspec.DecodeError:
            log.info("a lesson of another version is forgotten: %s", _name(identity))
            return None

    def keep(self, identity: Identity, learned: Learned) -> None:
        """Keep what this load taught."""
        self._catalog.learn(_name(identity), msgspec.msgpack.encode(learned))


def _name(identity: Identity) -> str:
    pattern, _ = generalise(identity.path)
    return f"{identity.site}:{pattern}"
