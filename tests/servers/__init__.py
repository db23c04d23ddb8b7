"""Real servers on loopback for tests and benchmarks. Each module offers a context manager that starts one and ends it by pid.

`Missing` says that this machine can't run a server; fixtures turn it into a skip with the reason.
"""

from tests.servers.lifecycle import Missing

__all__ = ["Missing"]
