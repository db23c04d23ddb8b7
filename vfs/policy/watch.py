"""Reloads the policy when a document changes. For the agent: the fs worker only looks at the stamps (`store.py`).

Knows no event loop: who runs it says how a call is made in a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import watchfiles

from vfs.errors import InvalidPolicy
from vfs.policy.store import PolicyStore, Reload

POLL_MS = 5000
"""How often it also looks by itself: network file systems tell nothing of changes made elsewhere."""

InThread = Callable[[Callable[[], Reload | None]], Awaitable[Reload | None]]


async def watch(store: PolicyStore, *, in_thread: InThread, poll_ms: int = POLL_MS) -> AsyncIterator[Reload | InvalidPolicy]:
    """Reload whenever a document changes, for as long as it is iterated; yield what came of it.

    A change that leaves the version as it was yields nothing.

    Args:
        in_thread: runs a blocking call beside the loop: `asyncio.to_thread` in the agent.

    Cancellation: the set in force is whole; a reading that has begun may still be put in force.
    """
    directories = store.directories()
    async for _ in watchfiles.awatch(*directories, recursive=False, rust_timeout=poll_ms, yield_on_timeout=True):
        try:
            outcome: Reload | InvalidPolicy | None = await in_thread(store.reload_if_changed)
        except InvalidPolicy as exc:
            outcome = exc
        if isinstance(outcome, InvalidPolicy) or (outcome and outcome.before != outcome.after):
            yield outcome
