"""What lies where in a checkpoint or a table: formats become layouts, names become patterns, loads become learned orders.

Every parser is sans-I/O: a generator that asks for ranges, is sent their bytes, and returns a `Layout` or raises `NoLayout`.
"""
