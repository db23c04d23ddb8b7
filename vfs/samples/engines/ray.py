"""Actors of a Ray cluster, each with a sandboxed process, pinned to the nodes beside a site by a custom resource.

Start such a node with `ray start --resources='{"foremount": 4}'`: four seats. The sandbox is the same as that of the local
engine: Ray says where the process is, not what it may do. Admission looks at the host of the node service.

Tasks: none of its own; each call waits for its actor in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from vfs.errors import InvalidConfig, Unavailable, Unsupported
from vfs.samples.operators.registry import Operator, library_versions
from vfs.samples.sandbox.jail import Cell, Jail
from vfs.samples.sandbox.messages import Confinement, OwnOperator, Settings, Task
from vfs.samples.sandbox.outcome import Fault, Made, Outcome
from vfs.units import decode_unit, encode_unit

log = logging.getLogger(__name__)
START_S = 120.0


class Seat:
    """The actor: one sandboxed process on whichever node Ray has put it. `run` and `kill` are called from different threads.

    Everything crosses as bytes of ours: what Ray pickles is nothing but `bytes`, `str` and `dict`.
    """

    def __init__(self, settings: bytes, operators: bytes) -> None:
        own = msgspec.msgpack.decode(operators, type=list[OwnOperator], dec_hook=decode_unit)
        self._jail = Jail(
            msgspec.msgpack.decode(settings, type=Settings),
            [Operator(each.declaration, "", {}, each.code) for each in own],
        )
        self._cell = Cell(self._jail)

    def start(self) -> bytes:
        """Return what is in force on this node."""
        return msgspec.msgpack.encode(self._jail.start())

    def libraries(self, distributions: list[tuple[str, ...]]) -> list[dict[str, str]]:
        """Return the versions that are installed on this node."""
        return [library_versions(tuple(each)) for each in distributions]

    def run(self, task: bytes, raw: bytes) -> tuple[str, bytes]:
        """Return which outcome, and the outcome."""
        self._cell.arm()
        outcome = self._cell.run(msgspec.msgpack.decode(task, type=Task), raw)
        return type(outcome).__name__, msgspec.msgpack.encode(outcome)

    def kill(self) -> None:
        """Abort what runs."""
        self._cell.kill()


class RayEngine:
    """A pool of actors.

    Invariant: an actor is in `_free` or used by exactly one call of `transform`; one that was lost is replaced.
    """

    def __init__(self, settings: Settings, operators: Sequence[Operator], seats: int, *, address: str, resource: str) -> None:
        try:
            import ray
        except ImportError as exc:
            raise InvalidConfig("node.engine", "Ray is not installed", "pip install foremount[ray]") from exc
        self._ray = ray
        self._operators = operators
        own = [OwnOperator(each.declaration, each.code) for each in operators if each.code]
        self._arguments = (
            msgspec.msgpack.encode(settings),
            msgspec.msgpack.encode(own, enc_hook=encode_unit),
        )
        self._seats = seats
        self._address = address
        self._resource = resource
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._actors: set[Any] = set()

    @property
    def seats(self) -> int:
        return self._seats

    async def start(self) -> Confinement:
        ray = self._ray
        try:
            await asyncio.to_thread(
                ray.init, address=self._address or "auto", ignore_reinit_error=True, log_to_driver=False
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as exc:
            raise Unavailable("Ray", f"can't be reached: {exc}", "ray status") from exc
        self._remote = ray.remote(Seat)
        found: Confinement | None = None
        for _ in range(self._seats):
            found = await self._add()
        assert found is not None, "there is one seat at least"
        return found

    async def transform(self, task: Task, raw: bytes | bytearray | memoryview) -> Outcome:
        actor = await self._free.get()
        lost = False
        try:
            running = actor.run.remote(msgspec.msgpack.encode(task), bytes(raw))
            try:
                kind, body = await running
            except asyncio.CancelledError:
                await self._aborted(actor, running)
                raise
            return msgspec.msgpack.decode(body, type=Made if kind == "Made" else Fault)
        except self._ray.exceptions.RayActorError as exc:
            lost = True
            raise Unavailable("Ray", "a worker was lost with its sample") from exc
        except self._ray.exceptions.RayTaskError as exc:
            raise Unavailable("Ray", f"a worker can't run operators: {exc.cause}") from exc
        finally:
            if lost:
                self._actors.discard(actor)
                await asyncio.shield(self._replace())
            else:
                self._free.put_nowait(actor)

    def cpu_s(self) -> float:
        """Return 0: the processes are on other hosts, whose load is not the one that admission looks at."""
        return 0.0

    async def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # it is gone already
                self._ray.kill(actor)
        self._actors.clear()
        await asyncio.to_thread(self._ray.shutdown)

    async def _add(self) -> Confinement:
        """Start one actor and wait until it can work.

        Raises:
            Unsupported: its node can't confine operators, or has other libraries than this host: the identity would lie.
            Unavailable: no node has the resource free.
        """
        actor = self._remote.options(
            num_cpus=0, resources={self._resource: 1}, max_concurrency=2, max_restarts=0
        ).remote(*self._arguments)  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                confinement = msgspec.msgpack.decode(await actor.start.remote(), type=Confinement)
                asked = [each.declaration.libraries for each in self._operators]
                theirs = await actor.libraries.remote(asked)
        except TimeoutError as exc:
            self._ray.kill(actor)
            hint = f"ray start --resources='{{\"{self._resource}\": {self._seats}}}'"
            raise Unavailable("Ray", f"no node has the resource {self._resource!r} free", hint) from exc
        except self._ray.exceptions.RayError as exc:
            raise Unavailable("Ray", f"an actor does not start: {exc}") from exc
        for operator, versions in zip(self._operators, theirs, strict=True):
            if versions != operator.libraries:
                self._ray.kill(actor)
                differing = sorted(name for name in versions if versions[name] != operator.libraries.get(name))
                raise Unsupported(operator.name, f"a Ray node has other versions of {', '.join(differing)}")
        self._actors.add(actor)
        self._free.put_nowait(actor)
        return confinement

    async def _replace(self) -> None:
        try:
            await self._add()
        except (Unavailable, Unsupported) as exc:
            self._seats = max(1, self._seats - 1)
            log.error("a Ray worker is gone for good: %s", exc)  # noqa: TRY400  # the sentence says it all

    async def _aborted(self, actor: Any, running: Any) -> None:
        """Wait until nothing of the sample runs any more."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            await actor.kill.remote()
            await running
