"""A staging area without a kernel: writes the journal as the fs worker does, for tests of the agent's half."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from vfs.model import LakePath, split
from vfs.namespace.journal import JournalWriter, content_path
from vfs.namespace.staged import NOWHERE, Drop, Staged, StagedKind


class Staging:
    """One mount's staging area; paths are lake paths below `prefix`, whose node is made at once."""

    def __init__(self, directory: Path, prefix: str = "") -> None:
        self.directory = str(directory)
        self.journal = JournalWriter(self.directory, fresh=True)
        self._prefix = prefix
        if self.journal.nodes.child(NOWHERE, prefix) is None:
            root = self._new(NOWHERE, prefix, StagedKind.DIRECTORY)
            self.journal.append([replace(root, through=True)])

    def node(self, path: str) -> Staged:
        """Return the node of a path; the directories above are made."""
        if path == self._prefix:
            found = self.journal.nodes.child(NOWHERE, self._prefix)
            assert found is not None
            return found
        parent, name = split(path)
        above = self.node(parent)
        found = self.journal.nodes.child(above.id, name)
        if found is None:
            found = self._new(above.id, name, StagedKind.DIRECTORY)
            self.journal.append([found])
        return found

    def begin(self, path: str) -> Staged:
        """Make a file that somebody is writing."""
        parent, name = split(path)
        node = self._new(self.node(parent).id, name, StagedKind.FILE)
        content = self.journal.next_id()
        Path(content_path(self.directory, content)).touch()
        self.journal.append([node := replace(node, content=content, writing=True)])
        return node

    def write(self, path: str, body: bytes) -> Staged:
        """Have a file of this content, complete: made, or written again."""
        parent, name = split(path)
        node = self.journal.nodes.child(self.node(parent).id, name)
        if node is None or node.kind is not StagedKind.FILE:
            node = self.begin(path)
        Path(content_path(self.directory, node.content)).write_bytes(body)
        return self.complete(node)

    def complete(self, node: Staged) -> Staged:
        """Note the last close."""
        found = os.stat(content_path(self.directory, node.content))
        current = self.journal.nodes.get(node.id)
        assert current is not None
        done = replace(
            current,
            writing=False,
            seq=current.seq + 1,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            written_ns=time.time_ns(),
            synced_ns=time.time_ns(),
        )
        self.journal.append([done])
        return done

    def rename(self, path: str, new_path: str) -> Staged:
        """Rename a file or directory over nothing, leaving no name to be removed: it was never at the origin."""
        node = self.node(path)
        parent, name = split(new_path)
        moved = replace(node, parent=self.node(parent).id, name=name)
        self.journal.append([moved])
        return moved

    def remove(self, path: str) -> Staged:
        """Have a name go from the origin."""
        parent, name = split(path)
        above = self.node(parent)
        old = self.journal.nodes.child(above.id, name)
        absent = self._new(above.id, name, StagedKind.ABSENT)
        self.journal.append([*([Drop(old.id)] if old is not None else []), absent])
        return absent

    def drop(self, node: Staged, *, retired: bool = False) -> None:
        """Let the journal hold the node no more."""
        self.journal.append([Drop(node.id, retired=retired)])

    def path(self, node: Staged) -> LakePath | None:
        """Return where a node is to be."""
        return self.journal.nodes.path(node)

    def close(self) -> None:
        """Let another have the area."""
        self.journal.close()

    def _new(self, parent: int, name: str, kind: StagedKind) -> Staged:
        number = self.journal.next_id()
        self.journal.nodes.next_id = max(self.journal.nodes.next_id, number + 1)
        return Staged(id=number, parent=parent, name=name, kind=kind)
