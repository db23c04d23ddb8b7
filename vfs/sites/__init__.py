"""Stores behind one protocol: see `protocol.py`, and `build.py` for which kind is made from which configuration."""
