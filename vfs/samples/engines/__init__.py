"""Who runs operators: `local.py`, processes of this host; `ray.py`, actors of a Ray cluster pinned to nodes of a site.

Same operators, same sandbox, same admission: an engine only says where the process is.
"""
