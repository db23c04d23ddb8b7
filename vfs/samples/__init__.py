"""Samples from the training schedule: transformed before their step, read as plain files, raw bytes when not ready."""
