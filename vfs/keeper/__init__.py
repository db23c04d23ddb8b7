"""The process that owns the FUSE connection: mounts, answers INIT, starts the fs worker and the agent, and restarts them.

Standard library only, and as little of it as possible: when the keeper dies the mount ends.
"""
