"""The rooms for samples as the agent runs them: jobs, spool, preparation, and the line to the worker of `.jobs`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from vfs import config
from vfs.agent.rules import PathRules
from vfs.agent.samples.answers import Samples
from vfs.agent.samples.jobs import GroupFacts, JobRun, SampleJobs, Started
from vfs.agent.samples.preparing import Preparing, Source
from vfs.agent.samples.server import SampleServer
from vfs.agent.samples.sources import EngineSource, NodeSource
from vfs.clock import Clock
from vfs.errors import NotFound
from vfs.model import LakePath, split
from vfs.policy.facts import Access
from vfs.policy.written import Allowance
from vfs.rundir import RunDir
from vfs.samples.engines.local import LocalEngine
from vfs.samples.feeds.protocol import Lake
from vfs.samples.model import hit_ratio
from vfs.samples.nodeclient import NodeClient
from vfs.samples.operators.registry import load_registry
from vfs.samples.sandbox.messages import Settings
from vfs.samples.spool import Spool
from vfs.tls import files_of

log = logging.getLogger(__name__)


class SampleRooms:
    """What commands and pages ask of jobs."""

    def __init__(
        self,
        known: SampleJobs,
        preparing: Preparing,
        nodes: NodeSource,
        spool: Spool,
        server: SampleServer,
        clock: Clock,
    ) -> None:
        self._jobs = known
        self._nodes = nodes
        self._preparing = preparing
        self._spool = spool
        self._server = server
        self._clock = clock

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, loaded: config.Config, lake: Lake, rundir: RunDir, clock: Clock, rules: PathRules
    ) -> AsyncIterator[SampleRooms]:
        """Serve the worker of `.jobs` until the block ends.

        Raises:
            NoSpace, Unavailable: the directory of samples can't be used.
        """
        settings = loaded.samples
        assert settings is not None
        directory = config.samples_directory(loaded)
        spool = Spool.open(directory, int(settings.size))
        declared = [LakePath(path.strip("/")) for path in settings.declarations]
        known = SampleJobs(lake, declared, os.path.join(directory, "started.json"), clock)
        async with contextlib.AsyncExitStack() as stack:
            writer = stack.enter_context(ThreadPoolExecutor(1, "samples"))
            samples = Samples(lake, known, spool, writer, clock)
            server = SampleServer(samples)
            nodes = NodeSource(NodeClient(settings.token_file, files_of(settings)), settings.nodes, samples, spool, writer)
            stack.push_async_callback(nodes.close)
            engine = await stack.enter_async_context(_engine(settings, samples, spool, writer))

            def source_of(run: JobRun) -> Source | None:
                if nodes.nodes_of(run):
                    return nodes
                return engine if run.job.fallback == "local" else None

            def allowance(run: JobRun) -> Allowance:
                return rules.decision(LakePath(f".jobs/{run.name}"), Access.PREFETCH).values.samples_ahead

            preparing = await stack.enter_async_context(
                Preparing(
                    known,
                    samples,
                    spool,
                    writer,
                    source_of=source_of,
                    tell=server.tell,
                    allowance=allowance,
                    clock=clock,
                )
            )
            server.on_greeted = preparing.greet
            await stack.enter_async_context(server.listening(rundir.jobs_socket))
            yield cls(known, preparing, nodes, spool, server, clock)

    # Orders

    async def start(self, declaration: str, text: str, name: str, directory: str) -> dict[str, Any]:
        """Start a job from a document in the lake, or from the text of one.

        Raises:
            InvalidFeed: the document or the schedule can't be used.
            ForemountError: they can't be read.
        """
        path = LakePath(declaration.strip("/"))
        below = LakePath(split(path)[0] if path else directory.strip("/"))
        run = await self._jobs.start(Started(name, path, text, below))
        steps = await run.feed.steps()
        if len(steps):  # a schedule whose first step can't be read is refused now, not in the night
            for rank in list(await run.feed.ranks(steps[0]))[:1]:
                await run.group(steps[0], rank)
        return self._facts(run) | {"steps": len(steps), "first_step": steps[0] if len(steps) else -1}

    async def stop(self, name: str) -> dict[str, Any]:
        """Forget a job and all that was prepared for it.

        Raises:
            NotFound: there is no such job.
        """
        run = await self._jobs.stop(name)
        if run is not None:
            await self._preparing.stop(run)
        return {"job": name}

    async def tell(self, name: str, step: int, ranks: tuple[int, ...]) -> dict[str, Any]:
        """Say which step a job is about to read, with which ranks on this host.

        Raises:
            NotFound: there is no such job.
        """
        run = await self._found(name)
        run.progress.tell(step, ranks)
        self._preparing.went_on(run)
        return self._facts(run)

    # Facts

    async def status(self) -> dict[str, Any]:
        """Return all jobs, how far each is, and what it cost: here, and as their nodes say on each of them."""
        await self._jobs.names()
        runs = self._jobs.runs
        nodes = await self._nodes.facts(runs)
        jobs = [self._facts(run) | {"nodes": said} for run, said in zip(runs, nodes, strict=True)]
        return self.facts() | {"jobs": jobs}

    def facts(self) -> dict[str, Any]:
        """Return the jobs that are open, and those that are refused; asks nobody."""
        return {
            "jobs": [self._facts(run) for run in self._jobs.runs],
            "refused": self._jobs.refused,
            "spool": {"used": self._spool.used, "size": self._spool.cap},
            "worker": self._server.counters,
        }

    def table(self) -> list[dict[str, Any]]:
        """Return one row for each job, for the page."""
        shown = (
            "job",
            "step",
            "ready",
            "raw",
            "hit_ratio",
            "lead_s",
            "waited_s",
            "prepared_bytes",
            "unused_bytes",
            "cpu_s",
            "node",
        )
        rows = [{name: each[name] for name in shown} for each in self.facts()["jobs"]]
        return rows + [{"job": name, "refused": why} for name, why in self._jobs.refused.items()]

    async def timeline(self, name: str) -> dict[str, Any]:
        """Return what happened to each group of a job that is remembered; times in seconds before now.

        Raises:
            NotFound: there is no such job.
        """
        run = await self._found(name)
        now_s = self._clock.monotonic_s()
        return {"job": name, "groups": [_moments(fact, now_s) for fact in run.facts.values()]}

    async def _found(self, name: str) -> JobRun:
        run = await self._jobs.find(name)
        if run is None:
            raise NotFound(name, "no such job", "foremount job status lists them")
        return run

    def _facts(self, run: JobRun) -> dict[str, Any]:
        totals = run.totals
        return {
            "job": run.name,
            "declaration": run.declaration,
            "fallback": run.job.fallback,
            "step": run.progress.step,
            "ranks": sorted(run.progress.ranks),
            "node": run.node,
            "ready": totals.ready,
            "raw": {str(reason): count for reason, count in totals.raw.items()},
            "hit_ratio": round(hit_ratio(totals.ready, totals.raw), 4),
            "lead_s": round(totals.lead_s / totals.lead_groups, 3) if totals.lead_groups else 0.0,
            "waited_s": round(totals.waited_s, 3),
            "prepared_groups": totals.prepared_groups,
            "prepared_bytes": totals.prepared_bytes,
            "used_bytes": totals.used_bytes,
            "unused_bytes": totals.unused_bytes,
            "cpu_s": round(totals.cpu_s, 3),
            "refused": list(run.refused),
        }


@contextlib.asynccontextmanager
async def _engine(
    settings: config.Samples, samples: Samples, spool: Spool, writer: ThreadPoolExecutor
) -> AsyncIterator[EngineSource | None]:
    """Run this host's own processes for operators, where it has seats for them; they start with the first sample."""
    if not settings.seats:
        yield None
        return
    registry = await asyncio.to_thread(load_registry, settings.operators, settings.keys)
    for name, why in registry.refused.items():
        log.error("operator %s is refused: %s", name, why)
    engine = LocalEngine(Settings(), list(registry.operators.values()), settings.seats)
    source = EngineSource(registry, engine, samples, spool, writer)
    samples.make = source.make
    try:
        yield source
    finally:
        await engine.close()


def _moments(fact: GroupFacts, now_s: float) -> dict[str, Any]:
    """Return a group's facts for the outside: what has not happened is None."""
    found: dict[str, Any] = msgspec.to_builtins(fact)
    del found["counted"]
    for name in ("asked_s", "prepared_s", "entered_s", "left_s"):
        found[name] = round(found[name] - now_s, 6) if found[name] else None
    return found
