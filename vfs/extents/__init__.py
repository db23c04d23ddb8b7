"""Bytes that were fetched, in files that prove themselves: see `layout.py`."""
