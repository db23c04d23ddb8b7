"""How urgent a copy is, from the scale of the model, the importance of the job, and how wrong training looks.

Pure: no I/O, no clock.

    priority = scale * importance * chance + (1 if urgent else 0)

It is what an hour of waiting is expected to lose: computing time that grows with the model, that is worth what the job is
worth, and that is lost where the checkpoint turns out bad. The reasons for each factor are in docs/foresight.md. What is
urgent comes before all that is not, whatever its scale; the link is shared by `weight`, so that the others go on.
"""

from __future__ import annotations

import math

from vfs.extents.fair import Priority
from vfs.foresight.model import Urgency

BAD_USUALLY = 156 / 3589
"""Evaluations that found a regression, of those that nobody had a reason for (PROBLEM.md A1): the chance before any sign."""
SCALE_TOP = 13.0
"""log10 of the parameters at which the scale is 1; ten trillion are more than anybody trains."""
SCALE_BASE = 7.0
"""The same at which it is least: what is smaller trains on one host."""
SCALE_LEAST = 0.05
IMPORTANCE_LEAST = 0.1
"""Of a job that its owner calls unimportant: it is somebody's all the same, and nothing may be worth nothing."""
PARAMETERS_UNKNOWN = 1e10
NOISE = 3.0
"""Standard deviations that a loss strays by itself: one step in 370, so several a day."""
SEVERITY_SCALE = 3.0
"""So many more make a severity of 63 %, twice as many 86 %."""
URGENT_SEVERITY = 0.5
"""From which an anomaly makes what is evaluated next urgent by itself: one sign at 5 standard deviations."""
BELOW_URGENT = 0.999
WEIGHT_LEAST = 1 / 64


def severity(loss_spike: float, gradient_norm: float) -> float:
    """Return how wrong training looks, 0 to 1: either sign alone may be enough, and the two strengthen each other.

    Args:
        loss_spike, gradient_norm: by how many standard deviations each left its recent mean; not a number counts as endless.
    """
    return 1.0 - math.prod(1.0 - _one_sign(deviations) for deviations in (loss_spike, gradient_norm))


def is_urgent(urgency: Urgency) -> bool:
    """Return whether somebody waits for it."""
    return urgency.urgent or urgency.severity >= URGENT_SEVERITY


def priority(urgency: Urgency) -> float:
    """Return the priority: below 1 what can wait, from 1 on what can't; higher goes first."""
    decades = math.log10(max(1.0, urgency.parameters or PARAMETERS_UNKNOWN))
    scale = min(1.0, max(SCALE_LEAST, (decades - SCALE_BASE) / (SCALE_TOP - SCALE_BASE)))
    importance = min(1.0, max(IMPORTANCE_LEAST, urgency.importance))
    chance = BAD_USUALLY + (1.0 - BAD_USUALLY) * min(1.0, max(0.0, urgency.severity))
    return min(scale * importance * chance, BELOW_URGENT) + is_urgent(urgency)


def kind(priority: float) -> Priority:
    """Return with whom a copy of this priority shares the link."""
    return Priority.URGENT if priority >= 1.0 else Priority.PREDICTIVE


def weight(priority: float) -> float:
    """Return what a copy gets among those of its kind, in proportion."""
    return max(WEIGHT_LEAST, priority - math.floor(priority))


def _one_sign(deviations: float) -> float:
    if math.isnan(deviations):
        return 1.0  # the loss itself is not a number any more
    return 1.0 - math.exp(-max(0.0, deviations - NOISE) / SEVERITY_SCALE)
