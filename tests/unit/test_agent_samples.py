"""What the worker of `.jobs` is answered: the agent's rooms for samples behind their socket, over a lake in a directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.schedules import BATCH, COUNT, STEPS, WORLD, DirectoryLake, Schedule, arrow, npy, order_of, webdataset, write
from vfs.agent.samples.answers import Samples
from vfs.agent.samples.jobs import JobRun, SampleJobs, Started
from vfs.agent.samples.preparing import GROUPS_MAX, Preparing, RawSource, Source
from vfs.agent.samples.server import SampleServer
from vfs.agent.samples.sources import EngineSource, NodeSource
from vfs.clock import SystemClock
from vfs.errors import ForemountError, InvalidFeed, Stale, Unavailable, from_failure
from vfs.frames import Failed, FrameBuffer, Response
from vfs.model import Entry, Kind, LakePath, Version
from vfs.policy.written import Allowance
from vfs.samples import wire
from vfs.samples.model import Form, Reason, Sample
from vfs.samples.operators.registry import Registry
from vfs.samples.spool import Ready, Spool


class Worker:
    """The other end of the socket, as the worker of `.jobs` speaks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames, self._number = FrameBuffer(), 0
        self._answers: asyncio.Queue[Response[wire.Answer]] = asyncio.Queue()
        self.told: list[wire.Answer] = []
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._receive())

    async def _receive(self) -> None:
        while received := await self._reader.read(1 << 16):
            for body in self._frames.feed(received):
                response = wire.DIALECT.decode_response(body)
                if response.id:
                    self._answers.put_nowait(response)
                else:
                    self.told.append(response.answer)
                    self._news.set()

    def say(self, call: wire.Call) -> None:
        self._writer.write(wire.DIALECT.request(0, call))

    async def ask(self, call: wire.Call) -> wire.Answer:
        self._number += 1
        self._writer.write(wire.DIALECT.request(self._number, call, 10.0))
        response = await self._answers.get()
        assert response.id == self._number
        if isinstance(response.answer, Failed):
            raise from_failure(response.answer.failure)
        return response.answer

    async def look(self, path: str) -> wire.Node | None:
        answer = await self.ask(wire.Look(path))
        assert isinstance(answer, wire.Seen)
        return answer.node

    async def names(self, path: str) -> list[str] | None:
        nodes = await self.nodes(path)
        return None if nodes is None else [node.path.rpartition("/")[2] for node in nodes]

    async def nodes(self, path: str) -> list[wire.Node] | None:
        answer = await self.ask(wire.Children(path))
        assert isinstance(answer, wire.Nodes)
        return answer.nodes

    async def content(self, node: wire.Node) -> bytes:
        answer = await self.ask(wire.Content(node.path, node.key))
        assert isinstance(answer, wire.At)
        return Path(answer.file).read_bytes()

    async def until_told(self, kind: type[wire.Placed] | type[wire.Dropped], directory: str) -> None:
        """Return once the agent has told of a directory."""
        async with asyncio.timeout(10):
            while not any(
                isinstance(told, kind) and directory in getattr(told, "directories", [getattr(told, "directory", "")])
                for told in self.told
            ):
                self._news.clear()
                await self._news.wait()

    async def until_placed(self, directory: str, count: int) -> None:
        """Return once the agent has told of so many samples of a directory."""

        def placed() -> set[str]:
            told = (each for each in self.told if isinstance(each, wire.Placed) and each.directory == directory)
            return {node.path for each in told for node in each.nodes}

        async with asyncio.timeout(10):
            while len(placed()) < count:
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        self._task.cancel()
        self._writer.close()


class Agent:
    """The rooms, behind a real socket."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.lake = DirectoryLake(base / "lake")
        self.clock = SystemClock()
        self.source: Source | None = None
        self.spool_bytes = 1 << 20
        self.allowance = Allowance("on")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Worker]:
        self.spool = Spool.open(str(self.base / "spool"), self.spool_bytes)
        self.jobs = SampleJobs(self.lake, [LakePath("jobs")], str(self.base / "started.json"), self.clock)
        with ThreadPoolExecutor(1) as writer:
            self.samples = Samples(self.lake, self.jobs, self.spool, writer, self.clock)
            server = SampleServer(self.samples)
            async with Preparing(
                self.jobs,
                self.samples,
                self.spool,
                writer,
                source_of=lambda run: self.source,
                tell=server.tell,
                allowance=lambda run: self.allowance,
                clock=self.clock,
            ) as self.preparing:
                server.on_greeted = self.preparing.greet
                async with server.listening(str(self.base / "jobs.sock")):
                    worker = Worker(*await asyncio.open_unix_connection(str(self.base / "jobs.sock")))
                    worker.say(wire.Greet(1))
                    yield worker
                    worker.close()

    async def run(self, name: str = "run") -> JobRun:
        run = await self.jobs.find(name)
        assert run is not None
        return run


OPERATOR = 'operator = { name = "image@1" }\n'


def declare(base: Path, schedule: Schedule, head: str = "", name: str = "run") -> None:
    write(base / "lake", f"jobs/{name}.toml", (head + schedule.text).encode())


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


async def test_the_tree_of_a_job_is_its_steps_ranks_and_slots(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"))
    async with agent.serving() as worker:
        assert await worker.names("") == ["run"]
        assert await worker.names("run") == [*(f"step_{step:07d}" for step in range(STEPS)), "by-id", ".raw"]
        assert await worker.names("run/step_0000001") == ["rank_0000", "rank_0001"]
        assert await worker.names("run/step_0000001/rank_0001") == [f"{slot:06d}.bin" for slot in range(BATCH)]
        assert await worker.names("run/.raw/step_0000001/rank_0001") == [f"{slot:06d}.bin" for slot in range(BATCH)]
        node = await worker.look("run/step_0000001")
        assert node is not None
        assert (node.kind, node.form) == (Kind.DIRECTORY, None)


NOTHING = ["walk", "run/step_0000099", "run/step_0000001/rank_0009", "run/step_0000001/rank_0000/000009.bin", "run/x",
           "run/step_0000001/rank_0000/000001.npy", "run/by-id/s1.npy"]  # fmt: skip


@pytest.mark.parametrize("path", NOTHING)
async def test_what_the_schedule_does_not_have_is_not_there(agent: Agent, path: str) -> None:
    declare(agent.base, arrow(agent.base / "lake"))
    async with agent.serving() as worker:
        assert await worker.look(path) is None
        assert await worker.names(path) is None


async def test_every_sample_reads_as_the_raw_bytes_of_the_schedule(agent: Agent) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule)
    async with agent.serving() as worker:
        for (step, rank, slot), body in schedule.slots.items():
            node = await worker.look(f"run/step_{step:07d}/rank_{rank:04d}/{slot:06d}.bin")
            assert node is not None
            assert (node.form, node.size) == (Form.RAW, len(body))
            assert await worker.content(node) == body


async def test_a_sample_that_is_not_ready_is_raw_under_the_same_name_and_says_why(agent: Agent) -> None:
    schedule = webdataset(agent.base / "lake")
    declare(agent.base, schedule, OPERATOR)
    async with agent.serving() as worker:
        assert await worker.names("run/step_0000000/rank_0000") == [f"{slot:06d}.npy" for slot in range(BATCH)]
        node = await worker.look("run/step_0000000/rank_0000/000001.npy")
        raw = await worker.look("run/.raw/step_0000000/rank_0000/000001.jpg")
        assert node is not None and raw is not None
        assert node.form is raw.form is Form.RAW
        assert node.key == raw.key
        assert json.loads(node.provenance)["why_raw"] == Reason.LATE
        assert await worker.content(node) == schedule.slots[0, 0, 1]
    assert (await agent.run()).totals.raw == {Reason.LATE: 1}


class Making:
    """A source that makes something of every sample; where a job's name begins with `held` once `let_go` is set."""

    def __init__(self, agent: Agent, held: str = "-") -> None:
        self._agent = agent
        self._held = held
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.begun: list[tuple[str, int, int]] = []

    async def prepare(
        self, run: JobRun, step: int, rank: int, samples: Sequence[Sample]
    ) -> AsyncGenerator[list[Ready], None]:
        self.begun.append((run.name, step, rank))
        self.asked.set()
        if run.name.startswith(self._held):
            await self.let_go.wait()
        for sample in samples:
            body = b"made of %d" % sample.slot
            ready = Ready(sample.slot, Form.TRANSFORMED, "npy", f"{step}-{rank}-{sample.slot}", len(body))
            yield [self._agent.spool.keep((run.name, step, rank), ready, body)]

    def tell(self, run: JobRun) -> None:
        pass

    async def forget(self, run: JobRun) -> None:
        pass


async def test_the_very_first_reader_of_a_job_that_waits_gets_what_is_made(agent: Agent) -> None:
    declare(agent.base, webdataset(agent.base / "lake"), OPERATOR + 'fallback = "wait"\ndeadline = "60s"\n')
    agent.source = Making(agent)
    async with agent.serving() as worker:
        node = await worker.look("run/step_0000000/rank_0000/000001.npy")
        assert node is not None
        assert node.form is Form.TRANSFORMED
        assert await worker.content(node) == b"made of 1"


async def test_what_is_read_now_does_not_wait_for_what_other_jobs_read_later(agent: Agent) -> None:
    schedule, waits = webdataset(agent.base / "lake"), OPERATOR + 'fallback = "wait"\ndeadline = "60s"\n'
    for name in ("early1", "early2", "late"):
        declare(agent.base, schedule, waits, name=name)
    agent.source = source = Making(agent, held="early")
    async with agent.serving() as worker:
        for name in ("early1", "early2"):
            early = await agent.run(name)
            early.progress.tell(0, tuple(range(WORLD)))
            agent.preparing.wake(early)
        node = await worker.look("late/step_0000000/rank_0001/000000.npy")
        assert len(source.begun) == GROUPS_MAX + 1
        assert node is not None
        assert node.form is Form.TRANSFORMED
        source.let_go.set()


async def test_samples_of_the_steps_under_way_are_there_by_name(agent: Agent) -> None:
    schedule = webdataset(agent.base / "lake")
    declare(agent.base, schedule, "ahead = 1\n")
    async with agent.serving() as worker:
        assert await worker.names("run/by-id") == []
        await worker.look("run/step_0000001/rank_0000/000000.jpg")
        names = await worker.names("run/by-id")
        numbers = [
            order_of()[position] for position in range(COUNT) if position // (WORLD * BATCH) in (1, 2) and position % 2 == 0
        ]
        assert sorted(names or []) == sorted(f"{number:06d}.jpg" for number in numbers)
        node = await worker.look(f"run/by-id/{numbers[0]:06d}.jpg")
        assert node is not None
        assert await worker.content(node) == schedule.slots[1, 0, 0]


async def test_samples_of_which_nothing_is_made_are_read_before_their_step(agent: Agent) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule, "ahead = 1\n")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        await worker.until_told(wire.Placed, "run/step_0000001/rank_0000")
        nodes = [
            node
            for told in worker.told
            if isinstance(told, wire.Placed) and told.directory == "run/step_0000001/rank_0000"
            for node in told.nodes
        ]
        assert Path(nodes[0].file).read_bytes() == schedule.slots[1, 0, 0]
        assert nodes[0] == await worker.look(nodes[0].path)


@dataclass
class MovingLake(DirectoryLake):
    """A lake whose bytes are replaced, once, after the next call of a name.

    Attributes:
        moves_after: "stat", "read", or "": they stay.
    """

    moves_after: str = ""

    async def stat(self, path: LakePath) -> Entry | None:
        found = await super().stat(path)
        self._move(path, "stat")
        return found

    async def read(self, path: LakePath, version: Version, offset: int, length: int) -> bytes:
        found = await super().read(path, version, offset, length)
        self._move(path, "read")
        return found

    def _move(self, path: LakePath, call: str) -> None:
        if path == "data/all.bin" and call == self.moves_after:
            self.moves_after = ""
            file = self.root / path
            file.write_bytes(file.read_bytes()[::-1])
            os.utime(file, ns=(1, 1))


async def test_bytes_that_are_replaced_before_they_are_read_are_not_kept_under_the_key_of_those_before(agent: Agent) -> None:
    agent.lake = lake = MovingLake(agent.base / "lake")
    declare(agent.base, arrow(agent.base / "lake"))
    async with agent.serving():
        run = await agent.run()
        samples = await run.group(0, 0)
        with ThreadPoolExecutor(1) as writer:
            source = RawSource(agent.samples, agent.spool, writer)
            lake.moves_after = "stat"
            with pytest.raises(Stale):
                async for _ in source.prepare(run, 0, 0, samples):
                    pass
        assert agent.spool.group(("run", 0, 0)) is None


async def test_who_looks_up_the_first_sample_of_all_waits_for_it_where_the_job_says_so(agent: Agent) -> None:
    declare(agent.base, webdataset(agent.base / "lake"), f'fallback = "wait"\ndeadline = "60s"\n{OPERATOR}')
    agent.source = source = Making(agent, held="run")
    async with agent.serving() as worker:
        looking = asyncio.ensure_future(worker.look("run/step_0000000/rank_0000/000001.npy"))
        await source.asked.wait()
        assert not looking.done()
        source.let_go.set()
        node = await looking
        assert node is not None
        assert (node.form, await worker.content(node)) == (Form.TRANSFORMED, b"made of 1")


async def test_who_waits_for_a_sample_gets_raw_bytes_at_the_deadline(agent: Agent) -> None:
    schedule = webdataset(agent.base / "lake")
    declare(agent.base, schedule, f'fallback = "wait"\ndeadline = "50ms"\n{OPERATOR}')
    agent.source = Making(agent, held="run")
    async with agent.serving() as worker:
        node = await worker.look("run/step_0000000/rank_0000/000001.npy")
        assert node is not None
        assert (node.form, await worker.content(node)) == (Form.RAW, schedule.slots[0, 0, 1])
        assert json.loads(node.provenance)["why_raw"] == Reason.LATE
        assert (await agent.run()).totals.waited_s >= 0.05


class TellingNodes:
    """Nodes that tell what they know of jobs; one that is not there can't be reached. Notes who was asked."""

    def __init__(self, jobs: dict[str, dict[str, Any]]) -> None:
        self._jobs = jobs
        self.asked: list[str] = []

    async def status(self, address: str) -> dict[str, Any]:
        self.asked.append(address)
        if address not in self._jobs:
            raise Unavailable(address, "is gone")
        return {"jobs": self._jobs[address]}


async def test_each_node_is_asked_once_for_its_facts_of_all_jobs(agent: Agent) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule)
    declare(agent.base, schedule, 'nodes = ["https://one", "https://gone", "https://one"]\n', name="other")
    client: Any = TellingNodes({"https://one": {"run": {"cpu_s": 1.0}}})
    nothing: Any = None
    async with agent.serving():
        runs = [await agent.run(), await agent.run("other")]
        source = NodeSource(client, ["https://one"], nothing, nothing, nothing)
        assert await source.facts(runs) == [
            {"https://one": {"cpu_s": 1.0}},
            {"https://one": {}, "https://gone": {"error": "https://gone: is gone"}},
        ]
    assert sorted(client.asked) == ["https://gone", "https://one"]


class IdleEngine:
    """An engine that is asked for nothing."""

    seats = 1


async def test_bytes_that_can_not_be_transformed_keep_their_key_when_they_are_replaced_meanwhile(agent: Agent) -> None:
    agent.lake = lake = MovingLake(agent.base / "lake")
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule, OPERATOR)
    async with agent.serving():
        run = await agent.run()
        sample = (await run.group(0, 0))[0]
        key = await agent.samples.raw_key(sample)
        with ThreadPoolExecutor(1) as writer:
            idle: Any = IdleEngine()
            source = EngineSource(Registry(), idle, agent.samples, agent.spool, writer)
            lake.moves_after = "read"
            made = await source.make(run, sample)
        assert (made.form, made.reason, made.key) == (Form.RAW, Reason.REFUSED, key)
        assert Path(made.file).read_bytes() == schedule.slots[0, 0, 0]
        assert await agent.samples.raw_key(sample) != key


async def test_a_step_goes_when_its_rank_is_two_further(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "ahead = 1\n")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        await worker.until_told(wire.Placed, "run/step_0000000/rank_0000")
        worker.say(wire.Entered("run/step_0000002/rank_0000"))
        await worker.until_told(wire.Dropped, "run/step_0000000/rank_0000")
    assert agent.spool.group(("run", 0, 0)) is None
    assert (await agent.run()).progress.step == 2


async def test_a_job_that_keeps_its_samples_reads_them_again_without_their_source(agent: Agent) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule, "ahead = 1\nkeep = true\n")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        await worker.until_placed("run/step_0000000/rank_0000", BATCH)
        worker.say(wire.Entered("run/step_0000002/rank_0000"))
        await worker.until_placed("run/step_0000002/rank_0000", BATCH)
        await worker.until_placed("run/step_0000003/rank_0000", BATCH)
        group = agent.spool.group(("run", 0, 0))
        assert group is not None and group.over
        before = agent.lake.bytes_read
        for slot in range(BATCH):  # another epoch
            node = await worker.look(f"run/step_0000000/rank_0000/{slot:06d}.bin")
            assert node is not None
            assert Path(node.file).read_bytes() == schedule.slots[0, 0, slot]
        assert agent.lake.bytes_read == before
        assert not [told for told in worker.told if isinstance(told, wire.Dropped)]


@pytest.mark.parametrize("allowance", ["off", "size=0B", "hourly=0B"])
async def test_samples_that_may_not_be_prepared_are_read_from_the_lake_and_prepared_again_when_they_may(
    agent: Agent, allowance: str
) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule, "ahead = 1\n")
    agent.allowance = Allowance(allowance)
    async with agent.serving() as worker:
        node = await worker.look("run/step_0000000/rank_0000/000000.bin")
        assert node is not None
        assert await worker.content(node) == schedule.slots[0, 0, 0]
        assert agent.spool.jobs() == []
        assert (await agent.run()).totals.prepared_groups == 0
        agent.allowance = Allowance("on")
        worker.say(wire.Entered("run/step_0000001/rank_0000"))
        await worker.until_told(wire.Placed, "run/step_0000002/rank_0000")


async def test_who_walks_through_directories_reads_nothing(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "ahead = 1\n")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        await worker.until_told(wire.Placed, "run/step_0000001/rank_0000")
        for step in range(STEPS):
            await worker.look(f"run/step_{step:07d}")
            await worker.names(f"run/step_{step:07d}/rank_0000")
        assert (await agent.run()).progress.step == 0
        worker.say(wire.Entered("run/step_0000001/rank_0000"))
        await worker.until_told(wire.Placed, "run/step_0000002/rank_0000")
        assert (await agent.run()).progress.step == 1


async def test_a_reader_who_is_late_still_gets_the_bytes_of_a_step_that_is_over(agent: Agent) -> None:
    schedule = arrow(agent.base / "lake")
    declare(agent.base, schedule, "ahead = 1\n")
    async with agent.serving() as worker:
        node = await worker.look("run/step_0000000/rank_0000/000001.bin")
        worker.say(wire.Entered("run/step_0000003/rank_0000"))
        assert node is not None
        assert await worker.content(node) == schedule.slots[0, 0, 1]


async def test_a_new_agent_goes_on_with_what_the_old_one_had_prepared(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "ahead = 1\n")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        for step in (0, 1):
            await worker.until_told(wire.Placed, f"run/step_{step:07d}/rank_0000")
    placed = agent.spool.used
    assert placed > 0
    async with agent.serving() as worker:
        assert agent.spool.used == placed
        await worker.until_told(wire.Placed, "run/step_0000001/rank_0000")
        group = agent.spool.group(("run", 1, 0))
        assert group is not None
        node = await worker.look("run/step_0000001/rank_0000/000000.bin")
        assert node is not None
        assert node.file == group.ready[0].file


async def test_what_was_prepared_for_a_job_that_is_gone_goes(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "ahead = 1\n")
    declare(agent.base, arrow(agent.base / "lake"), name="other")
    async with agent.serving() as worker:
        await worker.look("run/step_0000000/rank_0000/000000.bin")
        await worker.until_told(wire.Placed, "run/step_0000001/rank_0000")
    (agent.base / "lake/jobs/run.toml").unlink()
    async with agent.serving() as worker:
        while agent.spool.jobs():
            assert await worker.names("") == ["other"]


async def test_a_schedule_that_contradicts_itself_is_an_error_and_is_shown(agent: Agent) -> None:
    schedule = webdataset(agent.base / "lake")
    declare(agent.base, schedule)
    order = order_of()
    order[7] = 999
    write(agent.base / "lake", "jobs/order.npy", npy(order))
    async with agent.serving() as worker:
        assert await worker.names("run/step_0000000/rank_0000") == [f"{slot:06d}.jpg" for slot in range(BATCH)]
        with pytest.raises(InvalidFeed, match="row 7: names sample 999"):
            await worker.nodes("run/step_0000001/rank_0001")
        assert any("row 7" in said for said in (await agent.run()).refused)


async def test_a_sample_that_reaches_beyond_its_file_is_refused(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"))
    data = agent.base / "lake/data/all.bin"
    data.write_bytes(data.read_bytes()[:-1])
    async with agent.serving() as worker:
        with pytest.raises(InvalidFeed, match="reaches beyond"):
            for step in range(STEPS):
                for rank in range(WORLD):
                    await worker.nodes(f"run/step_{step:07d}/rank_{rank:04d}")


async def test_a_document_that_cannot_be_used_is_an_error_that_names_the_key(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "aheed = 1\n")
    async with agent.serving() as worker:
        assert await worker.names("") == ["run"]
        with pytest.raises(InvalidFeed, match="aheed: unknown key"):
            await worker.look("run")
        assert "aheed" in agent.jobs.refused["run"]


async def test_a_job_that_was_started_by_command_is_there_until_it_is_stopped_also_for_the_next_agent(agent: Agent) -> None:
    schedule = webdataset(agent.base / "lake")
    started = Started("mine", LakePath(""), 'name = "mine"\n' + schedule.text, LakePath("jobs"))
    async with agent.serving() as worker:
        await agent.jobs.start(started)
        assert await worker.names("") == ["mine"]
    async with agent.serving() as worker:
        assert await worker.names("mine/step_0000000") == ["rank_0000", "rank_0001"]
        run = await agent.jobs.stop("mine")
        assert run is not None
        await agent.preparing.stop(run)
        assert await worker.names("") == []


async def test_a_told_step_is_prepared_before_anybody_reads(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"), "ahead = 1\n")
    async with agent.serving() as worker:
        run = await agent.run()
        run.progress.tell(2, (1,))
        agent.preparing.went_on(run)
        await worker.until_told(wire.Placed, "run/step_0000003/rank_0001")


async def test_no_call_is_answered_with_another_error_than_ours(agent: Agent) -> None:
    declare(agent.base, arrow(agent.base / "lake"))
    async with agent.serving() as worker:
        with pytest.raises(ForemountError):
            await worker.ask(wire.Content("run/step_0000000/rank_0000/000001.bin", "no such key"))
        with pytest.raises(ForemountError):
            await worker.ask(wire.Content("nothing", "at all"))
        assert msgspec.structs.asdict(await worker.look("run") or wire.Node("", Kind.FILE))["path"] == "run"
