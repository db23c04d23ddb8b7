"""Traces: what a run opened and read, recorded on a live mount and played again under another policy."""
