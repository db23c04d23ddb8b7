"""Copies ahead of time, as an agent or a controller carries them out."""
