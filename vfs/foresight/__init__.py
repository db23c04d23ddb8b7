"""Foresight: replicas where and when they will be read, made from what training knows ahead."""
