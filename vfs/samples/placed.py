"""What the agent has placed: the samples whose step comes next, so that their names cost nobody a question.

Pure: no I/O, no clock. State: messages of the agent in, what to do with the kernel out.
"""

from __future__ import annotations

from vfs.model import Kind, split
from vfs.samples import tree
from vfs.samples.wire import Dropped, Node, Placed


class Placements:
    """Placed samples by directory.

    Invariants: no directory is empty; what is in `_waiting` or `_untold` is in `_directories`.
    """

    def __init__(self) -> None:
        self._directories: dict[str, dict[str, Node]] = {}
        self._waiting: set[str] = set()
        self._untold: set[str] = set()

    def renew(self) -> None:
        """Another agent is there: it tells anew what is placed, and knows of no reader."""
        self._untold = set(self._directories)
        self._waiting = {directory for directory in self._directories if isinstance(tree.parse(directory), tree.RankPlace)}

    @property
    def untold(self) -> list[str]:
        """Return what the agent before has placed and this one has not told of: its files may be gone."""
        return sorted(self._untold)

    def place(self, told: Placed) -> None:
        """Samples are ready; those of earlier messages about the directory stay."""
        if not told.nodes:
            return
        if told.directory not in self._directories and isinstance(tree.parse(told.directory), tree.RankPlace):
            self._waiting.add(told.directory)
        found = self._directories.setdefault(told.directory, {})
        self._untold.discard(told.directory)
        found.update((split(node.path)[1], node) for node in told.nodes)

    def drop(self, told: Dropped) -> list[str]:
        """Samples go; return the directories that the kernel is to forget with all that is in them.

        A step goes as a whole with the last of its ranks: it is not going to be read again.
        """
        gone = []
        for directory in told.directories:
            self._directories.pop(directory, None)
            self._waiting.discard(directory)
            self._untold.discard(directory)
            step = split(directory)[0]
            is_rank = isinstance(tree.parse(directory), tree.RankPlace)
            left = any(split(other)[0] == step for other in self._directories)
            gone.append(step if is_rank and not left else directory)
        return list(dict.fromkeys(gone))

    def find(self, path: str) -> Node | None:
        """Return the placed sample of this path."""
        directory, name = split(path)
        return self._directories.get(directory, {}).get(name)

    def leading(self, path: str) -> Node | None:
        """Return the directory of this path if samples are placed in or below it."""
        for directory, samples in self._directories.items():
            if directory == path or directory.startswith(path + "/"):
                when = next(iter(samples.values())).mtime_ns  # of the schedule, as that of its directories
                return Node(path, Kind.DIRECTORY, mtime_ns=when)
        return None

    def has(self, directory: str) -> bool:
        """Return whether samples are placed in this directory."""
        return directory in self._directories

    def is_waiting(self, directory: str) -> bool:
        """Return whether the directory of a rank waits for its first reader."""
        return directory in self._waiting

    def enter(self, directory: str) -> bool:
        """A reader has come to the directory; return whether the agent has to be told: once for each placing of a rank."""
        waited = directory in self._waiting
        self._waiting.discard(directory)
        return waited

    def merged(self, directory: str, listed: list[Node]) -> list[Node]:
        """Return a listing with what is placed in it."""
        placed = self._directories.get(directory, {})
        return [placed.get(split(node.path)[1], node) for node in listed]

    def inside(self, directory: str) -> list[Node]:
        """Return what is placed in a directory."""
        return list(self._directories.get(directory, {}).values())
