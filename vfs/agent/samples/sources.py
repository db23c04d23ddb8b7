"""Where transformed samples come from: node services, or processes of this host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vfs.agent.samples.answers import Samples
from vfs.agent.samples.jobs import JobRun
from vfs.errors import ForemountError, NotFound, Unavailable
from vfs.samples import jobs
from vfs.samples.engines.protocol import Engine
from vfs.samples.model import Form, Sample
from vfs.samples.nodeclient import NodeClient
from vfs.samples.nodewire import Told
from vfs.samples.operators.registry import Registry
from vfs.samples.prepared import Failed
from vfs.samples.preparing import Preparer
from vfs.samples.spool import Arriving, Ready, Spool

log = logging.getLogger(__name__)


class NodeSource:
    """Fetches whole groups from node services. A rank's groups come from one node, until that one is lost.

    Invariant: what is in `_told` was taken by that node.
    """

    def __init__(
        self, client: NodeClient, nodes: Sequence[str], samples: Samples, spool: Spool, writer: ThreadPoolExecutor
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._samples = samples
        self._spool = spool
        self._writer = writer
        self._lost: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, str], Told] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def nodes_of(self, run: JobRun) -> Sequence[str]:
        """Return the nodes that prepare for a job."""
        return run.job.nodes or self._nodes

    async def prepare(
        self, run: JobRun, step: int, rank: int, samples: Sequence[Sample]
    ) -> AsyncGenerator[list[Ready], None]:
        """Yield the samples of a group as they come.

        Raises:
            Unavailable: the node is lost; the next call asks another one, where there is one.
            InvalidFeed, Denied: the node can't or won't do it.
        """
        node = self._node(run, rank)
        run.node = node
        raw_keys = {sample.slot: await self._samples.raw_key(sample) for sample in samples}
        loop = asyncio.get_running_loop()
        arriving = Arriving(self._spool, (run.name, step, rank), raw_keys, node)
        try:
            await self._tell(run, node)
            async with contextlib.aclosing(self._client.group(node, run.name, step, rank)) as pieces:
                async for piece in pieces:
                    found = await loop.run_in_executor(self._writer, arriving.feed, piece)
                    if found:
                        yield found
            arriving.end()
        except NotFound as exc:  # started again: it has to be told anew
            self._told.pop((run.name, node), None)
            raise Unavailable(node, f"has forgotten the job: {exc.reason}") from exc
        except Unavailable:
            self._told.pop((run.name, node), None)
            self._lost[run.name, rank] = self._lost.get((run.name, rank), 0) + 1
            raise
        finally:
            await asyncio.shield(loop.run_in_executor(self._writer, arriving.discard))

    def tell(self, run: JobRun) -> None:
        """Tell the nodes how far a job is, soon."""
        for node in {self._node(run, rank) for rank in run.progress.ranks}:
            task = asyncio.ensure_future(self._tell_quietly(run, node))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def facts(self, runs: Sequence[JobRun]) -> list[dict[str, dict[str, Any]]]:
        """Return what its nodes say of each job: its facts, {} where one does not know it, or `error`; each is asked once."""
        nodes = list(dict.fromkeys(node for run in runs for node in self.nodes_of(run)))
        answers = await asyncio.gather(*(self._client.status(node) for node in nodes), return_exceptions=True)
        found: dict[str, dict[str, Any] | ForemountError] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, ForemountError):
                raise answer
            found[node] = answer
        return [{node: _facts_of(run, found[node]) for node in self.nodes_of(run)} for run in runs]

    async def forget(self, run: JobRun) -> None:
        """Have the nodes forget a job, as far as they can be reached."""
        for name, node in [key for key in self._told if key[0] == run.name]:
            del self._told[name, node]
            with contextlib.suppress(ForemountError):
                await self._client.forget(node, name)

    async def close(self) -> None:
        """End what is being told, and connections."""
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self._client.close()

    def _node(self, run: JobRun, rank: int) -> str:
        nodes = self.nodes_of(run)
        return nodes[(rank + self._lost.get((run.name, rank), 0)) % len(nodes)]

    async def _tell_quietly(self, run: JobRun, node: str) -> None:
        try:
            await self._tell(run, node)
        except ForemountError as exc:
            log.debug("node %s was not told of %s: %s", node, run.name, exc)

    async def _tell(self, run: JobRun, node: str) -> None:
        """Tell a node, unless it knows."""
        async with self._locks.setdefault((run.name, node), asyncio.Lock()):
            ranks = tuple(sorted(rank for rank in run.progress.ranks if self._node(run, rank) == node))
            told = Told(
                declaration=run.declaration, text=run.text, directory=run.directory, step=run.progress.consumed, ranks=ranks
            )  # fmt: skip
            if self._told.get((run.name, node)) != told:
                await self._client.tell(node, run.name, told)
                self._told[run.name, node] = told


def _facts_of(run: JobRun, answer: dict[str, Any] | ForemountError) -> dict[str, Any]:
    if isinstance(answer, ForemountError):
        return {"error": str(answer)}
    found: dict[str, Any] = answer["jobs"].get(run.name, {})
    return found


class EngineSource:
    """Runs operators in sandboxed processes of this host: ahead, and at once for a reader who waits.

    Invariant: `_making` has what is being made, by place; one of a sample at a time.
    """

    def __init__(
        self, registry: Registry, engine: Engine, samples: Samples, spool: Spool, writer: ThreadPoolExecutor
    ) -> None:
        self._preparer = Preparer(registry, engine)
        self._samples = samples
        self._spool = spool
        self._writer = writer
        self._ahead = asyncio.Semaphore(engine.seats)
        self._making: dict[tuple[str, int, int, int], asyncio.Future[Ready]] = {}

    async def prepare(
        self, run: JobRun, step: int, rank: int, samples: Sequence[Sample]
    ) -> AsyncGenerator[list[Ready], None]:
        """Yield the samples of a group as they are made; those that can't be are raw, with the reason.

        Raises: as the lake, for a sample whose raw bytes can't be had.
        """
        run.node = "this host"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one_ahead(run, sample)) for sample in samples]
            for done in asyncio.as_completed(tasks):
                yield [await done]

    def tell(self, run: JobRun) -> None:
        """Nobody has to know."""

    async def forget(self, run: JobRun) -> None:
        """Nothing is kept."""

    async def make(self, run: JobRun, sample: Sample) -> Ready:
        """Return a sample, made now unless it is here; once for all who ask.

        Raises: as `prepare`; `Unavailable`, `Unsupported` where this host has no process for it.
        """
        place = sample.job, sample.step, sample.rank, sample.slot
        here = self._spool.find(place[:3], sample.slot)
        if here is not None and here.form is Form.TRANSFORMED:
            return here
        making = self._making.get(place)
        if making is None:
            making = self._making[place] = asyncio.ensure_future(self._made(run, sample))
            making.add_done_callback(lambda _: self._making.pop(place))
        return await asyncio.shield(making)

    async def _one_ahead(self, run: JobRun, sample: Sample) -> Ready:
        async with self._ahead:  # readers who wait come between
            return await self.make(run, sample)

    async def _made(self, run: JobRun, sample: Sample) -> Ready:
        version = await self._samples.source(sample)
        raw = await self._samples.raw_bytes(sample, version)
        found = await self._preparer.prepare(sample, raw)
        run.totals.cpu_s += found.cpu_s
        if isinstance(found, Failed):
            log.debug("%s step %s rank %s slot %s: %s", run.name, sample.step, sample.rank, sample.slot, found.text)
            key, extension = await self._samples.raw_key(sample, version), jobs.raw_extension(run.job, sample)
            ready, body = Ready(sample.slot, Form.RAW, extension, key, len(raw), "", found.reason), raw
        else:
            said = found.envelope
            ready = Ready(sample.slot, said.form, said.extension, said.digest, said.size, said.provenance)
            body = found.body
        group = sample.job, sample.step, sample.rank
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._spool.keep, group, ready, body)
