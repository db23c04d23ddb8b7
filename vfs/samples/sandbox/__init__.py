"""Where operators run on bytes that nobody vouches for: processes without network, files, other processes or much memory.

`confine.py` takes the rights away, `zygote.py` is the process that all others are forked from, `jail.py` is this side of it.
What cannot be had on a host is said in `Confinement`; without network and writes refused, nothing is run.
"""
