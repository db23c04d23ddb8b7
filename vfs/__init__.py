"""Foremount: a path on every training host that knows what training will read next."""

__version__ = "0.1.0"
