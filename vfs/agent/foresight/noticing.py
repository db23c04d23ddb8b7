"""What a mount notices of checkpoints by itself, told to the controller: a save begins, a file is at its origin, a commit.

The job is called as the directory in which the checkpoint's own lies: `ckpt/run7/step_1000` is of `run7`.

Tasks: one that tells, in order and until it was heard; the queue is bounded, and an agent that ends forgets it. What was
committed in the last day is told again after a start: it counts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping

import msgspec
import xxhash

from vfs.agent.writing.checkpoints import checkpoint_directory
from vfs.agent.writing.places import is_unchanged
from vfs.agent.writing.uploads import RACY_S
from vfs.backoff import doubled_s
from vfs.checkpoints.commit import step_of
from vfs.checkpoints.manifest import Manifest, ManifestFile
from vfs.clock import Clock
from vfs.errors import ForemountError
from vfs.foresight.model import Committed, Event, FileClosed, Happening, JobName, Labels, SaveBegun
from vfs.foresight.offers import Line
from vfs.model import LakePath, SiteName, split
from vfs.namespace.mounts import MountTable
from vfs.sites.protocol import Site

log = logging.getLogger(__name__)
QUEUED_MAX = 100_000
SAVES_MAX = 64
TOLD_AGAIN_NS = 24 * 3600 * 10**9
STATS_AT_ONCE = 32
_RETRY_S, _RETRY_S_MAX = 0.2, 30.0


class Noticed:
    """Told by the uploads; tells a controller.

    Args:
        duties: that go along with what is committed here.

    Attributes:
        _queue: id, job, what, and since when it waits.
        _saves: directories whose save was told, with the paths of their files once they are committed.
    """

    def __init__(
        self,
        line: Line,
        mount: str,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        clock: Clock,
        duties: Callable[[LakePath], Labels | None],
    ) -> None:
        self._duties = duties
        self._line = line
        self._mount = mount
        self._mounts = mounts
        self._sites = sites
        self._clock = clock
        self._queue: deque[tuple[str, JobName, Happening, float]] = deque()
        self._asking = asyncio.Semaphore(STATS_AT_ONCE)
        self._saves: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._woken = asyncio.Event()

    def began(self, path: LakePath) -> None:
        """A file is being written."""
        directory = checkpoint_directory(path)
        step = step_of(directory) if directory is not None else None
        if directory is None or step is None:
            return
        committed = self._saves.get(directory)
        if committed is not None and path not in committed:
            return  # of a save that was told, or beside one that was committed
        self._remember(directory, frozenset())
        what = SaveBegun(step=step, path=LakePath(directory), labels=self._duties(LakePath(directory)))
        self._say(f"save:{directory}:{self._clock.wall_ns()}", directory, what)

    def stored(self, path: LakePath, file: ManifestFile) -> None:
        """A file is at its origin, verified; its path is made relative here."""
        directory = checkpoint_directory(path)
        if directory is None or step_of(directory) is None or not path.startswith(directory + "/"):
            return
        if directory not in self._saves:
            self.began(path)
        relative = msgspec.structs.replace(file, path=path[len(directory) + 1 :])
        self._say(_name("file", path, file), directory, FileClosed(path=LakePath(directory), file=relative))

    def committed(self, manifest: Manifest) -> None:
        """A checkpoint's marker is at its origin."""
        if manifest.step is None:
            return
        self._remember(manifest.path, frozenset(f"{manifest.path}/{file.path}" for file in manifest.files))
        what = Committed(
            step=manifest.step,
            path=manifest.path,
            save_id=manifest.save_id,
            marker=manifest.marker,
            files=tuple(manifest.files),
            labels=self._duties(manifest.path),
        )
        self._say(f"commit:{manifest.save_id}:{manifest.committed_ns}", manifest.path, what)

    def again(self, manifests: Iterable[Manifest]) -> None:
        """Tell what was committed lately; what has been told counts once."""
        since_ns = self._clock.wall_ns() - TOLD_AGAIN_NS
        for manifest in manifests:
            if manifest.committed_ns > since_ns:
                self.committed(manifest)

    @property
    def untold(self) -> int:
        """Return how many things the controller has not heard yet."""
        return len(self._queue)

    def _remember(self, directory: str, files: frozenset[str]) -> None:
        self._saves[directory] = files
        self._saves.move_to_end(directory)
        if len(self._saves) > SAVES_MAX:
            self._saves.popitem(last=False)

    def _say(self, name: str, directory: str, what: Happening) -> None:
        if len(self._queue) >= QUEUED_MAX:
            log.warning("the controller does not hear; %s is not told", name)
            return
        job = split(split(directory)[0])[1] or "lake"
        event = xxhash.xxh3_128_hexdigest(f"{self._mount}\0{name}".encode())
        self._queue.append((event, JobName(job), what, self._clock.monotonic_s()))
        self._woken.set()

    async def tell(self) -> None:
        """Tell what is noticed, until it is cancelled."""
        attempts = 0
        while True:
            if not self._queue:
                self._woken.clear()
                await self._woken.wait()
            name, job, what, since_s = self._queue[0]
            try:
                what = await self._with_lasting_versions(what, since_s)
                event = Event(id=name, job=job, what=what, source=self._mount, at_ns=self._clock.wall_ns())
                await self._line.tell([event])
                self._queue.popleft()
                attempts = 0
            except ForemountError as exc:
                attempts += 1
                if attempts == 1:
                    log.warning("the controller can't be told of %s: %s", job, exc)
                await asyncio.sleep(doubled_s(_RETRY_S, _RETRY_S_MAX, attempts))

    async def _with_lasting_versions(self, what: Happening, since_s: float) -> Happening:
        """Return it with the versions that objects keep, where the store could not tell them at once."""
        files = what.files if isinstance(what, Committed) else (what.file,) if isinstance(what, FileClosed) else ()
        if not any(file.version.generation for file in files):
            return what
        assert isinstance(what, Committed | FileClosed)
        await asyncio.sleep(max(0.0, since_s + RACY_S - self._clock.monotonic_s()))
        lasting = await asyncio.gather(*(self._lasting(what.path, file) for file in files))
        if isinstance(what, Committed):
            return msgspec.structs.replace(what, files=tuple(lasting))
        return msgspec.structs.replace(what, file=lasting[0])

    async def _lasting(self, path: LakePath, file: ManifestFile) -> ManifestFile:
        point = self._mounts.find(path)
        if point is None or not file.version.generation:
            return file
        async with self._asking:
            now = (await self._sites[point.site].stat(file.at)).version
        return msgspec.structs.replace(file, version=now) if is_unchanged(file.version, now) else file


def _name(kind: str, path: str, file: ManifestFile) -> str:
    return f"{kind}:{path}:{file.digest}:{msgspec.json.encode(file.version).decode()}"
