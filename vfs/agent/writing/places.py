"""Where at the origins something of a node may be, and who is in whose way there.

Pure: no I/O, no clock.

What a step may bring about at an origin is noted in the node's record before the step begins, and struck out when that is
done or undone. So the records say, whatever is killed, all the places where something may be that this host has sent. A node
is *displaced* where it has something at a place that is not, or no longer, its own: nobody else's content goes there, and
nothing is removed there, before it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from vfs.model import SiteName, SitePath, Version
from vfs.namespace.staged import At, Staged, StagedKind, Upload, UploadState
from vfs.sites import writing

Place = tuple[SiteName, SitePath]


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """What is noted of an upload that has begun."""

    site: SiteName
    upload: writing.Upload


_encoder = msgspec.msgpack.Encoder()
_resume = msgspec.msgpack.Decoder(Resume)


def noted(resume: Resume) -> bytes:
    """Return what a record keeps of an upload."""
    return _encoder.encode(resume)


def resume_of(record: Upload | None) -> Resume | None:
    """Return what an earlier try, of this process or another, had begun; None where nothing is to be resumed."""
    if record is None or record.state is UploadState.DONE or not record.resume:
        return None
    try:
        return _resume.decode(record.resume)
    except msgspec.DecodeError:
        return None


def left_by(record: Upload | None) -> tuple[At, ...]:
    """Return where finished content of a node may be, the latest last, when other content of it is about to be sent."""
    if record is None:
        return ()
    found = list(record.left)
    if record.at is not None:
        found.append(record.at)
        if record.moving:
            found.append(At(record.moving, Version(record.at.version.size)))
    return tuple({at.path: at for at in found}.values())


def places_of(node: Staged | None, record: Upload | None, site: SiteName) -> set[Place]:
    """Return where something of a file may be.

    Args:
        site: where the node is to be.
    """
    if node is not None and node.kind is not StagedKind.FILE:
        return set()
    if record is None:
        return {(site, node.at.path)} if node is not None and node.settled and node.at is not None else set()
    found = {(record.site or site, at.path) for at in left_by(record)}
    begun = resume_of(record)
    return found | {(begun.site, begun.upload.path)} if begun is not None else found


def cleared(record: Upload, path: SitePath) -> Upload:
    """Return the record of a node of which nothing is at a path any more."""
    begun = resume_of(record)
    if begun is not None and begun.upload.path == path:
        record = replace(record, resume=b"", sent=0)
    if record.at is not None and record.at.path == path:
        record = replace(record, at=None, state=UploadState.FAILED)
    if record.moving == path:
        record = replace(record, moving=SitePath(""))
    return replace(record, left=tuple(at for at in record.left if at.path != path))


def is_unchanged(old: Version, new: Version) -> bool:
    """Return whether two versions are one content; the generation may tell that the first one was too young to last."""
    return (old.size, old.mtime_ns, old.etag) == (new.size, new.mtime_ns, new.etag)


def is_ours(left: Version, found: Version) -> bool:
    """Return whether what is found is what was left; of what was not finished only the size is known."""
    return is_unchanged(left, found) or left == Version(found.size)


class Places:
    """State object.

    Attributes:
        busy: where a step is under way.
        _displaced: of each node that is, the places that it has to leave.
        _who: the same, by place.
    """

    def __init__(self) -> None:
        self.busy: set[Place] = set()
        self._displaced: dict[int, set[Place]] = {}
        self._who: dict[Place, set[int]] = {}

    def note(self, node_id: int, displaced: set[Place]) -> None:
        """Say which places a node has to leave."""
        if self._displaced.get(node_id, set()) == displaced:
            return
        for place in self._displaced.pop(node_id, set()):
            self._who[place].discard(node_id)
            if not self._who[place]:
                del self._who[place]
        if displaced:
            self._displaced[node_id] = displaced
        for place in displaced:
            self._who.setdefault(place, set()).add(node_id)

    def is_displaced(self, node_id: int) -> bool:
        """Return whether a node has something at a place that is not its own."""
        return node_id in self._displaced

    def at(self, place: Place, *, below: bool) -> Iterator[int]:
        """Yield the displaced nodes at a place, with `below` those in the directory of that name as well."""
        yield from self._who.get(place, ())
        if below:
            for each in _below(self._who, place):
                yield from self._who[each]

    def is_free(self, places: Iterable[Place], *, below: bool) -> bool:
        """Return whether no step is under way at any of these places, with `below` nor in the directories of these names."""
        return not any(place in self.busy or (below and any(_below(self.busy, place))) for place in places)

    def goes_round(self, node_id: int, blockers: Callable[[int], Iterable[int]]) -> bool:
        """Return whether a displaced node waits for itself, by way of those that it waits for.

        Args:
            blockers: the displaced nodes that a node waits for.
        """
        seen: set[int] = set()
        rest = list(blockers(node_id))
        while rest:
            other = rest.pop()
            if other == node_id:
                return True
            if other not in seen:
                seen.add(other)
                rest.extend(blockers(other))
        return False


def _below(places: Iterable[Place], place: Place) -> Iterator[Place]:
    site, path = place
    above = path + "/" if path else ""
    return (each for each in places if each[0] == site and each[1].startswith(above) and each != place)
