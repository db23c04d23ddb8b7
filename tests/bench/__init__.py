"""The figures of this project: `python -m tests.bench NAME [--json]`, a table, then one JSON object as the last line.

Each bench is a module with `run(scale, say) -> Outcome`. What is compared alternates within one run (`measure.py`); peers
that a machine does not have are left out with the reason (`peers.py`). docs/benchmarks.md says what each figure means.
"""
