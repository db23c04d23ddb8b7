"""Names that change while files are uploaded: whatever is renamed, removed, made again and killed, the origin comes to hold
what is staged, each file with its own bytes, and nothing else that came from here."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.staging import Staging
from tests.unit.test_agent_uploads import LAKE, LIMITS, PART, Host
from vfs.agent.writing.uploads import Uploads
from vfs.errors import Unavailable
from vfs.model import split
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.journal import content_path
from vfs.namespace.staged import Change, Drop, Staged, StagedKind, UploadState
from vfs.sites.faults import Cut, Fail
from vfs.sites.faultywriter import FaultyWriter, Lost
from vfs.sites.local import LocalSite
from vfs.sites.localwriter import LocalWriter

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "e/a", "e/d/a", "d", "e"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("turns"), st.integers(1, 40)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("fail"), st.sampled_from(["begin", "send", "finish", "rename", "remove"]), st.booleans()),
    st.tuples(st.just("kill")),
    st.tuples(st.just("free"), NAMES),
)
SIZES = (0, 1, PART // 4, PART // 4, 3 * PART)
"""Some alike, so that what has the size of another file may not be taken for it; one in several parts."""


class Worker:
    """States in the journal what a user does, as the fs worker does, and takes in what the agent has brought about."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._journal = host.staging.journal
        self._nodes = host.staging.journal.nodes
        self._serial = itertools.count(1)
        self._contents: dict[int, bytes] = {}

    def find(self, path: str) -> Staged | None:
        """Return the node of a path; None where a directory of it is missing or nothing is there."""
        node: Staged | None = self._host.staging.node("")
        for name in path.split("/"):
            if node is None or node.kind is not StagedKind.DIRECTORY:
                return None
            node = self._nodes.child(node.id, name)
        return node

    def directory(self, path: str) -> Staged | None:
        """Return a directory, made where there is none; None where a file is in the way."""
        if not path:
            return self._host.staging.node("")
        parent, name = split(path)
        above = self.directory(parent)
        if above is None:
            return None
        old = self._nodes.child(above.id, name)
        if old is None or old.kind is StagedKind.ABSENT:
            made = Staged(id=self._journal.next_id(), parent=above.id, name=name, kind=StagedKind.DIRECTORY, seq=1)
            if old is not None:
                if self._nodes.children(old.id):
                    made = replace(made, id=old.id, seq=old.seq + 1)
                else:
                    self._journal.append([Drop(old.id)])
                made = replace(made, hides=StagedKind.DIRECTORY)
            self._journal.append([made])
            return made
        return old if old.kind is StagedKind.DIRECTORY else None

    def write(self, path: str) -> None:
        parent, name = split(path)
        above = self.directory(parent)
        if above is None:
            return
        old = self._nodes.child(above.id, name)
        if old is not None and (old.kind is StagedKind.DIRECTORY or self._nodes.children(old.id)):
            return
        if old is None or old.kind is StagedKind.ABSENT:
            hides = None if old is None else StagedKind.DIRECTORY if old.through else StagedKind.FILE
            node = Staged(id=self._journal.next_id(), parent=above.id, name=name, kind=StagedKind.FILE, hides=hides)
        else:
            node = old
        content = node.content or self._journal.next_id()
        number = next(self._serial)
        body = self._contents[node.id] = bytes([number % 256]) * SIZES[number % len(SIZES)]
        Path(content_path(self._host.staging.directory, content)).write_bytes(body)
        self._journal.append(
            [*([Drop(old.id)] if old is not None and old.id != node.id else []), replace(node, content=content)]
        )
        found = self._nodes.get(node.id)
        assert found is not None
        self._host.staging.complete(found)

    def _leave(self, node: Staged) -> list[Staged]:
        if node.hides is None and node.at is None and self._host.catalog.upload(node.id) is None:
            return []
        is_directory = node.kind is StagedKind.DIRECTORY
        number = self._journal.next_id()
        return [Staged(id=number, parent=node.parent, name=node.name, kind=StagedKind.ABSENT, through=is_directory, seq=1)]

    def remove(self, path: str) -> None:
        node = self.find(path)
        if node is None or node.kind is StagedKind.ABSENT:
            return
        if node.kind is StagedKind.FILE:
            self._journal.append([Drop(node.id), *self._leave(node)])
        elif all(child.kind is StagedKind.ABSENT for child in self._nodes.children(node.id)):
            keeps = self._nodes.children(node.id) or self._leave(node)
            absent = replace(node, kind=StagedKind.ABSENT, through=True, seq=node.seq + 1)
            self._journal.append([absent if keeps else Drop(node.id)])

    def rename(self, path: str, new_path: str) -> None:
        node = self.find(path)
        if node is None or node.kind is StagedKind.ABSENT or path == new_path or new_path.startswith(path + "/"):
            return
        parent, name = split(new_path)
        above = self.find(parent) if parent else self._host.staging.node("")
        if above is None or above.kind is not StagedKind.DIRECTORY:
            return
        old = self._nodes.child(above.id, name)
        changes: list[Change] = []
        hides = None
        if old is not None:
            children = self._nodes.children(old.id)
            if old.kind not in (StagedKind.ABSENT, node.kind) or any(each.kind is not StagedKind.ABSENT for each in children):
                return
            if children and node.kind is not StagedKind.DIRECTORY:
                return
            for child in children:
                taken = self._nodes.child(node.id, child.name) is not None
                if taken and self._nodes.children(child.id):
                    return
                changes.append(Drop(child.id) if taken else replace(child, parent=node.id))
            if old.kind is not StagedKind.ABSENT:
                hides = old.kind if self._leave(old) else None
            else:
                hides = StagedKind.DIRECTORY if old.through else StagedKind.FILE
            changes.append(Drop(old.id))
        moved = replace(node, parent=above.id, name=name, hides=hides)
        self._journal.append([*changes, moved, *self._leave(node)])

    def free(self, path: str) -> None:
        """Let go of content that the origin holds."""
        node = self.find(path)
        if node is not None and node.settled and node.content:
            self._journal.append([replace(node, content=0)])

    def follow(self) -> None:
        """Take in what the agent has brought about."""
        for node_id, upload in sorted(self._host.catalog.uploads().items(), reverse=True):
            node = self._nodes.get(node_id)
            if node is None or upload.state is not UploadState.DONE or upload.seq != node.seq:
                continue
            if node.kind is StagedKind.ABSENT:
                if not self._nodes.children(node_id):
                    self._journal.append([Drop(node_id, retired=True)])
            elif not node.settled or node.at != upload.at:
                self._journal.append([replace(node, at=upload.at, settled_seq=upload.seq, settled_ns=upload.done_ns)])

    def expected(self) -> dict[str, bytes]:
        """Return what the origin is to hold: contents, of directories nothing."""
        found = {}
        for node in self._nodes:
            path = self._nodes.path(node)
            if path and node.kind is StagedKind.DIRECTORY:
                found[path + "/"] = b""
            elif path and node.kind is StagedKind.FILE:
                found[str(path)] = self._contents[node.id]
        return found


async def play(host: Host, steps: list[tuple[object, ...]], *, renames: bool) -> None:
    """Do the steps, with an agent that is killed now and then; then wait until the origin is as it is to be."""
    worker = Worker(host)
    left = list(steps)
    while left:
        async with host.agent() as uploads:
            while left:
                match left.pop(0):
                    case ("kill",):
                        break
                    case ("turns", int(count)):
                        for _ in range(count):
                            uploads.wake()
                            await asyncio.sleep(0)
                    case ("settle",):
                        await quiet(host, worker, uploads)
                    case ("fail", str(verb), bool(after)):
                        host.writer.inject(verb, Lost(Cut(0)) if after else Fail(Unavailable("lake")))  # type: ignore[arg-type]
                    case ("free", str(path)) if renames:
                        worker.follow()
                        worker.free(path)
                    case (str(verb), *arguments) if verb != "free":
                        getattr(worker, verb)(*arguments)
    host.writer.heal()
    async with host.agent() as uploads:
        await quiet(host, worker, uploads)
    assert at_origin(Path(host.base / "origin")) == worker.expected()


async def quiet(host: Host, worker: Worker, uploads: Uploads) -> None:
    """Wait until there is nothing left to do."""

    def is_quiet() -> bool:
        worker.follow()
        nodes = host.staging.journal.nodes
        return not (
            uploads.busy
            or any(uploads.nodes.get(node.id) != node for node in nodes)
            or len(uploads.nodes) != len(nodes)
            or uploads.pending()
            or host.catalog.uploads().keys() - {node.id for node in nodes}
            or any(node.kind is StagedKind.ABSENT for node in nodes)
        )

    try:
        await host.until(uploads, is_quiet)
    except TimeoutError:
        nodes = list(host.staging.journal.nodes)
        raise AssertionError(
            f"{nodes}\n{host.catalog.uploads()}\n{vars(uploads._places)} {uploads._dirty} {uploads._rests} {uploads._running}"
        ) from None


def at_origin(root: Path) -> dict[str, bytes]:
    """Return contents by path, of directories nothing."""
    base = root / "deep/base"
    return {
        str(path.relative_to(base)) + "/" * path.is_dir(): b"" if path.is_dir() else path.read_bytes()
        for path in base.rglob("*")
    }


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("renames", [True, False], ids=["renames", "can't rename"])
@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=50, deadline=None)
def test_the_origin_comes_to_hold_what_is_staged(renames: bool, steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        base = Path(made)
        (base / "origin").mkdir()
        (base / "staging").mkdir()
        site = LocalSite(LAKE, str(base / "origin"))
        inner = LocalWriter(LAKE, str(base / "origin"), part_bytes=PART)
        inner.renames = renames
        catalog = CatalogWriter(str(base / "catalog.lmdb"))
        host = Host(base, site, FaultyWriter(inner), Staging(base / "staging"), catalog, LIMITS)  # type: ignore[arg-type]
        try:
            asyncio.run(play(host, steps, renames=renames))
        finally:
            host.staging.close()
            catalog.close()
