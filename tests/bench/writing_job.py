"""A training job as far as its checkpoints go: saves one every so many steps into a lake; prints a line when each is closed.

    python -m tests.bench.writing_job LAKE SOURCE --every 500 --saves 2 --bytes-s 60e6 [--controller URL --tokens FILE
                                      --evaluate-every 1000 --site eval]

It writes at the speed at which its state comes from the devices, file after file, the marker last. With a controller it says
once, when it is submitted, how often it is evaluated and where; the mount tells the rest.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from vfs.training import Training

JOB = "run7"
MARKER = "_SUCCESS"
_PIECE = 4 << 20


def main() -> int:
    """Save and end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lake", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--bytes-s", type=float, required=True)
    parser.add_argument("--controller", default="")
    parser.add_argument("--tokens", default="")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--site", default="")
    given = parser.parse_args()
    if given.controller:
        told = Training(JOB, [given.controller], tokens=given.tokens)
        told.job_submitted(world_size=8, evaluate_every=given.evaluate_every, evaluation_sites=[given.site])
    for number in range(1, given.saves + 1):
        step = number * given.every
        save(given.lake / path_of(step), given.source, given.bytes_s)
        print(step, flush=True)
    return 0


def path_of(step: int) -> str:
    """Return where in the lake the checkpoint of a step is."""
    return f"ckpt/{JOB}/step_{step:07}"


def save(directory: Path, source: Path, bytes_s: float) -> None:
    """Write the files of a checkpoint and its marker."""
    directory.mkdir(parents=True)
    begun_s, written = time.monotonic(), 0
    for file in sorted(source.iterdir()):
        with file.open("rb") as state, (directory / file.name).open("wb") as saved:
            while piece := state.read(_PIECE):
                saved.write(piece)
                written += len(piece)
                time.sleep(max(0.0, written / bytes_s - (time.monotonic() - begun_s)))
    (directory / MARKER).write_bytes(b"")


if __name__ == "__main__":
    sys.exit(main())
