"""What killed processes leave in memory: `vfs/extents/directory.py`."""

from __future__ import annotations

import os
import subprocess
import sys

from vfs.extents.directory import spill_directory, sweep_spills

KIND = f"swept-by-{os.getpid()}"
HOLDS = """
import sys
from vfs.extents.directory import spill_of_process
from vfs.extents.store import Store
store = Store.open(spill_of_process(sys.argv[1]), 1 << 20)
print(store.directory, flush=True)
sys.stdin.read()
store.close_and_remove()
"""


def holder() -> tuple[subprocess.Popen[str], str]:
    """Start a process with a store of its own; return it and the directory."""
    words = [sys.executable, "-c", HOLDS, KIND]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    return started, started.stdout.readline().strip()


def test_what_a_killed_process_left_goes_and_what_another_has_stays() -> None:
    killed, left = holder()
    killed.kill()
    killed.communicate()
    lives, held = holder()
    try:
        linked = spill_directory(f"{KIND}-{2**30}")  # no process has this number
        os.symlink(held, linked)
        sweep_spills(KIND)
        assert (os.path.exists(left), os.path.isdir(held), os.path.islink(linked)) == (False, True, True)
        os.unlink(linked)
    finally:
        lives.communicate()
    assert lives.returncode == 0
    assert not os.path.exists(held)
