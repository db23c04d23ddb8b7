"""Which samples of an order a rank reads in a step.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vfs.samples.jobs import Batches


def step_count(batches: Batches, samples: int) -> int:
    """Return how many whole global batches one pass over `samples` has after those that were read before step 0."""
    return max(0, samples - batches.first) // (batches.world_size * batches.batch_size)


def positions(batches: Batches, step: int, rank: int) -> npt.NDArray[np.int64]:
    """Return the places in the order that a rank reads in a step, by slot.

    Source: "strided" is OLMo's `indices[rank::world_size]`; "micro" Megatron's MegatronPretrainingSampler, which deals
    micro batches to ranks in turn.
    """
    slots = np.arange(batches.batch_size, dtype=np.int64)
    start = batches.first + step * batches.world_size * batches.batch_size
    match batches.layout:
        case "strided":
            return start + slots * batches.world_size + rank
        case "blocked":
            return start + rank * batches.batch_size + slots
        case "micro":
            micro = batches.micro_batch_size
            return start + slots // micro * micro * batches.world_size + rank * micro + slots % micro
