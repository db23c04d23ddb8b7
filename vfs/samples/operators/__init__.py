"""Operators: named, versioned functions from raw bytes to arrays. See `declare.py`, and docs/samples.md for one of your own.

`registry.py` knows them, `apply.py` runs one in this process, `vfs/samples/sandbox/` where the bytes aren't trusted.
"""
