"""`python -m tests.bench NAME [--json] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.bench.measure import NotHere
from tests.bench.report import Outcome, machine, print_json, print_tables

BENCHES = {
    "local-read": ("tests.bench.local_read", "a local replica through the mount against the file itself"),
    "small-files": ("tests.bench.small_files", "10,000 files of 16 KiB against rclone mount and s3fs on the same origin"),
    "samples": ("tests.bench.samples", "eight ranks with a barrier per step: samples of a node against a DataLoader"),
    "sample-files": (
        "tests.bench.sample_files",
        "ready samples of 16 KiB and 150 KB against the same files on the local disk",
    ),
    "sample-growth": ("tests.bench.sample_growth", "samples a second and memory with 1 to 16 jobs, 10^4 to 10^8 samples"),
    "meta": ("tests.bench.meta", "listing 100,000 entries and a stat storm; requests to the origin counted"),
    "remote-modality": ("tests.bench.remote_modality", "one modality of a checkpoint, tensor by tensor, 100 ms away"),
    "remote-all": ("tests.bench.remote_all", "all tensors of a checkpoint, tensor by tensor, 100 ms away"),
    "write": ("tests.bench.write", "a checkpoint saved through the mount against the local disk; 4 KiB writes; small files"),
    "admin-load": ("tests.bench.admin_load", "cached reads with and without 200 clients of the admin API"),
    "policy": ("tests.bench.policy", "decisions with 200 rules; opens while 1,000 rules are read anew"),
    "remote-shapes": (
        "tests.bench.remote_shapes",
        "other orders, threads, processes, random reads; growth with RTT and tensors",
    ),
    "evaluate": ("tests.bench.evaluate", "an evaluation at another site: commit to merged, predicted and mispredicted"),
    "urgent": ("tests.bench.urgent", "an urgent copy on a full link against an empty one; 208 copies of mixed priority"),
    "catalog": ("tests.bench.catalog", "a controller of 100,000 hints and 1,000,000 copies: recovery, memory, decisions"),
    "published": ("tests.bench.published", "from a published copy to mounts that read from it, over LMDB and over etcd"),
    "storm": ("tests.bench.storm", "64 readers at once: 3 copies of hot bytes against hints; a model of up to 100,000 ranks"),
    "node-load": ("tests.bench.node_load", "another load on a storage node, alone and beside transforms"),
    "crash": ("tests.bench.crash", "kill -9 of the fs worker under verifying readers"),
}


def main() -> int:
    """Run one bench; return the exit status: 0, 1 where a bound that is always held was not, 2 where it can't run here."""
    known = "\n".join(f"  {name:12} {what}" for name, (_, what) in BENCHES.items())
    parser = argparse.ArgumentParser(
        "python -m tests.bench", epilog=f"benches:\n{known}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=BENCHES, metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to try it out, not for figures")
    given = parser.parse_args()

    def say(sentence: str) -> None:
        if not given.json:
            print(f"-- {sentence}", file=sys.stderr, flush=True)

    before = machine()
    bench = importlib.import_module(BENCHES[given.name][0])
    try:
        outcome: Outcome = bench.run(0.1 if given.quick else 1.0, say)
    except NotHere as exc:
        print(f"{given.name}: can't run here: {exc}", file=sys.stderr)
        return 2
    if not given.json:
        print_tables(given.name, outcome)
    print_json(given.name, outcome, before)
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
