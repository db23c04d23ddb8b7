"""One request to a site: its turn on the line, its memory, its deadlines, and a second one where the first is late.

Runs on the agent's loop. Tasks: two for a request that may be hedged, which end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from vfs.clock import Clock
from vfs.errors import Throttled, Unavailable, WrongAnswer
from vfs.extents.budget import Budget
from vfs.extents.coalesce import Knobs, knobs
from vfs.extents.counters import FetchCounters
from vfs.extents.fair import Flow, Priority
from vfs.extents.jobs import FetchedObject, Job
from vfs.extents.layout import BLOCK, Identity
from vfs.extents.limits import FetchLimits
from vfs.extents.link import HELD, Bounds, LineFacts, Link
from vfs.extents.placement import USUAL_BYTES, Candidate, Copy, Ranked, Serving, rank
from vfs.extents.sink import Sink
from vfs.extents.throttle import Throttle, Throttles
from vfs.model import SiteName
from vfs.policy.written import ORIGIN, FetchSize
from vfs.sites.protocol import Piece, Site
from vfs.usage import Cause

WINDOW_SHARES = {priority: 1.0 if priority is Priority.FOREGROUND else 0.75 for priority in Priority}
"""Of a line's window: prefetches fill the line and half as much again, a read that waits finds a place. Copies and background
get as much: alone on the line they have to fill it."""
COPY_REQUEST_BYTES = 4 << 20
"""Of a copy between sites at least: large ones cost a line less, and urgent ones wait for those that are under way."""
COPY_REQUESTS_AHEAD = 3
"""Of one stream at least: while one sends, the way of the next ones is covered; with eight streams as many as a line of
10 Gbit/s and 100 ms holds."""
COPY_AHEAD_BYTES_MAX = 32 << 20
"""Of one stream, where the line holds so much: the last file of a checkpoint is alone on it, and all wait for that one."""
RateOf = Callable[[Identity, Priority], tuple[str, float]]
"""Says which rule bounds what is fetched of an object, and to how many bytes a second; all that it bounds shares them."""


def unlimited(identity: Identity, priority: Priority) -> tuple[str, float]:
    """Return that nothing bounds it."""
    return "", math.inf


Submit = Callable[[int, memoryview], asyncio.Future[None]]


class _FellSilent(Unavailable):
    """A connection stays open and brings nothing."""


class _Race:
    """Up to two requests for the same blocks: the first whose bytes come goes on, the other is cancelled.

    Invariant: `winner` never changes once it is set.
    """

    def __init__(self) -> None:
        self.entrants: list[asyncio.Task[None]] = []
        self.winner: asyncio.Task[None] | None = None
        self.sent = asyncio.Event()
        self.decided = asyncio.Event()

    def win(self) -> None:
        """Let the current task go on alone; it is the only one that has got this far: nothing awaits in between."""
        if self.winner is None:
            self.winner = asyncio.current_task()
            self.decided.set()
            for entrant in self.entrants:
                if entrant is not self.winner:
                    entrant.cancel()


class Served(NamedTuple):
    """A range of an object that copies were made of ahead, and how long the answer took.

    Attributes:
        copy: that served it, or could have.
        fell_back: the origin or another replica served it all the same.
        opened: it lies on this host, and was opened: what is read from it, the kernel alone knows.
    """

    copy: Identity
    origin: Identity
    offset: int
    length: int
    seconds: float
    fell_back: bool = False
    opened: bool = False


class Requests:
    """Sends requests to sites, each site's within the window that its line bears.

    Attributes:
        on_served: called with each range of objects that copies were made of.

    Invariant: a site's `Budget` in `_turns` has the window of its `Link` as its total.
    """

    def __init__(
        self,
        sites: Mapping[SiteName, Site],
        *,
        local: Collection[SiteName],
        memory: Budget,
        clock: Clock,
        limits: FetchLimits,
        counters: FetchCounters,
        rate_of: RateOf = unlimited,
    ) -> None:
        self._sites = sites
        self._local = local
        self._memory = memory
        self._clock = clock
        self._limits = limits
        self._counters = counters
        self.on_served: Callable[[Served], None] = lambda served: None
        self._rate_of = rate_of
        self._throttles = Throttles(clock)
        self._links: dict[SiteName, Link] = {}
        self._turns: dict[SiteName, Budget] = {}
        self._bounds = Bounds(
            window_min=min(2, limits.requests_per_site),
            window_start=min(16, limits.requests_per_site),
            window_max=limits.requests_per_site,
            stall_s=limits.stall_s,
            trickle_bytes_per_s=limits.trickle_bytes_per_s,
        )

    def knobs(self, site: SiteName, size: FetchSize | None = None) -> Knobs:
        """Return how requests to a site are formed at the moment.

        Args:
            size: what the policy of the object says; None: nothing.
        """
        most = self._limits.request_bytes_max if size is None else size.most
        return knobs(
            self._link(site).pace,
            request_bytes_min=min(self._limits.request_bytes_min if size is None else size.least, most),
            request_bytes_max=most,
            waste_max=self._limits.waste_max,
        )

    def facts(self) -> list[LineFacts]:
        """Return what is known of each line that was used."""
        return [
            LineFacts(site, link.seen(), self.knobs(site), self._turns[site].waiting) for site, link in self._links.items()
        ]

    def expected_s(self, site: SiteName, length: int) -> float | None:
        """Return how long a site would take now for so many bytes; None: nothing was measured of it."""
        return self._link(site).expected_s(length)

    def hint(self, site: SiteName, after_s: float) -> None:
        """Take in how long a site took to answer a question that brought no bytes."""
        self._link(site).hinted(after_s)

    def placement(
        self, origin: SiteName, sources: Sequence[Identity], serving: Serving, copies: Iterable[Copy] = ()
    ) -> list[Ranked]:
        """Return the sites that may serve, in the order in which they would be asked now, with the reasons."""
        now_s = self._clock.monotonic_s()
        turns = {copy.identity.site: copy.turn for copy in copies if copy.turn is not None}
        found = []
        for site in dict.fromkeys(source.site for source in sources):
            link, is_local = self._link(site), site in self._local
            expected_s = link.expected_s(USUAL_BYTES)
            answers = not link.is_failing(now_s)
            found.append(Candidate(site, site == origin, is_local, answers, expected_s, turns.get(site)))
        return rank(serving.order, found)

    def preferred(self, fetched: FetchedObject) -> list[Identity]:
        """Return the sources that may serve, in the order in which they are asked."""
        if len(fetched.sources) == 1 and fetched.sources[0] is fetched.identity and ORIGIN in fetched.serving.order:
            return fetched.sources
        by_site: dict[SiteName, list[Identity]] = {}
        for source in fetched.sources:
            by_site.setdefault(source.site, []).append(source)
        ranked = self.placement(fetched.identity.site, fetched.sources, fetched.serving, fetched.copies.values())
        return [source for each in ranked for source in by_site[each.site]]

    def choose(self, fetched: FetchedObject, job: Job) -> Identity:
        """Return the source that was asked least often for this job; of equal ones the preferred.

        Raises:
            Unavailable: the policy lets none of them serve.
        """
        start, left = job.done * BLOCK, min(job.stop * BLOCK, fetched.size) - job.done * BLOCK
        preferred = [each for each in self.preferred(fetched) if fetched.place(each, start, left) is not None]
        if not preferred:
            subject = f"{fetched.identity.site}:{fetched.identity.path}"
            reason = f"none of the sites that the policy lets serve it has this version: {', '.join(fetched.serving.order)}"
            raise Unavailable(subject, reason, 'add "origin" to the rule\'s sites')
        return min(preferred, key=lambda source: job.tried[source])

    async def send(self, fetched: FetchedObject, job: Job, source: Identity, submit: Submit) -> None:
        """Ask a site for what is left of the job and hand its blocks to `submit`; another replica too when it is late.

        Raises:
            Unavailable: it broke; `job.done` tells how far it came.
            NotFound, Stale, Denied: the site says so.
            NoSpace: the blocks could not be written.
        """
        rival = self._rival(fetched, job, source)
        late_s = self._late_s(fetched, source)
        if rival is None or late_s is None:
            await self._request(fetched, job, source, submit, None)
            return
        race = _Race()
        race.entrants.append(asyncio.create_task(self._request(fetched, job, source, submit, race)))
        try:
            await _first_of(race.sent, race.entrants[0])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(late_s):
                    await _first_of(race.decided, race.entrants[0])
            if not race.decided.is_set() and not race.entrants[0].done():
                self._counters.hedges += 1
                job.tried[rival] += 1
                race.entrants.append(asyncio.create_task(self._request(fetched, job, rival, submit, race)))
            await asyncio.wait(race.entrants)
        finally:
            for entrant in race.entrants:
                entrant.cancel()
            ends = await asyncio.gather(*race.entrants, return_exceptions=True)
        self._counters.hedges_won += len(race.entrants) > 1 and race.winner is race.entrants[1]
        decisive = ends[race.entrants.index(race.winner)] if race.winner is not None else ends[0]
        if decisive is not None:
            raise decisive

    def _rival(self, fetched: FetchedObject, job: Job, source: Identity) -> Identity | None:
        """Return the replica to ask when `source` is late; None where nobody is in a hurry or no other is well."""
        if job.priority is not Priority.FOREGROUND:
            return None
        now_s = self._clock.monotonic_s()
        start, left = job.done * BLOCK, min(job.stop * BLOCK, fetched.size) - job.done * BLOCK
        others = (
            other
            for other in self.preferred(fetched)
            if other.site != source.site and not job.tried[other] and fetched.place(other, start, left) is not None
        )
        return next((other for other in others if not self._link(other.site).is_failing(now_s)), None)

    def _late_s(self, fetched: FetchedObject, source: Identity) -> float | None:
        """Return after how long another replica is asked too; None: never, or not enough is known of the site."""
        hedge, p95_s = fetched.serving.hedge, self._link(source.site).hedge_after_s
        if hedge.after_s is None and (hedge.p95_factor is None or p95_s is None):
            return None
        return hedge.delay_s(p95_s or 0.0)

    async def read(
        self, source: Identity, offset: int, length: int, priority: Priority, *, flow: Flow
    ) -> AsyncIterator[Piece]:
        """Yield a range straight from a site, in requests as the line bears them; nothing is kept, and nothing tried again.

        Args:
            flow: whose requests they are.

        Raises:
            Unavailable, NotFound, Stale, Denied: as the site says.
        """
        rule = self.knobs(source.site)
        size = max(rule.request_blocks * BLOCK, COPY_REQUEST_BYTES)
        line_bytes = HELD * rule.pace.ttfb_s * rule.pace.bytes_per_s
        ahead_max = max(COPY_REQUESTS_AHEAD, int(min(line_bytes, COPY_AHEAD_BYTES_MAX)) // size)
        end = offset + length
        starts = iter(range(offset, end, size))
        ahead: deque[asyncio.Task[bytearray]] = deque()

        async def collect(start: int) -> bytearray:
            found, count = bytearray(), min(size, end - start)
            once = self._read_once(source, start, count, priority, flow)
            async with self._memory.hold(count, priority), contextlib.aclosing(once) as body:
                async for piece in body:
                    found += piece
            return found

        try:
            while True:
                while len(ahead) < ahead_max and (start := next(starts, -1)) >= 0:
                    ahead.append(asyncio.create_task(collect(start)))
                if not ahead:
                    return
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _read_once(
        self, source: Identity, offset: int, length: int, priority: Priority, flow: Flow
    ) -> AsyncGenerator[Piece, None]:
        """Send one request in its turn and yield its body."""
        async with self._turn(source.site).hold(1, priority, cost=length, flow=flow):
            with self._sending(source.site, length) as link:
                async with contextlib.aclosing(self._body(source, offset, length, link)) as body:
                    async for piece in body:
                        self._count(priority, len(piece))
                        yield piece

    async def _pass(self, identity: Identity, site: SiteName, job: Job, size: int) -> Throttle | None:
        """Wait until the policy lets a job's bytes come from a site; return by which budget, None where there is none."""
        throttle = await self._throttles.passed(
            site,
            size,
            lambda: self._rate_of(identity, job.priority),
            lambda: job.priority,
            lambda: job.enter(Cause.BUDGET, self._clock.monotonic_s()),
        )
        job.enter(Cause.QUEUE, self._clock.monotonic_s())
        return throttle

    async def _request(self, fetched: FetchedObject, job: Job, source: Identity, submit: Submit, race: _Race | None) -> None:
        async with contextlib.AsyncExitStack() as held:
            job.enter(Cause.QUEUE, self._clock.monotonic_s())
            left = min(job.stop * BLOCK, fetched.size) - job.done * BLOCK
            throttle = await self._pass(fetched.identity, source.site, job, left)
            paid = left
            turn = job.ticket = self._turn(source.site).hold(1, job.priority, cost=left)
            await held.enter_async_context(turn)
            if not job.wanted or job.ended:
                return
            if not job.sent:
                fetched.absorb(job, source, self.knobs(source.site, fetched.serving.fetch_size).request_blocks)
                job.sent = True
            left = min(job.stop * BLOCK, fetched.size) - job.done * BLOCK
            if throttle is not None:
                throttle.charge(max(0, left - paid))  # of jobs that it has taken over
            at = fetched.place(source, job.done * BLOCK, left)
            if at is None:  # it holds what the job began with, not what it took over since
                raise Unavailable(f"{source.site}:{source.path}", "does not hold all of this range")
            job.enter(Cause.MEMORY, self._clock.monotonic_s())
            memory = job.ticket = self._memory.hold(left, job.priority)
            await held.enter_async_context(memory)
            job.ticket = None
            if not job.wanted:
                return

            def written(done: int) -> None:
                memory.give_back(max(0, done - job.done) * BLOCK)  # a rival may have been faster
                job.advance(done)

            sink = Sink(job.done, left, batch=self._limits.batch_bytes, submit=submit, written=written, awaited=job.awaited)
            job.hurry = sink.hurry
            start, sent_s = job.done * BLOCK, self._clock.monotonic_s()
            try:
                await self._receive(source, job, at, left, sink, race)
                if fetched.copies:
                    self._tell_served(fetched, source, start, left, self._clock.monotonic_s() - sent_s)
            finally:
                job.enter(Cause.STORE, self._clock.monotonic_s())
                turn.give_back(turn.amount)  # the line is free while the last bytes go to the disk
                await sink.settle()

    def _tell_served(self, fetched: FetchedObject, source: Identity, start: int, length: int, seconds: float) -> None:
        """Tell of a range of an object that has copies: whether one of them served it."""
        if source in fetched.copies:
            self.on_served(Served(source, fetched.identity, start, length, seconds))
        else:
            held = [copy for copy in fetched.copies if fetched.place(copy, start, length) is not None]
            for copy in held[:1]:
                self.on_served(Served(copy, fetched.identity, start, length, seconds, fell_back=True))

    async def _receive(self, source: Identity, job: Job, at: int, length: int, sink: Sink, race: _Race | None) -> None:
        """Send the request and feed its body to the sink; the line's link hears of everything that happens.

        Args:
            at: where the bytes lie at the source.
        """
        subject, deadline_s = f"{source.site}:{source.path}", self._link(source.site).deadline_s(length)
        job.enter(Cause.LATENCY, self._clock.monotonic_s())
        with self._sending(source.site, length) as link:
            if race is not None:
                race.sent.set()
            try:
                async with asyncio.timeout(deadline_s), contextlib.aclosing(self._body(source, at, length, link)) as body:
                    await self._feed(body, subject, job, sink, race)
            except TimeoutError as exc:
                self._counters.stalls += 1
                raise _FellSilent(subject, f"has not sent {length} bytes within {deadline_s:.0f} s") from exc

    async def _feed(
        self, body: AsyncIterator[Piece], subject: str, job: Job, sink: Sink, race: _Race | None
    ) -> None:  # fmt: skip
        first = True
        async for piece in body:
            if first:
                first = False
                job.enter(Cause.LINK, self._clock.monotonic_s())
                if race is not None:
                    race.win()
            self._count(job.priority, len(piece))
            if len(piece) > sink.left:
                raise WrongAnswer(subject, "sent more bytes than it was asked for")
            await sink.feed(piece)
        if sink.left:
            raise WrongAnswer(subject, f"sent {sink.left} bytes less than it was asked for")

    @contextlib.contextmanager
    def _sending(self, site: SiteName, length: int) -> Iterator[Link]:
        """Yield the line's link, which hears that a request for `length` bytes is sent, and how it ends."""
        link, sent_s = self._link(site), self._clock.monotonic_s()
        self._counters.fetches += 1
        link.sent(sent_s, more_wait=self._turn(site).waiting > 0)
        try:
            yield link
        except Unavailable as exc:
            now_s = self._clock.monotonic_s()
            link.failed(now_s, throttled=isinstance(exc, Throttled), stalled=isinstance(exc, _FellSilent))
            raise
        except BaseException:
            link.cancelled()
            raise
        else:
            link.ended(length, sent_s=sent_s)
        finally:
            self._turn(site).resize(link.window)

    async def _body(self, source: Identity, at: int, length: int, link: Link) -> AsyncGenerator[Piece, None]:
        """Send a request and yield its body; the link hears of what comes."""
        subject, sent_s = f"{source.site}:{source.path}", self._clock.monotonic_s()
        site = self._site(source.site, subject)
        # Every site's read is an async generator: closing it closes the connection.
        read = cast(AsyncGenerator[Piece, None], site.read(source.path, source.version, at, length))
        async with contextlib.aclosing(read) as body:
            first = True
            while (piece := await self._next_piece(body, subject)) is not None:
                now_s = self._clock.monotonic_s()
                if first:
                    first = False
                    link.first_byte(now_s - sent_s)
                link.received(now_s, len(piece))
                yield piece

    async def _next_piece(self, body: AsyncIterator[Piece], subject: str) -> Piece | None:
        """Return what comes next; None at the end. A connection that stays open and sends nothing has failed."""
        try:
            async with asyncio.timeout(self._limits.stall_s):
                return await anext(body, None)
        except TimeoutError as exc:
            self._counters.stalls += 1
            raise _FellSilent(subject, f"has sent nothing for {self._limits.stall_s:g} s") from exc

    def _site(self, name: SiteName, subject: str) -> Site:
        site = self._sites.get(name)
        if site is None:
            raise Unavailable(subject, "belongs to a site that is not configured any more")
        return site

    def _link(self, site: SiteName) -> Link:
        link = self._links.get(site)
        if link is None:
            link = self._links[site] = Link(self._bounds)
            self._turns[site] = Budget(link.window, WINDOW_SHARES)
        return link

    def _turn(self, site: SiteName) -> Budget:
        self._link(site)
        return self._turns[site]

    def _count(self, priority: Priority, count: int) -> None:
        self._counters.fetched_bytes += count
        match priority:
            case Priority.FOREGROUND:
                self._counters.foreground_bytes += count
            case Priority.PREFETCH:
                self._counters.prefetched_bytes += count
            case Priority.BACKGROUND:
                self._counters.background_bytes += count
            case Priority.URGENT | Priority.PREDICTIVE:
                self._counters.copied_bytes += count


async def _first_of(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait until the event is set or the task has ended, however it did."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
