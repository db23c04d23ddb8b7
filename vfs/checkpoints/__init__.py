"""What lies where in a checkpoint or a table: formats become layouts, names become patterns, loads become learned orders.

Every parser is sans-I/O: a generator that asks for byte ranges, is sent the bytes, and returns a `Layout` or raises `NoLayout`.
"""
