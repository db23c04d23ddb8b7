"""One sample from its raw bytes to what a reader gets: the same on a node and on a training host.

Tasks: none of its own.
"""

from __future__ import annotations

from vfs.errors import NotFound, Stale
from vfs.samples import stream
from vfs.samples.engines.protocol import Engine, task_of
from vfs.samples.feeds.protocol import Lake
from vfs.samples.identity import identity_of, missing, provenance
from vfs.samples.model import Envelope, Form, Reason, Sample
from vfs.samples.operators.declare import OperatorRefused, parameters
from vfs.samples.operators.registry import Operator, Registry
from vfs.samples.prepared import Failed, Prepared
from vfs.samples.sandbox.outcome import Fault

RAW_EXTENSION = "bin"


async def read_raw(lake: Lake, sample: Sample) -> bytes:
    """Return the raw bytes of a sample, all of one version of its source.

    Raises:
        NotFound, Stale, Denied, Unavailable: as the lake does.
    """
    try:
        return await _read(lake, sample)
    except Stale:  # what was believed of the source was a moment old
        return await _read(lake, sample)


async def _read(lake: Lake, sample: Sample) -> bytes:
    entry = await lake.stat(sample.source)
    if entry is None:
        raise NotFound(sample.source)
    if any(offset + length > entry.version.size for offset, length in sample.ranges):
        raise Stale(sample.source, f"has {entry.version.size} bytes, the schedule reads beyond", "is it the same data set?")
    parts = [await lake.read(sample.source, entry.version, *each) for each in sample.ranges if each[1]]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def raw_envelope(sample: Sample, raw: bytes, reason: Reason | None) -> Envelope:
    """Return what announces the raw bytes of a sample."""
    return Envelope(
        sample.step, sample.rank, sample.slot, Form.RAW, RAW_EXTENSION, len(raw), stream.digest_of(raw), reason=reason
    )  # fmt: skip


class Preparer:
    """Makes what the schedule asks for, or says why not.

    Args:
        registry: of this host; `engine` runs exactly its operators.
    """

    def __init__(self, registry: Registry, engine: Engine) -> None:
        self.registry = registry
        self.engine = engine

    def operator_of(self, sample: Sample) -> Operator | Failed:
        """Return the operator that a sample asks for, or why it can't be run. Reads nothing."""
        if not sample.operator:
            return Failed(Reason.NO_OPERATOR, "")
        try:
            operator = self.registry.find(sample.operator)
            parameters(sample.params, operator.declaration)
        except OperatorRefused as exc:
            return Failed(Reason.REFUSED, str(exc))
        lacking = missing(identity_of(sample, "-", operator.name, operator.digest, operator.libraries))
        if lacking:
            return Failed(Reason.UNIDENTIFIED, f"unknown: {', '.join(lacking)}")
        return operator

    async def prepare(self, sample: Sample, raw: bytes) -> Prepared | Failed:
        """Return what the operator makes of `raw`. Cancelling it ends the process that is at work.

        Raises:
            Unavailable, Unsupported: the engine has no process.
        """
        operator = self.operator_of(sample)
        if isinstance(operator, Failed):
            return operator
        identity = identity_of(sample, stream.digest_of(raw), operator.name, operator.digest, operator.libraries)
        told = provenance(identity)
        task = task_of(
            operator.declaration, params=sample.params, seed=sample.seed, provenance=told, size=len(raw)
        )  # fmt: skip
        outcome = await self.engine.transform(task, raw)
        if isinstance(outcome, Fault):
            return Failed(outcome.reason, outcome.text, outcome.cpu_s)
        wanted, _ = parameters(sample.params, operator.declaration)
        envelope = Envelope(
            step=sample.step,
            rank=sample.rank,
            slot=sample.slot,
            form=Form.TRANSFORMED,
            extension=wanted.format,
            size=len(outcome.file),
            digest=stream.digest_of(outcome.file),
            provenance=told,
        )
        return Prepared(envelope, outcome.file, outcome.pixels, outcome.seconds, outcome.cpu_s)
