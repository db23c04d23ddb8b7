"""The last steps of a feed that comes in steps, read once for all who ask."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from vfs.samples.model import Sample

STEPS_KEPT = 8
"""What is read, prepared and read late at a time; more would only be memory."""

Groups = Mapping[int, Sequence[Sample]]


class StepCache:
    """Single flight and a short memory over a function that loads a step.

    Invariant: at most `STEPS_KEPT` steps; one that failed or has nothing is not among them, so it is looked at again.
    """

    def __init__(self, load: Callable[[int], Awaitable[Groups]]) -> None:
        self._load = load
        self._steps: OrderedDict[int, asyncio.Future[Groups]] = OrderedDict()

    async def get(self, step: int) -> Groups:
        """Return the step's samples by rank."""
        loading = self._steps.get(step)
        if loading is None:
            loading = self._steps[step] = asyncio.ensure_future(self._load(step))
            loading.add_done_callback(lambda done: self._forget_useless(step, done))
            if len(self._steps) > STEPS_KEPT:
                self._steps.popitem(last=False)
        self._steps.move_to_end(step)
        return await asyncio.shield(loading)

    def _forget_useless(self, step: int, done: asyncio.Future[Groups]) -> None:
        useless = done.cancelled() or done.exception() is not None or not done.result()
        if useless and self._steps.get(step) is done:
            del self._steps[step]
