"""Schedule feeds: what training will read in which step, from what its framework publishes. See docs/samples.md."""
