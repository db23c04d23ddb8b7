"""One modality of a checkpoint, tensor by tensor, from an origin 100 ms away: see `remote.py`."""

from tests.bench.remote import run_modality as run

__all__ = ["run"]
