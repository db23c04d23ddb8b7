"""All tensors of a checkpoint, one by one, from an origin 100 ms away: see `remote.py`."""

from tests.bench.remote import run_all as run

__all__ = ["run"]
